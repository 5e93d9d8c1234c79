#!/usr/bin/env python3
"""Checks how much thread-local storage built libraries have, and whether it is static.

    check_thread_storage.py [--static BYTES] LIBRARY...

A process that loads a library late has about 1.6 KB for the static thread-local storage of all such libraries (glibc): one
that finds no room does not load. So storage that is static has BYTES at most (0, if it is not given: none may be), and
other storage has 64. See src/base/per_thread.h.
"""

import argparse
import re
import subprocess
import sys

OTHER = 64


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def problem_of(library: str, most_static: int) -> str:
    segment = re.search(r"^ *TLS +(?:0x[0-9a-f]+ +){4}(0x[0-9a-f]+)", run("readelf", "--wide", "--program-headers", library), re.M)
    size = int(segment[1], 16) if segment else 0
    static = "STATIC_TLS" in run("readelf", "--wide", "--dynamic", library)
    if static and most_static == 0:
        return f"has {size} bytes of static thread-local storage: what makes it static (initial-exec, InUse) belongs in libtowline.so"
    if size > (most_static if static else OTHER):
        return f"has {size} bytes of thread-local storage, more than {most_static if static else OTHER}: keep large objects in PerThread"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--static", type=int, default=0)
    parser.add_argument("libraries", nargs="+")
    arguments = parser.parse_args()
    problems = 0
    for library in arguments.libraries:
        if problem := problem_of(library, arguments.static):
            print(f"{library} {problem}")
            problems += 1
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
