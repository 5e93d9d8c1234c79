"""The Python programs of examples/ run, in processes of their own."""

from __future__ import annotations

import pathlib
import subprocess
import sys

import pytest

from conftest import TIMEOUT

EXAMPLES = pathlib.Path(__file__).resolve().parents[3] / "examples"


@pytest.mark.parametrize("program", sorted(EXAMPLES.glob("*.py")), ids=lambda program: program.name)
def test_it_runs(program):
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, timeout=2 * TIMEOUT)
    assert done.returncode == 0, done.stderr
    if program.name == "pull.py":
        assert "req-17: 3 pages of 8 layers" in done.stdout
