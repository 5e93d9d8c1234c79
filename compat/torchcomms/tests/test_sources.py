"""Tests that need no torch."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "torchcomms"
SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_is_understood_by_the_oldest_python(path):
    tree = ast.parse(path.read_text(), str(path), feature_version=(3, 10))
    assert ast.get_docstring(tree), "a module says what it is for"


def test_every_public_name_of_distwrap_is_there():
    tree = ast.parse((PACKAGE / "distwrap" / "__init__.py").read_text())
    imported = {name.asname or name.name for node in tree.body if isinstance(node, ast.ImportFrom) for name in node.names}
    assigned = {target.id for node in tree.body if isinstance(node, ast.Assign) for target in node.targets}
    listed = {one.value for node in ast.walk(tree) if isinstance(node, ast.Tuple) for one in node.elts if isinstance(one, ast.Constant)}
    assert listed <= imported | assigned
