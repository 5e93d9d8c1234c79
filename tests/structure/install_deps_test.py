#!/usr/bin/env python3
"""Tests of scripts/install-deps on machines that lack something: no network, no root, old tools.

Each machine is a folder of small stand-ins that is the whole PATH. Nothing is installed.
"""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
TOOLS = ["bash", "basename", "cat", "dirname", "env", "grep", "head", "ln", "mkdir", "printf", "rm", "sed", "sort", "tail", "uname"]

INSTALLED = "#!/bin/bash\necho -n installed\n"
APT_WORKS = '#!/bin/bash\necho "apt-get $*" >>"$FAKE_LOG"\n'
APT_OFFLINE = '#!/bin/bash\necho "E: Could not resolve deb.debian.org" >&2\nexit 100\n'
PIP_OFFLINE = """#!/bin/bash
[[ "$2" == venv ]] || exit 1
mkdir -p "$3/bin"
printf '#!/bin/bash\\necho "ERROR: no matching distribution" >&2\\nexit 1\\n' >"$3/bin/python"
chmod +x "$3/bin/python"
"""


def lacks(*packages):
    """A dpkg-query that has all packages but these."""
    return '#!/bin/bash\ncase " %s " in *" ${@: -1} "*) exit 1 ;; esac\necho -n installed\n' % " ".join(packages)


class Machine:
    """A copy of the scripts, with stand-ins as the only programs."""

    def __init__(self, folder, **programs):
        self.tree = pathlib.Path(folder)
        shutil.copytree(ROOT / "scripts", self.tree / "scripts")
        self.bin = self.tree / "bin"
        self.bin.mkdir()
        self.log = self.tree / "log"
        for tool in TOOLS:
            os.symlink(shutil.which(tool), self.bin / tool)
        standing = {
            "id": "#!/bin/bash\necho 0\n",
            "apt-get": APT_WORKS,
            "dpkg-query": INSTALLED,
            "cmake": "#!/bin/bash\necho cmake version 3.25.1\n",
            "cxx": '#!/bin/bash\n[[ $1 == -dump* ]] && echo 12.2.0 || echo "g++ (Debian) 12.2.0"\n',
            "python3": PIP_OFFLINE,
        }
        for name, text in (standing | {name.replace("_", "-"): text for name, text in programs.items()}).items():
            if text is None:
                continue
            path = self.bin / name.replace("cxx", "c++")
            path.write_text(text)
            path.chmod(0o755)

    def run(self, *arguments):
        """The exit code, and all that was said."""
        environment = {"PATH": str(self.bin), "HOME": str(self.tree), "FAKE_LOG": str(self.log)}
        done = subprocess.run(
            [str(self.bin / "bash"), str(self.tree / "scripts" / "install-deps"), *arguments],
            env=environment, capture_output=True, text=True, timeout=60, check=False)
        return done.returncode, done.stdout + done.stderr


