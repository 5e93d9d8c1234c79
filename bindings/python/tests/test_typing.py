"""The package, its stubs and the examples as a type checker sees them."""

from __future__ import annotations

import ast
import operator
import os
import pathlib
import subprocess
import sys

import pytest

import towline
from towline import _collectives, _core, _fabric

ROOT = pathlib.Path(__file__).resolve().parents[3]
PACKAGE = ROOT / "bindings" / "python" / "towline"


def check(*what: pathlib.Path, cache: pathlib.Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mypy", f"--cache-dir={cache}", f"--config-file={PACKAGE.parent / 'pyproject.toml'}", *what],
        env={**os.environ, "MYPYPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
    )


def test_the_package_and_the_examples_are_clean(tmp_path):
    done = check(PACKAGE, *sorted((ROOT / "examples").glob("*.py")), cache=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_wrong_call_is_found(tmp_path):
    program = tmp_path / "wrong.py"
    program.write_text(
        "import towline\n"
        "agent = towline.Agent('a')\n"
        "agent.register(b'', acces='rw')\n"
        "agent.copy(1, 2)\n"
        "towline.Status.NOTHING\n"
    )
    found = check(program, cache=tmp_path / "cache").stdout
    assert [line.split(":")[1] for line in found.splitlines() if ": error:" in line] == ["3", "4", "4", "5"], found


def stubbed(module: str) -> dict[str, set[str]]:
    """The public names of each class of a stub, inherited ones left out."""
    classes = [node for node in ast.parse((PACKAGE / f"{module}.pyi").read_text()).body if isinstance(node, ast.ClassDef)]
    return {
        node.name: {
            name
            for member in node.body
            for name in (
                [member.name]
                if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef))
                else [member.target.id]
                if isinstance(member, ast.AnnAssign) and isinstance(member.target, ast.Name)
                else []
            )
        }
        for node in classes
    }


@pytest.mark.parametrize("module", [_core, _collectives], ids=lambda module: module.__name__)
def test_the_stubs_have_every_public_member(module):
    stub = stubbed(module.__name__.rpartition(".")[2])
    missing = []
    for name, kind in vars(module).items():
        if not isinstance(kind, type) or name.startswith("_"):
            continue
        known = stub.get(name)
        if known is None:
            missing.append(name)
            continue
        missing += [f"{name}.{member}" for member in vars(kind) if not member.startswith("_") and member not in known]
        missing += [f"{name}.{member} (not there)" for member in known if not hasattr(kind, member) and member[0] != "_"]
    assert not missing


@pytest.mark.parametrize("module", [_core, _collectives, _fabric], ids=lambda module: module.__name__)
def test_help_says_what_the_stubs_say(module):
    stub = PACKAGE / f"{module.__name__.rpartition('.')[2]}.pyi"
    told, missing = 0, []
    for kind in ast.parse(stub.read_text()).body:
        if not isinstance(kind, ast.ClassDef) or not hasattr(module, kind.name):  # or it is for type checkers alone
            continue
        members = [member for member in kind.body if isinstance(member, (ast.FunctionDef, ast.AsyncFunctionDef))]
        for node, name in [(kind, kind.name), *((member, f"{kind.name}.{member.name}") for member in members)]:
            text = ast.get_docstring(node)
            if text is None:
                continue
            told += 1
            if text not in (operator.attrgetter(name)(module).__doc__ or ""):
                missing.append(name)
    assert told and not missing


@pytest.mark.parametrize("file", ["_core.pyi", "_agent.py", "_plan.py", "_layout.py", "_results.py", "_logging.py"])
def test_what_is_public_says_what_it_is(file):
    """Units, errors and who may call are said where an editor shows them."""
    silent = []
    for node in ast.walk(ast.parse((PACKAGE / file).read_text())):
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        functions = [item for item in node.body if isinstance(item, (ast.FunctionDef, ast.AsyncFunctionDef))]
        silent += [f"{node.name}.{item.name}" for item in functions if item.name[0] != "_" and not ast.get_docstring(item)]
        if not ast.get_docstring(node):
            silent.append(node.name)
    assert not silent


def test_type_checkers_know_the_librarys_statuses():
    (status,) = (node for node in ast.parse((PACKAGE / "_status.pyi").read_text()).body if isinstance(node, ast.ClassDef))
    known = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in status.body
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name)
    }
    assert known == {status.name: status.value for status in towline.Status}
