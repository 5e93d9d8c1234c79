"""Tables of the measurements."""

from __future__ import annotations

import statistics

from rich.console import Console
from rich.table import Table
from rich.text import Text

OURS = "towline"
MIN_WIDTH = 110


class Report:
    """A table for each group, printed when the group is whole."""

    def __init__(self) -> None:
        self.console = Console()
        self.console.width = max(self.console.width, MIN_WIDTH)
        self.table: Table | None = None

    def begin(self, group: str) -> None:
        self.end()
        self.table = Table(title=group, title_justify="left")
        for column in ("", "NIXL", "Towline", "ratio [min max]"):
            self.table.add_column(column, justify="left" if not column else "right", no_wrap=True)

    def add(self, figure) -> None:
        ours = figure.samples[OURS]
        theirs = best_of({name: samples for name, samples in figure.samples.items() if name != OURS})
        ratios = sorted(their / our if our > 0 else float("inf") for our, their in zip(ours, theirs))
        middle = statistics.median(ratios)
        style = "green" if middle >= 2 else "yellow" if middle >= 1 else "red"
        ratio = Text(f"{middle:.2f} [{ratios[0]:.2f} {ratios[-1]:.2f}]", style)
        self.table.add_row(figure.what, shown(figure, theirs), shown(figure, ours), ratio)

    def end(self) -> None:
        if self.table is not None and self.table.row_count:
            self.console.print(self.table)
        self.table = None


def best_of(samples: dict[str, list[float]]) -> list[float]:
    """The samples of the set-up with the smallest median."""
    return min(samples.values(), key=statistics.median)


def shown(figure, samples: list[float]) -> str:
    middle = statistics.median(samples)
    if "share" in figure.what:
        return f"{100 * middle:.2f} %"
    text = time_of(middle)
    if figure.bytes:
        text += f"  {figure.bytes / middle / 1e9:6.2f} GB/s"
    return text


def time_of(seconds: float) -> str:
    for factor, unit in ((1, "s"), (1e-3, "ms"), (1e-6, "us")):
        if seconds >= factor:
            return f"{seconds / factor:.3g} {unit}"
    return f"{seconds / 1e-9:.3g} ns"
