#!/usr/bin/env python3
"""make demo builds the program that it runs, and make test compiles kernels and the library once.

makefile_test.py BUILD PROGRAM: a build folder, and where the command line lies in it.
"""

import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD, PROGRAM = (pathlib.Path(argument) for argument in sys.argv[1:])


def commands_of(target):
    """What `make TARGET` would run."""
    environment = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MFLAGS")}
    return subprocess.run(
        ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True, env=environment
    ).stdout


class MakefileTest(unittest.TestCase):
    def test_demo_builds_what_it_runs(self):
        commands = commands_of("demo")
        program = str(PROGRAM.relative_to(BUILD))
        self.assertEqual(re.findall(r"--target (\S+)", commands), [program])
        self.assertEqual(re.findall(r"^build/release/(\S+)", commands, re.MULTILINE), [program])

    def test_all_that_make_test_builds_has_the_same_kernels(self):
        presets = json.loads((ROOT / "CMakePresets.json").read_text())["configurePresets"]
        targets = [preset["cacheVariables"]["TOWLINE_CUDA_TARGETS"] for preset in presets if preset["name"] in ("ci", "sanitizer")]
        self.assertEqual(len(targets), 2)
        self.assertEqual(len(set(targets)), 1, targets)

    def test_python_packages_of_make_test_are_compiled_like_ci(self):
        commands = commands_of("test")
        self.assertIn("--config-settings=cmake.args=--preset=ci --config-settings=cmake.build-type=Debug ", commands)
        # Relative paths are a part of what ccache looks up.
        folders = re.findall(rf"build-dir={ROOT}/(\S+)-\$\(basename", commands)
        self.assertEqual([folder.count("/") for folder in folders], ["build/ci".count("/")], folders)
        for project in ("bindings/python", "compat/nixl/python"):
            settings = tomllib.loads((ROOT / project / "pyproject.toml").read_text())["tool"]["scikit-build"]
            self.assertEqual((ROOT / project / settings["cmake"]["source-dir"]).resolve(), ROOT)

    def test_python_packages_have_the_licence_in_their_wheels(self):
        packages = re.search(r"for package in (.*?);", commands_of("python")).group(1).split()
        self.assertIn("bindings/python", packages)
        for package in packages:
            licence = ROOT / package / "LICENSE"  # scikit-build-core takes it by its name
            self.assertTrue(licence.is_file() and licence.samefile(ROOT / "LICENSE"), licence)

    def test_packages_that_are_made_by_hand_are_those_that_are_shipped(self):
        self.assertNotIn("preset", commands_of("python").split("for package in", 1)[1])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
