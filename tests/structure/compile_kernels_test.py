#!/usr/bin/env python3
"""scripts/compile-kernels keeps what it compiled, and compiles again when anything that went into it has changed."""

import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Counts its runs; the image is what it was called with and the header's text.
NVCC = """#!/bin/bash
[[ $1 == --version ]] && { echo "nvcc ${NVCC_VERSION:-1}"; exit; }
echo run >>"$NVCC_RUNS"
while (($#)); do
  case $1 in -o) image=$2 ;; -MF) deps=$2 ;; -MT) target=$2 ;; *.cu) source=$1 ;; -O*) level=$1 ;; esac
  shift
done
echo "$level $(cat "$source" "${source%/*}/sizes.h")" >"$image"
printf '%s : %s \\\\\\n    %s \\\\\\n    /usr/include/stdio.h\\n' "$target" "$source" "${source%/*}/sizes.h" >"$deps"
"""


class CompileKernels(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.nvcc = self.folder / "nvcc"
        self.nvcc.write_text(NVCC)
        self.nvcc.chmod(0o755)
        self.runs = self.folder / "runs"
        self.checkout = self.make_checkout("one")

    def make_checkout(self, name):
        checkout = self.folder / name
        (checkout / "scripts").mkdir(parents=True)
        shutil.copy(ROOT / "scripts" / "compile-kernels", checkout / "scripts")
        (checkout / "kernels.cu").write_text("kernel\n")
        (checkout / "sizes.h").write_text("sizes\n")
        return checkout

    def compile(self, *arguments, checkout=None, **environment):
        """The image, and how often the compiler has run so far."""
        checkout = checkout or self.checkout
        image = checkout / "kernels.fatbin"
        subprocess.run(
            [checkout / "scripts" / "compile-kernels", self.nvcc, checkout / "kernels.cu", image, *(arguments or ["-O3"])],
            env=os.environ | {"XDG_CACHE_HOME": str(self.folder / "cache"), "NVCC_RUNS": str(self.runs)} | environment,
            check=True, timeout=60)
        self.deps = (checkout / "kernels.fatbin.d").read_text()
        return image.read_text(), len(self.runs.read_text().splitlines())

    def test_the_same_is_compiled_once_also_in_another_checkout(self):
        first = self.compile()
        self.assertEqual(first, ("-O3 kernel\nsizes\n", 1))
        self.assertEqual(self.compile(), first)
        other = self.make_checkout("two")
        self.assertEqual(self.compile(checkout=other), first)
        self.assertIn(str(other / "sizes.h"), self.deps, "Ninja must see the header that the image depends on")

    def test_whatever_went_into_it_counts(self):
        self.compile()
        (self.checkout / "sizes.h").write_text("other sizes\n")
        self.assertEqual(self.compile(), ("-O3 kernel\nother sizes\n", 2))
        (self.checkout / "kernels.cu").write_text("other kernel\n")
        self.assertEqual(self.compile(), ("-O3 other kernel\nother sizes\n", 3))
        self.assertEqual(self.compile("-O1"), ("-O1 other kernel\nother sizes\n", 4))
        self.assertEqual(self.compile(NVCC_VERSION="2")[1], 5)
        (self.checkout / "kernels.cu").write_text("kernel\n")
        (self.checkout / "sizes.h").write_text("sizes\n")
        self.assertEqual(self.compile(), ("-O3 kernel\nsizes\n", 5), "the first version is kept too")

    def test_without_the_cache_it_is_compiled(self):
        self.compile()
        self.assertEqual(self.compile(TOWLINE_NO_KERNEL_CACHE="1")[1], 2)


if __name__ == "__main__":
    unittest.main()
