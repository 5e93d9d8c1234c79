#!/usr/bin/env python3
"""NIXL's plugin POSIX loaded by Towline's drop-in and by NIXL's own agent, at the same file, taking turns.

Both are driven by bench/peers/nixl/files.py through the same Python calls. Ratios are NIXL's time over Towline's within a
round: above 1 the plugin is faster in Towline. Each reads once per cell what the other wrote.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import random
import statistics
import subprocess
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
CELLS = [(4 << 10, 1), (4 << 10, 64), (4 << 10, 1024), (64 << 10, 64), (1 << 20, 16)]


class Side:
    def __init__(self, python: pathlib.Path, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [str(python), str(ROOT / "bench/peers/nixl/files.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, "NIXL_LOG_LEVEL": "WARN", **environment},
        )  # fmt: skip

    def ask(self, **request) -> dict:
        print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a side has ended")
        answer = json.loads(line)
        if "error" in answer:
            raise SystemExit(answer["error"])
        return answer

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


def check(writer: Side, reader: Side, epoch: int, **cell) -> None:
    """What one writes the other reads."""
    writer.ask(do="prepare", op="WRITE", **cell)
    writer.ask(do="stamp", epoch=epoch)
    writer.ask(do="run", iterations=1)
    reader.ask(do="prepare", op="READ", **cell)
    reader.ask(do="stamp", epoch=0)
    reader.ask(do="run", iterations=1)
    if wrong := reader.ask(do="verify", epoch=epoch)["wrong"]:
        raise SystemExit(f"{wrong} blocks of {cell['block']} bytes are wrong")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nixl-python", type=pathlib.Path, default=ROOT / "build/peers/nixl/bin/python",
                        help="interpreter that bench/peers/nixl/setup printed")
    parser.add_argument("--towline-python", type=pathlib.Path, default=ROOT / "build/venv/bin/python",
                        help="interpreter with the wheel towline-nixl")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("."), help="where the file is made")
    parser.add_argument("--span", type=int, default=256, help="MiB of the file")
    parser.add_argument("--engine", default="use_uring", choices=["use_uring", "use_aio", "use_posix_aio"])
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--time", type=float, default=0.2, help="seconds of a side in each round")
    args = parser.parse_args()
    plugins = "lib/python*/site-packages/.nixl_cu13.mesonpy.libs/plugins/libplugin_POSIX.so"
    found = sorted(args.nixl_python.parent.parent.glob(plugins))
    if not found:
        raise SystemExit(f"{args.nixl_python} has no NIXL with the plugin POSIX: run bench/peers/nixl/setup")
    towline = {"NIXL_PLUGIN_DIR": str(found[0].parent), "TOWLINE_NIXL_PLUGINS": "POSIX"}
    span = args.span << 20
    with tempfile.NamedTemporaryFile(dir=args.folder) as file:
        for _ in range(args.span):
            file.write(os.urandom(1 << 20))
        file.flush()
        sides = {"towline": Side(args.towline_python, towline), "nixl": Side(args.nixl_python, {})}
        try:
            for side in sides.values():
                side.ask(do="setup", span=span, path=file.name, direct=False, engine=args.engine)
            print(f"{args.engine}, {args.span} MiB cached, {args.rounds} rounds")
            print("| cell | NIXL us | Towline us | ratio [min max] |\n|---|---|---|---|")
            for op in ("READ", "WRITE"):
                for block, count in CELLS:
                    places = random.Random(block * count).sample(range(span // block), 2 * count)
                    cell = {"block": block, "local": places[:count], "remote": places[count:]}
                    check(sides["towline"], sides["nixl"], 1, **cell)
                    check(sides["nixl"], sides["towline"], 2, **cell)
                    for side in sides.values():
                        side.ask(do="prepare", op=op, **cell)
                    once = max(side.ask(do="run", iterations=1)["seconds"] for side in sides.values())
                    iterations = max(1, int(args.time / once))
                    took: dict[str, list[float]] = {name: [] for name in sides}
                    for turn in range(args.rounds):
                        for name in list(sides)[:: 1 if turn % 2 else -1]:
                            took[name].append(sides[name].ask(do="run", iterations=iterations)["seconds"] / iterations)
                    ratios = sorted(n / t for n, t in zip(took["nixl"], took["towline"]))
                    us = {name: 1e6 * statistics.median(times) for name, times in took.items()}
                    print(f"| {op} {block >> 10} KiB x {count} | {us['nixl']:.1f} | {us['towline']:.1f} | "
                          f"{statistics.median(ratios):.2f} [{ratios[0]:.2f} {ratios[-1]:.2f}] |", flush=True)  # fmt: skip
        finally:
            for side in sides.values():
                side.end()


if __name__ == "__main__":
    main()
