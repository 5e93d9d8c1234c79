#!/usr/bin/env python3
"""scripts/interop: runs every program of tests/interop that no CMakeLists.txt runs, and says by name what it skips."""

import os
import pathlib
import re
import subprocess
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
INTEROP = ROOT / "scripts" / "interop"
NEEDS = {
    "network_plugin": "TOWLINE_NIXL_WHEEL",
    "nixl_python": "TOWLINE_NIXL_CHECKOUT",
    "nixl_users": "TOWLINE_NIXL_USERS",
    "torchcomms": "TOWLINE_TORCHCOMMS_CHECKOUT",
}


def interop(*names: str, **more: str) -> subprocess.CompletedProcess:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("TOWLINE_")}
    return subprocess.run(
        [INTEROP, "/nowhere", *names], capture_output=True, text=True, check=False, env=environment | more
    )


class InteropTest(unittest.TestCase):
    def test_every_program_is_run_by_someone(self):
        runs = INTEROP.read_text().split("run() {")[1].split("\n}")[0]
        for room in ("compat", "tests", "tools"):
            runs += "".join(path.read_text() for path in (ROOT / room).rglob("CMakeLists.txt"))
        folder = ROOT / "tests" / "interop"
        for program in [*folder.glob("*.sh"), *folder.glob("*/*.sh"), *folder.glob("nixl_plugin/*.py")]:
            known = re.search(rf"\b{re.escape(program.stem)}\b", runs)
            self.assertTrue(known, f"nobody runs {program.relative_to(ROOT)}")

    def test_what_is_not_here_is_skipped_by_name(self):
        done = interop(*NEEDS)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        lines = done.stdout.splitlines()[-len(NEEDS) :]
        for line, (name, variable) in zip(lines, NEEDS.items()):
            self.assertRegex(line, rf"^skipped: {name}: .*{variable}")

    def test_a_failure_is_named_and_the_others_run(self):
        done = interop("real_agents", "nixl_users")  # /nowhere has no tests
        self.assertEqual(done.returncode, 1)
        first, second = done.stdout.splitlines()[-2:]
        self.assertRegex(first, "^FAILED: real_agents")
        self.assertRegex(second, "^skipped: nixl_users")

    def test_wrong_arguments_run_nothing(self):
        for arguments, said in (
            (["/nowhere", "nixl_users", "nobody"], "there is no 'nobody': the head of .*scripts/interop lists the names"),
            (["--help"], "--help is no build folder: the head of .*scripts/interop says"),
        ):
            done = subprocess.run([INTEROP, *arguments], capture_output=True, text=True, check=False, timeout=60)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertRegex(done.stderr, said)


if __name__ == "__main__":
    unittest.main()
