#!/usr/bin/env python3
"""`towline bench --fabric` between two hosts: `--listen` in one network namespace, `--connect` in another.

Where this process may not make namespaces, both sides run in its own one, over loopback.

Usage: fabric_bench.py TOWLINE RAIL
"""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator

SIDES = ("10.77.24.1", "10.77.24.2")
LIST = ["--sizes", "4KiB,64KiB", "--batches", "64", "--span", "8MiB", "--iterations", "3"]
ROWS = 2 * 2 * 2 + 1  # paged and single, write and read, two sizes; and immediates


def ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, stderr=subprocess.DEVNULL)


@contextlib.contextmanager
def hosts() -> Iterator[list[tuple[list[str], str]]]:
    """How to run a program on each of two hosts, and the host's address."""
    names = [f"tlf{os.getpid()}{side}" for side in "ab"]
    with contextlib.ExitStack() as made:
        try:
            for name in names:
                ip("netns", "add", name)
                made.callback(subprocess.run, ["ip", "netns", "del", name], check=False)
            ip("link", "add", names[0], "netns", names[0], "type", "veth", "peer", "name", names[1], "netns", names[1])
            for name, address in zip(names, SIDES, strict=True):
                ip("-n", name, "address", "add", f"{address}/24", "dev", name)
                for device in ("lo", name):
                    ip("-n", name, "link", "set", device, "up")
        except (OSError, subprocess.CalledProcessError):
            made.close()
            print("no network namespaces here: both sides use loopback")
            yield [([], "127.0.0.1"), ([], "127.0.0.1")]
            return
        yield [(["ip", "netns", "exec", name], address) for name, address in zip(names, SIDES, strict=True)]


def main() -> int:
    towline, rail = sys.argv[1:]
    with hosts() as ((enter_owner, owners), (enter_mover, movers)):
        # Without an address libfabric would take loopback as long as the kernel has not noticed that the link is up.
        bench = [towline, "bench", "--fabric", f"{rail}@{owners}"]
        owner = subprocess.Popen(
            [*enter_owner, *bench, "--listen", f"{owners}:0", *LIST], stderr=subprocess.PIPE, text=True
        )
        try:
            assert owner.stderr is not None
            invitation = next(line for line in owner.stderr if "--connect" in line).split()[-1]
            bench = [towline, "bench", "--fabric", f"{rail}@{movers}"]
            mover = [*enter_mover, *bench, "--connect", invitation, *LIST, "--json"]
            moved = subprocess.run(mover, stdout=subprocess.PIPE, text=True, timeout=90, check=True)
        finally:
            owner.terminate()
            owner.wait(timeout=20)
    printed = json.loads(moved.stdout)
    rows = printed["rows"]
    wrong = [row for row in rows if row["wrong_bytes"] != 0]
    print(f"{len(rows)} rows, {len(wrong)} with wrong bytes")
    return 0 if printed["schema"] == 1 and len(rows) == ROWS and not wrong else 1


if __name__ == "__main__":
    sys.exit(main())