class InstallDeps(unittest.TestCase):
    def machine(self, **programs):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        return Machine(folder.name, **programs)

    def test_says_nothing_where_all_is_there(self):
        self.assertEqual(self.machine().run("build"), (0, ""))

    def test_installs_what_is_missing_and_nothing_else(self):
        machine = self.machine(dpkg_query=lacks("libfmt-dev"))
        code, said = machine.run("build")
        self.assertIn("installing: libfmt-dev\n", said)
        self.assertIn("install -y -qq --no-install-recommends libfmt-dev\n", machine.log.read_text())
        self.assertEqual(code, 0)

    def test_an_unknown_group_is_told_the_known_ones(self):
        for word in ("--help", "tests"):
            machine = self.machine(dpkg_query=lacks("libfmt-dev"))
            code, said = machine.run("build", word)
            self.assertEqual(code, 2)
            self.assertIn(f"unknown group {word}: expected build, test, lint, bench or nightly, and --explain before them", said)
            self.assertFalse(machine.log.exists(), "something was installed")

    def test_explains_without_doing(self):
        machine = self.machine(dpkg_query=lacks("libfmt-dev", "ccache"))
        code, said = machine.run("--explain", "build")
        self.assertIn("would install by apt-get: ccache libfmt-dev", said)
        self.assertIn("without ccache: compiling again takes as long", said)
        self.assertIn("can't do without: libfmt-dev", said)
        self.assertEqual(code, 1)
        self.assertFalse(machine.log.exists(), "something was installed")

    def test_without_root_and_sudo(self):
        code, said = self.machine(id="#!/bin/bash\necho 1000\n", dpkg_query=lacks("libfmt-dev")).run("build")
        self.assertIn("neither root nor sudo", said)
        self.assertIn("apt-get install libfmt-dev", said)
        self.assertIn("nothing can be compiled", said)
        self.assertEqual(code, 1)

    def test_without_root_but_with_sudo(self):
        machine = self.machine(id="#!/bin/bash\necho 1000\n", sudo='#!/bin/bash\nexec "$@"\n', dpkg_query=lacks("libfmt-dev"))
        self.assertEqual(machine.run("build")[0], 0)
        self.assertIn("libfmt-dev", machine.log.read_text())

    def test_without_network_what_can_be_left_out_is_left_out(self):
        code, said = self.machine(apt_get=APT_OFFLINE, dpkg_query=lacks("liburing-dev", "etcd-server")).run("build")
        self.assertIn("is there a network", said)
        self.assertIn("without liburing-dev: files are moved by kernel AIO", said)
        self.assertEqual(code, 0)

    def test_without_what_nightly_skips_the_rest_is_not_called_impossible(self):
        machine = self.machine(apt_get=APT_OFFLINE, dpkg_query=lacks("qemu-system-x86", "libgflags-dev"))
        said = machine.run("nightly")[1]
        self.assertIn("without qemu-system-x86: parts of scripts/nightly that boot a guest are skipped", said)
        self.assertIn("without libgflags-dev: NIXL's nixlbench is skipped", said)
        self.assertNotIn("nothing can be compiled", said)

    def test_without_network_what_is_needed_is_named(self):
        code, said = self.machine(apt_get=APT_OFFLINE, dpkg_query=lacks("libgtest-dev")).run("test")
        self.assertIn("can't do without: libgtest-dev", said)
        self.assertIn("make demo", said)
        self.assertNotIn("ctest --preset", said)
        self.assertEqual(code, 1)

    def test_without_a_package_index_the_rest_can_be_tested(self):
        code, said = self.machine().run("test")
        self.assertIn("network to the package index", said)
        self.assertIn("without it: no Python package", said)
        self.assertIn("ctest --preset ci", said)
        self.assertEqual(code, 1)

    def test_old_cmake(self):
        code, said = self.machine(cmake="#!/bin/bash\necho cmake version 3.22.1\n").run("build")
        self.assertIn("CMake 3.22.1 is too old, 3.25 is needed", said)
        self.assertIn("nothing can be compiled", said)
        self.assertEqual(code, 1)

    def test_old_compiler(self):
        code, said = self.machine(cxx="#!/bin/bash\necho 10.2.1\n").run("build")
        self.assertIn("g++ 10.2.1 is too old, 12 is needed", said)
        self.assertEqual(code, 1)

    def test_no_compiler(self):
        code, said = self.machine(cxx=None, dpkg_query=lacks("build-essential"), apt_get=APT_OFFLINE).run("build")
        self.assertIn("no c++ here", said)
        self.assertIn("nothing can be compiled", said)
        self.assertEqual(code, 1)

    def test_another_system_is_told_what_is_expected(self):
        code, said = self.machine(apt_get=None).run("build")
        self.assertIn("no apt-get here; expecting these to be present: build-essential", said)
        self.assertEqual(code, 0)


if __name__ == "__main__":
    unittest.main()
