#!/usr/bin/env python3
"""Tests of scripts/test-gpu, with programs that only say that they ran."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# `timeout -k 5 SECONDS COMMAND...`: notes the seconds; $FAILING=word=code: how the command that contains the word ends.
TIMEOUT = """#!/bin/bash
echo "$3 ${*:4}" >>"$RUNS"
[[ -z ${FAILING:-} || "$*" != *"${FAILING%=*}"* ]] || exit "${FAILING##*=}"
"""
ANY = "#!/bin/bash\n"
NVIDIA_SMI = '#!/bin/bash\nfor ((i = 0; i < ${GPUS:-4}; i++)); do echo "GPU $i"; done\n'


class TestGpu(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.checkout = pathlib.Path(folder.name)
        self.runs = self.checkout / "runs"
        (self.checkout / "scripts").mkdir()
        shutil.copy(ROOT / "scripts" / "test-gpu", self.checkout / "scripts")
        self.programs = self.checkout / "programs"
        self.programs.mkdir()
        for name, text in (("timeout", TIMEOUT), ("nvidia-smi", NVIDIA_SMI), ("compute-sanitizer", ANY), ("python3", ANY)):
            (self.programs / name).write_text(text)
            (self.programs / name).chmod(0o755)

    def run_script(self, *arguments, **environment):
        """The exit code, what it printed, and what it ran."""
        self.runs.write_text("")
        done = subprocess.run(
            [self.checkout / "scripts" / "test-gpu", *arguments],
            env=os.environ
            | {"PATH": f"{self.programs}:{os.environ['PATH']}", "RUNS": str(self.runs), "TOWLINE_GPU_BUILD": "build"}
            | environment,
            capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout + done.stderr, self.runs.read_text().splitlines()

    def several(self, *arguments, **environment):
        return self.run_script("--several", *arguments, **environment)

    def parts(self, *mode):
        """Names and seconds, as --list says them."""
        code, text, runs = self.run_script(*mode, "--list", PATH=os.environ["PATH"])
        self.assertEqual((code, runs), (0, []))
        *parts, total = [re.match(r"(.+?) +(\d+) s", line).groups() for line in text.splitlines()]
        self.assertEqual(int(total[1]), sum(int(seconds) for _, seconds in parts))
        return [(name, int(seconds)) for name, seconds in parts], int(total[1])

    def test_all_parts_of_several_fit_into_ten_minutes_with_the_build(self):
        _, total = self.parts("--several")
        self.assertLessEqual(total, 500)

    def test_every_part_runs_in_its_order_and_in_its_time(self):
        for mode in ((), ("--several",)):
            parts, _ = self.parts(*mode)
            code, text, runs = self.run_script(*mode)
            self.assertEqual(code, 0, text)
            self.assertEqual([int(run.split()[0]) for run in runs], [seconds for _, seconds in parts])
            table = text.splitlines()[-len(parts):]
            self.assertEqual([(line.split()[0], line.split()[-1]) for line in table], [(name, "passed") for name, _ in parts])

    def test_every_command_is_a_part(self):
        commands = re.findall(r"^ +\[([a-z-]+)\]=", (ROOT / "scripts" / "test-gpu").read_text(), re.MULTILINE)
        self.assertCountEqual(commands, [name for mode in ((), ("--several",)) for name, _ in self.parts(*mode)[0]])

    def test_what_is_not_there_is_left_out_and_told(self):
        parts, _ = self.parts()
        (self.programs / "compute-sanitizer").unlink()
        (self.programs / "python3").write_text("#!/bin/bash\nexit 1\n")
        code, text, runs = self.run_script(TOWLINE_GPU_BENCH="no")
        self.assertEqual((code, len(runs)), (0, 2), text)
        self.assertEqual(text.count("left out: no compute-sanitizer here"), 6)
        self.assertEqual(text.count("left out: TOWLINE_GPU_BENCH=no"), 7)
        self.assertIn("left out: python3 has no pytest, torch and towline\n", text)
        self.assertEqual(text.count("left out") + text.count("passed"), len(parts))

    def test_a_part_that_fails_fails_the_run_and_the_others_run(self):
        for word, code, said in (("--all-to-all=1", 1, "FAILED (1)"), ("training=124", 1, "FAILED: not over after 45 s")):
            result, text, runs = self.several(FAILING=word)
            self.assertEqual(result, code)
            self.assertIn(said, text)
            self.assertEqual(len(runs), len(self.parts("--several")[0]))
            self.assertEqual(text.count("passed"), len(runs) - 1)

    def test_parts_can_be_named(self):
        code, text, runs = self.several("--only", "torch", "--only", "pages")
        self.assertEqual((code, len(runs)), (0, 2), text)
        self.assertIn("towline_bench_gpu", runs[0])
        self.assertIn("test_gpu_torch.py", runs[1])
        code, text, runs = self.several("--only", "page")
        self.assertEqual((code, runs), (2, []))
        self.assertIn("no part is named 'page': --several --list shows them", text)
        code, text, runs = self.run_script("--only", "memcheck")
        self.assertEqual((code, len(runs)), (0, 1), text)
        self.assertIn("--gtest_filter=-*CanBePinnedOrNot", runs[0])
        code, text, runs = self.run_script("--only", "pages")
        self.assertEqual((code, runs), (2, []))
        self.assertIn("no part is named 'pages': --list shows them", text)

    def test_one_gpu_is_not_enough(self):
        code, text, runs = self.several(GPUS="1")
        self.assertEqual((code, runs), (77, []))
        self.assertIn("--several needs two", text)


if __name__ == "__main__":
    unittest.main()
