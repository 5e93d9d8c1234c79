#!/usr/bin/env python3
"""Draws tables of bench/results as SVG files in bench/results/plots. Needs matplotlib.

    bench/plots.py           draws
    bench/plots.py --check   compares: exits 1 if a table has changed since its plot was drawn; needs no matplotlib

Only what stands in a table is drawn. A cell holds one number or `median [min max]`, drawn with whiskers; of several
values the mean is drawn, with whiskers at the least and the largest.
"""

import argparse
import hashlib
import pathlib
import re
import sys
from dataclasses import dataclass

RESULTS = pathlib.Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Plot:
    name: str
    page: str
    table: int  # its number on the page
    title: str
    axis: str
    columns: dict  # number of the column: its name in the legend
    rows: str  # a pattern of the first cells
    line: float | None = None  # drawn across: where both are equal


PLOTS = [
    Plot("two-processes", "2026-11-two-processes.md", 2, "WRITE between two processes, compared with NIXL 1.5.1",
         "times as fast as NIXL", {1: "mapped memory", 2: "process_vm", 4: "ring", 5: "TCP (NIXL: TCP)"}, "^WRITE", 1),
    Plot("nixl", "2026-11-nixl.md", 0, "The same Python calls: towline-nixl compared with NIXL 1.5.1",
         "times as fast as NIXL", {1: "ordinary memory", 2: "shared memory", 3: "TCP"}, "^READ", 1),
    Plot("gpu", "2026-11-gpu.md", 2, "GPU to GPU over NVLink", "GB/s",
         {1: "Towline", 2: "NIXL", 3: "NIXL, 8 worker threads"}, "^(?!.*, us$)"),
    Plot("files", "2026-11-files.md", 0, "Cached files", "times as fast",
         {6: "as the best bare program", 7: "as NIXL's POSIX plugin"}, "^READ", 1),
    Plot("objects", "2026-11-objects.md", 0, "Whole objects, compared with the better of s5cmd and Amazon's CRT client",
         "times as fast", {3: "Towline"}, ".", 1),
    Plot("staging", "2026-11-staging.md", 1, "A peer's memory and a file, compared with the slower leg alone",
         "times as fast", {5: "one transfer"}, ".", 1),
    Plot("collectives-one-host", "2026-11-collectives-one-host.md", 0, "all_reduce on one host, 2 ranks",
         "microseconds", {2: "bare program", 3: "Towline", 4: "Open MPI 4.1"}, "^all_reduce"),
    Plot("collectives-on-gpu", "2026-11-collectives-on-gpu.md", 0, "all_reduce of ranks that share one GPU",
         "microseconds", {1: "2 ranks", 2: "4 ranks", 3: "8 ranks"}, "."),
    Plot("collectives-two-hosts", "2026-11-collectives-two-hosts.md", 0, "all_reduce between two hosts",
         "microseconds", {2: "gloo", 3: "torch.distributed on Towline", 4: "towline.collectives"}, "^all_reduce"),
    Plot("torch-distributed", "2026-11-torch-distributed.md", 0, "all_reduce through torch.distributed, 2 ranks",
         "microseconds", {2: "gloo", 3: "Towline"}, "^all_reduce"),
]


def tables_of(page):
    """Every table of a page: its rows, without the headings, as lists of texts."""
    tables, rows = [], []
    for line in page.read_text().splitlines() + [""]:
        if line.startswith("|"):
            cells = [cell.strip() for cell in line.strip().strip("|").split("|")]
            rows.append(cells)
        elif rows:
            tables.append(rows[2:])  # after the headings and their rule
            rows = []
    return tables


def rows_of(plot):
    return [row for row in tables_of(RESULTS / plot.page)[plot.table] if re.search(plot.rows, row[0])]


def checksum(plot):
    return hashlib.sha256(repr((rows_of(plot), plot)).encode()).hexdigest()[:16]


def value(cell):
    """(middle, least, largest) of a cell; None: nothing was measured."""
    numbers = [float(text.replace(",", "")) for text in re.findall(r"\d[\d,]*\.?\d*", cell.split(";")[0].replace(", ", " "))]
    if not numbers:
        return None
    if "[" in cell:
        return numbers[0], numbers[1], numbers[2]
    return sum(numbers) / len(numbers), min(numbers), max(numbers)


def labels_of(plot, rows):
    """The first cells, and the second where it is a size."""
    return [" ".join(row[:2]) if min(plot.columns) > 1 and plot.rows.startswith("^all") else row[0] for row in rows]


def draw(plot, path):
    import matplotlib

    matplotlib.use("svg")
    matplotlib.rcParams.update({"svg.hashsalt": "towline", "svg.fonttype": "none", "font.size": 9})
    from matplotlib import pyplot

    rows = rows_of(plot)
    colours = ["#1f77b4", "#ff7f0e", "#7f7f7f", "#2ca02c"]
    figure, axes = pyplot.subplots(figsize=(8, 0.9 + 0.11 * len(rows) * (len(plot.columns) + 1)), layout="constrained")
    height = 0.8 / len(plot.columns)
    for number, (column, legend) in enumerate(plot.columns.items()):
        places, middles, below, above = [], [], [], []
        for place, row in enumerate(rows):
            found = value(row[column]) if column < len(row) else None
            if found is None:
                continue
            middle, least, largest = found
            places.append(place + (number - (len(plot.columns) - 1) / 2) * height)
            middles.append(middle)
            below.append(middle - least)
            above.append(largest - middle)
        axes.errorbar(middles, places, xerr=[below, above], fmt="o", markersize=4, label=legend,
                      color=colours[number], elinewidth=1)
    axes.set_xscale("log")
    if plot.line is not None:
        axes.axvline(plot.line, color="#404040", linewidth=0.8)
    axes.xaxis.set_major_formatter(matplotlib.ticker.FuncFormatter(lambda number, _: f"{number:g}"))
    axes.set_yticks(range(len(rows)), labels_of(plot, rows))
    axes.invert_yaxis()
    axes.set_xlabel(plot.axis)
    axes.set_title(plot.title, loc="left")
    axes.grid(axis="x", linewidth=0.3)
    if len(plot.columns) > 1:
        axes.legend(fontsize=8)
    figure.savefig(path, metadata={"Date": None, "Description": f"table {checksum(plot)} of {plot.page}"})
    pyplot.close(figure)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--check", action="store_true")
    check = parser.parse_args().check
    folder = RESULTS / "plots"
    folder.mkdir(exist_ok=True)
    stale = []
    for plot in PLOTS:
        path = folder / f"{plot.name}.svg"
        if not check:
            draw(plot, path)
        elif not path.exists() or checksum(plot) not in path.read_text():
            stale.append(path.name)
    if stale:
        print(f"draw again with bench/plots.py, since their tables have changed: {', '.join(stale)}", file=sys.stderr)
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
