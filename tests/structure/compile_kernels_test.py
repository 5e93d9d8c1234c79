#!/usr/bin/env python3
"""scripts/compile-kernels keeps what it compiled, and compiles again when anything that went into it has changed."""

import concurrent.futures
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]

# Counts its runs; the image is what it was called with and the header's text. NVCC_MEANWHILE: somebody changes the header then.
NVCC = """#!/bin/bash
[[ $1 == --version ]] && { echo "nvcc ${NVCC_VERSION:-1}"; exit; }
echo run >>"$NVCC_RUNS"
while (($#)); do
  case $1 in -o) image=$2 ;; -MF) deps=$2 ;; -MT) target=$2 ;; *.cu) source=$1 ;; -O*) level=$1 ;; esac
  shift
done
echo "$level $(cat "$source" "${source%/*}/sizes.h")" >"$image"
[[ -z ${NVCC_MEANWHILE:-} ]] || echo "$NVCC_MEANWHILE" >"${source%/*}/sizes.h"
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

    def test_what_is_edited_while_it_is_compiled_is_compiled_again(self):
        self.assertEqual(self.compile(NVCC_MEANWHILE="edited"), ("-O3 kernel\nsizes\n", 1))
        image, header = (self.checkout / name for name in ("kernels.fatbin", "sizes.h"))
        self.assertLess(image.stat().st_mtime_ns, header.stat().st_mtime_ns, "Ninja must see that the image is old")
        self.assertEqual(self.compile(), ("-O3 kernel\nedited\n", 2))
        self.assertEqual(self.compile(), ("-O3 kernel\nedited\n", 2))

    def test_an_entry_that_another_build_removes_is_compiled(self):
        self.compile()
        tools = self.folder / "tools"
        tools.mkdir()
        copy = tools / "cp"  # the other one is a moment earlier
        copy.write_text(f'#!/bin/bash\nrm -f "$XDG_CACHE_HOME"/towline/kernels/*\nexec {shutil.which("cp")} "$@"\n')
        copy.chmod(0o755)
        self.assertEqual(self.compile(PATH=f"{tools}:{os.environ['PATH']}"), ("-O3 kernel\nsizes\n", 2))

    def test_builds_at_once_share_the_cache(self):
        checkouts = [self.make_checkout(f"at-once-{number}") for number in range(8)]
        with concurrent.futures.ThreadPoolExecutor(len(checkouts)) as pool:
            images = list(pool.map(lambda checkout: self.compile(checkout=checkout)[0], checkouts))
        self.assertEqual(set(images), {"-O3 kernel\nsizes\n"})
        kept = sorted(path.suffix for path in (self.folder / "cache" / "towline" / "kernels").iterdir())
        self.assertEqual(kept, [".fatbin", ".sums"])

    def test_without_the_cache_it_is_compiled(self):
        self.compile()
        self.assertEqual(self.compile(TOWLINE_NO_KERNEL_CACHE="1")[1], 2)


if __name__ == "__main__":
    unittest.main()
