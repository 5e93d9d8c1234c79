"""Named, shaped regions: memory by its place in a layout instead of by its address."""

from __future__ import annotations

from collections import namedtuple

from . import _core

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any, NamedTuple

    class Layout(NamedTuple):
        """Elements of `element_bytes` in up to four nested dimensions, outermost first. strides: in bytes; None: no gaps."""

        element_bytes: int
        counts: tuple[int, ...]
        strides: tuple[int, ...] | None = None

else:

    class Layout(namedtuple("Layout", ("element_bytes", "counts", "strides"), defaults=(None,))):
        """Elements of `element_bytes` in up to four nested dimensions, outermost first. strides: in bytes; None: no gaps."""

        __slots__ = ()


class View:
    """Elements of a region: all of them, or narrowed dimension by dimension, as arrays are.

    `view[3]` fixes the first dimension that nothing has narrowed yet, `view[3, pages]` narrows the next one as well;
    `view.select(1, pages)` narrows a dimension by its number. Picks are integers, slices, ranges, or arrays of 4- or
    8-byte integers, which are not copied.
    """

    __slots__ = ("_choices", "_counts", "_list", "_name")

    def __init__(self, blocks: _core.BlockList, name: str, counts: tuple[int, ...], choices: tuple[Any, ...]) -> None:
        self._list = blocks
        self._name = name
        self._counts = counts
        self._choices = choices

    def __getitem__(self, picks: Any) -> View:
        view = self
        for pick in picks if isinstance(picks, tuple) else (picks,):
            try:
                dimension = view._choices.index(None)
            except ValueError:
                raise IndexError(f"region {self._name!r} has {len(self._counts)} dimensions, all of them narrowed") from None
            view = view.select(dimension, pick)
        return view

    def select(self, dimension: int, picks: Any) -> View:
        """Narrows a dimension of the region's layout, counted from 0; an integer fixes it, None takes all of it."""
        if not 0 <= dimension < len(self._counts):
            raise IndexError(f"region {self._name!r} has {len(self._counts)} dimensions: there is no dimension {dimension}")
        count = self._counts[dimension]
        choices = list(self._choices)
        choices[dimension] = None if picks is None else _choice(picks, count, dimension, self._name)
        return View(self._list, self._name, self._counts, tuple(choices))

    @property
    def name(self) -> str:
        """The region's name."""
        return self._name

    @property
    def layout(self) -> Layout | None:
        """The layout of the whole region."""
        return self._list.layout

    @property
    def peer(self) -> _core.Peer | None:
        """The peer that owns the memory; None: this agent."""
        return self._list.peer

    @property
    def shape(self) -> tuple[int, ...]:
        """How many elements in each dimension that no integer fixed."""
        return tuple(
            count if choice is None else len(choice)
            for count, choice in zip(self._counts, self._choices)
            if not isinstance(choice, int)
        )

    @property
    def blocks(self) -> int:
        """How many elements are picked."""
        total = 1
        for count in self.shape:
            total *= count
        return total

    @property
    def nbytes(self) -> int:
        """The bytes of the picked elements together."""
        return self.blocks * (self._list.nbytes // max(len(self._list), 1))

    @property
    def list(self) -> _core.BlockList:
        """All of the region's elements, for plans."""
        return self._list

    def picks(self) -> Any:
        """Its elements as picks of `list`."""
        whole = self._as_range()
        return whole if whole is not None else self._list._select(self._choices)

    def _as_range(self) -> range | None:
        """For integers, then at most one dimension that is a range, then whole dimensions."""
        below = len(self._list)
        start, count, step, fixed = 0, below, 1, True
        for of, choice in zip(self._counts, self._choices):
            below //= of
            if not fixed:
                if choice is not None:
                    return None
            elif choice is None:
                fixed = False
            elif isinstance(choice, int):
                start, count = start + choice * below, below
            elif isinstance(choice, range):
                if choice.step != 1 and below != 1:
                    return None
                start, count, step, fixed = start + choice.start * below, len(choice) * below, choice.step, False
            else:
                return None
        return range(start, start + count * step, step)

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError(f"a single element of region {self._name!r} has no length")
        return self.shape[0]

    def __iter__(self) -> Iterator[View]:
        dimension = next((i for i, choice in enumerate(self._choices) if not isinstance(choice, int)), None)
        if dimension is None:
            raise TypeError(f"a single element of region {self._name!r} can't be iterated")
        choice = self._choices[dimension]
        for index in range(self._counts[dimension]) if choice is None else choice:
            yield self.select(dimension, int(index))

    def __repr__(self) -> str:
        of = "" if self.peer is None else f", peer={self.peer.name!r}"
        return f"View({self._name!r}, shape={self.shape}{of})"


def _choice(picks: Any, count: int, dimension: int, name: str) -> Any:
    """An int, a range or something with a length."""
    if isinstance(picks, int) or (hasattr(picks, "__index__") and not hasattr(picks, "__len__")):
        index = int(picks.__index__())
        if not -count <= index < count:
            raise IndexError(f"index {index} is out of range: dimension {dimension} of region {name!r} has {count}")
        return index % count
    if isinstance(picks, slice):
        return range(*picks.indices(count))
    if isinstance(picks, range):
        if len(picks) and not (0 <= min(picks[0], picks[-1]) and max(picks[0], picks[-1]) < count):
            raise IndexError(f"{picks} leaves dimension {dimension} of region {name!r}, which has {count}")
        return picks
    if isinstance(picks, (str, bytes, dict)) or not (hasattr(picks, "__len__") or hasattr(picks, "__iter__")):
        raise TypeError(
            f"dimension {dimension} of region {name!r} is narrowed by an integer, a slice, a range or integers, "
            f"not by {type(picks).__name__}"
        )
    return picks if hasattr(picks, "__len__") else list(picks)


def _view(blocks: _core.BlockList, name: str) -> View:
    layout = blocks.layout
    counts = () if layout is None else layout.counts
    return View(blocks, name, counts, (None,) * len(counts))


def region_view(region: _core.Region) -> View:
    return _view(_core._region_list(region), region.name or "")


def peer_view(peer: _core.Peer, name: str) -> View:
    return _view(_core._peer_region_list(peer, name), name)
