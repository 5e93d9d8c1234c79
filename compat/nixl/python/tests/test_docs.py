"""The page for those who come from NIXL runs: each section's code blocks one after another, in an interpreter of its
own."""

from __future__ import annotations

import pathlib
import re

import pytest

import nixl
from conftest import run_script

PAGE = pathlib.Path(__file__).resolve().parents[4] / "docs" / "migrating-from-nixl.md"


def sections() -> list[tuple[str, str]]:
    parts = re.split(r"^##+ (.*)$", PAGE.read_text(), flags=re.MULTILINE)
    return [
        (title, "\n".join(blocks))
        for title, text in zip(parts[1::2], parts[2::2])
        if (blocks := re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL))
    ]


def test_the_page_has_examples():
    assert len(sections()) >= 5


def test_the_page_has_an_example_of_each_call():
    code = "\n".join(text for _, text in sections())
    calls = [name for name, value in vars(nixl.nixl_agent).items() if callable(value) and name[0] != "_"]
    assert len(calls) >= 40
    assert [name for name in calls if f".{name}(" not in code] == []


@pytest.mark.parametrize(("title", "code"), sections(), ids=[title for title, _ in sections()])
def test_examples(title, code):
    done = run_script(code)
    assert done.returncode == 0, done.stderr


def test_the_page_quotes_the_program_that_is_tested():
    program = (PAGE.parents[1] / "compat/nixl/tests/migrating_test.cc").read_text()
    quoted = re.findall(r"```cpp\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert quoted == re.findall(r"^// \[\w+\]\n(.*?)^// \[\w+\]", program, flags=re.DOTALL | re.MULTILINE)
