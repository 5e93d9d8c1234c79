#!/usr/bin/env python3
"""Checks libtcpx_p2p: both libraries can be loaded at any address, the shared one exports its functions alone, and any linker takes
the static one.

    check_libraries.py libtcpx_p2p.so libtcpx_p2p.a
"""

import pathlib
import subprocess
import sys
import tempfile


def run(*command: str) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def problems_of(library: str) -> list[str]:
    problems = []
    if "TEXTREL" in run("readelf", "--wide", "--dynamic", library):
        problems.append("has relocations in its code (TEXTREL)")
    for line in run("nm", "--dynamic", "--defined-only", "--extern-only", library).splitlines():
        symbol = line.split()[-1]
        if not symbol.startswith(("tcpx_", "__odr_asan", "_ZTI", "_ZTS", "_ZNSt", "_ZSt", "_ZGR", "_ZN9__gnu_cxx", "_ZZNSt", "_ZNK", "_ZTV")):
            problems.append(f"exports {symbol}")
    return problems


def main(shared: str, static: str) -> int:
    problems = [f"{shared} {problem}" for problem in problems_of(shared)]
    if ".gnu.lto_" in run("readelf", "--wide", "--sections", static):
        problems.append(f"{static} has intermediate code, which other compilers and versions can't link")
    # All of the static library as a shared one: code that isn't position independent does not link, or leaves TEXTREL.
    with tempfile.TemporaryDirectory() as folder:
        whole = str(pathlib.Path(folder) / "whole.so")
        command = ["c++", "-shared", "-o", whole, "-Wl,-z,text", "-Wl,--whole-archive", static, "-Wl,--no-whole-archive"]
        linked = subprocess.run(command, capture_output=True, text=True, check=False)
        if linked.returncode != 0:
            problems.append(f"{static} is not position independent: {linked.stderr.strip()[-500:]}")
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
