#!/usr/bin/env python3
"""make demo builds the program that it runs.

makefile_test.py BUILD PROGRAM: a build folder, and where the command line lies in it.
"""

import os
import pathlib
import re
import subprocess
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD, PROGRAM = (pathlib.Path(argument) for argument in sys.argv[1:])


class MakefileTest(unittest.TestCase):
    def test_demo_builds_what_it_runs(self):
        environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}
        done = subprocess.run(
            ["make", "-n", "demo"], cwd=ROOT, capture_output=True, text=True, check=True, env=environment
        )
        program = str(PROGRAM.relative_to(BUILD))
        self.assertEqual(re.findall(r"--target (\S+)", done.stdout), [program])
        self.assertEqual(re.findall(r"^build/release/(\S+)", done.stdout, re.MULTILINE), [program])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
