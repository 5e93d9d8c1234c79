#!/usr/bin/env python3
"""NIXL's plugin POSIX loaded by Towline's drop-in and by NIXL's own agent, at the same file, taking turns.

Both are driven by bench/peers/nixl/files.py through the same Python calls. Ratios are NIXL's time over Towline's within a
round: above 1 the plugin is faster in Towline. Each reads once per cell what the other wrote. A second process with NIXL's own
agent shows what of a ratio is noise. A process may be slow for its whole life where the kernel's workers do the writing, so
every start takes new processes, and the ratios of all starts are taken together.
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


def measure(sides: dict[str, Side], op: str, block: int, count: int, span: int, args) -> list[dict[str, float]]:
    """Seconds of one run by each side, for every round."""
    places = random.Random(block * count).sample(range(span // block), 2 * count)
    cell = {"block": block, "local": places[:count], "remote": places[count:]}
    check(sides["towline"], sides["nixl"], 1, **cell)
    check(sides["nixl"], sides["towline"], 2, **cell)
    for side in sides.values():
        side.ask(do="prepare", op=op, **cell)
    once = max(side.ask(do="run", iterations=1)["seconds"] for side in sides.values())
    iterations = max(1, int(args.time / once))
    rounds = []
    for turn in range(args.rounds):
        names = list(sides)[turn % len(sides) :] + list(sides)[: turn % len(sides)]
        rounds.append({name: sides[name].ask(do="run", iterations=iterations)["seconds"] / iterations for name in names})
    return rounds


def ratios(rounds: list[dict[str, float]], name: str) -> str:
    values = sorted(one["nixl"] / one[name] for one in rounds)
    return f"{statistics.median(values):.2f} [{values[0]:.2f} {values[-1]:.2f}]"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--nixl-python", type=pathlib.Path, default=ROOT / "build/peers/nixl/bin/python",
                        help="interpreter that bench/peers/nixl/setup printed")
    parser.add_argument("--towline-python", type=pathlib.Path, default=ROOT / "build/venv/bin/python",
                        help="interpreter with the wheel towline-nixl")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("."), help="where the file is made")
    parser.add_argument("--span", type=int, default=256, help="MiB of the file")
    parser.add_argument("--engine", default="use_uring", choices=["use_uring", "use_aio", "use_posix_aio"])
    parser.add_argument("--operations", nargs="+", default=["READ", "WRITE"], choices=["READ", "WRITE"])
    parser.add_argument("--starts", type=int, default=5, help="of new processes")
    parser.add_argument("--rounds", type=int, default=9, help="of each start")
    parser.add_argument("--time", type=float, default=0.05, help="seconds of a side in each round")
    args = parser.parse_args()
    plugins = "lib/python*/site-packages/.nixl_cu13.mesonpy.libs/plugins/libplugin_POSIX.so"
    found = sorted(args.nixl_python.parent.parent.glob(plugins))
    if not found:
        raise SystemExit(f"{args.nixl_python} has no NIXL with the plugin POSIX: run bench/peers/nixl/setup")
    towline = {"NIXL_PLUGIN_DIR": str(found[0].parent), "TOWLINE_NIXL_PLUGINS": "POSIX"}
    span = args.span << 20
    samples: dict[tuple, list[dict[str, float]]] = {(op, *cell): [] for op in args.operations for cell in CELLS}
    with tempfile.NamedTemporaryFile(dir=args.folder) as file:
        for _ in range(args.span):
            file.write(os.urandom(1 << 20))
        file.flush()
        for _ in range(args.starts):
            sides = {"towline": Side(args.towline_python, towline), "nixl": Side(args.nixl_python, {}),
                     "again": Side(args.nixl_python, {})}  # fmt: skip
            try:
                for side in sides.values():
                    side.ask(do="setup", span=span, path=file.name, direct=False, engine=args.engine)
                for cell, rounds in samples.items():
                    rounds.extend(measure(sides, *cell, span, args))
            finally:
                for side in sides.values():
                    side.end()
    print(f"{args.engine}, {args.span} MiB cached, {args.starts} starts of {args.rounds} rounds")
    print("| cell | NIXL us | Towline us | ratio [min max] | NIXL beside itself |\n|---|---|---|---|---|")
    for (op, block, count), rounds in samples.items():
        us = {name: 1e6 * statistics.median(one[name] for one in rounds) for name in ("nixl", "towline")}
        print(f"| {op} {block >> 10} KiB x {count} | {us['nixl']:.1f} | {us['towline']:.1f} | "
              f"{ratios(rounds, 'towline')} | {ratios(rounds, 'again')} |")  # fmt: skip


if __name__ == "__main__":
    main()
