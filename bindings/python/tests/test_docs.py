"""The README's and the quick start's Python runs: each section's code blocks together, in an interpreter of their own."""

from __future__ import annotations

import pathlib
import re

import pytest

from conftest import run_script

ROOT = pathlib.Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", ROOT / "docs" / "python.md"]


def sections() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        parts = re.split(r"^## (.*)$", page.read_text(), flags=re.MULTILINE)
        for title, text in zip(parts[1::2], parts[2::2]):
            if blocks := re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
                found.append((f"{page.name}: {title}", "\n".join(blocks)))
    return found


@pytest.mark.parametrize(("title", "code"), sections(), ids=[title for title, _ in sections()])
def test_quick_start(title, code):
    done = run_script(code)
    assert done.returncode == 0, done.stderr
