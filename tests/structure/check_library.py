#!/usr/bin/env python3
"""Checks the built library: it exports the C API only and needs nothing but libc, libstdc++ and threads.

    check_library.py libtowline.so
"""

import re
import subprocess
import sys

NEEDED = re.compile(r"(libc|libm|libstdc\+\+|libgcc_s|libpthread|libdl|librt|ld-linux[-\w]*)\.so(\.\d+)+")


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def main(library: str) -> int:
    problems = []
    dynamic = run("readelf", "--wide", "--dynamic", library)
    for name in re.findall(r"\(NEEDED\).*\[(.+)\]", dynamic):
        if not NEEDED.fullmatch(name):
            problems.append(f"needs {name} at run time")
    if not re.search(r"\(SONAME\).*\[libtowline\.so\.\d+\]", dynamic):
        problems.append("has no SONAME libtowline.so.<major>")
    for line in run("nm", "--dynamic", "--defined-only", "--extern-only", library).splitlines():
        kind, symbol = line.split()[-2:]
        if kind != "A" and not symbol.startswith("towline_"):
            problems.append(f"exports {symbol}, which is not of the C API")
    for problem in problems:
        print(f"{library} {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
