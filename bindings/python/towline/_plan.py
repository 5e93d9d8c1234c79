"""Block lists by pages, and groups of posts."""

from __future__ import annotations

from typing import Any, NamedTuple

from . import _core, _errors
from ._layout import View

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Generator

    from ._agent import Agent
    from ._errors import Status


class PickedBlocks(NamedTuple):
    """Some blocks of a list, in order: `list[picks]`. The picks are not copied."""

    list: _core.BlockList
    picks: Any


def pick(blocks: _core.BlockList, picks: Any) -> PickedBlocks:
    """blocks[picks]: None, a slice or range, an integer, integers, or an array of 4- or 8-byte integers."""
    if isinstance(picks, int) and not -len(blocks) <= picks < len(blocks):
        raise IndexError(f"block {picks} of a list of {len(blocks)}")
    return PickedBlocks(blocks, picks + len(blocks) if isinstance(picks, int) and picks < 0 else picks)


def picked(what: _core.BlockList | PickedBlocks | View) -> tuple[_core.BlockList, Any]:
    if isinstance(what, View):
        return what.list, what.picks()
    if isinstance(what, PickedBlocks):
        return what.list, what.picks
    if isinstance(what, _core.BlockList):
        return what, None
    raise _errors.InvalidArgument(f"a View, a BlockList, or some of its blocks (list[picks]), not {type(what).__name__}")


def whole(what: _core.BlockList | View) -> _core.BlockList:
    """The list of a plan, whose posts pick."""
    if isinstance(what, View) and all(
        choice is None or (isinstance(choice, range) and choice == range(count))
        for choice, count in zip(what._choices, what._counts)
    ):
        return what.list
    if isinstance(what, _core.BlockList):
        return what
    if isinstance(what, (View, PickedBlocks)):
        raise _errors.InvalidArgument("a plan is made between whole lists: its posts bring the picks (plan.post(from_picks, to_picks))")
    raise _errors.InvalidArgument(f"a plan is made between lists of blocks or views of regions, not {type(what).__name__}")


def pair(
    from_: _core.BlockList | PickedBlocks | View, to: _core.BlockList | PickedBlocks | View
) -> tuple[_core.BlockList, Any, _core.BlockList, Any]:
    """The lists and picks of both. Raises Mismatch for views of other shapes."""
    if isinstance(from_, View) and isinstance(to, View) and from_.shape != to.shape:
        raise _errors.Mismatch(f"copy: {from_!r} does not pair with {to!r}")
    return *picked(from_), *picked(to)


class Group:
    """Posts that end as one. `with agent.group() as group: group.copy(theirs[pages], mine[pages])`."""

    __slots__ = ("_agent", "_native")

    def __init__(
        self,
        agent: Agent,
        notice: bytes | None,
        counter: int | tuple[int, int] | None,
        timeout: float | None,
        priority: str,
        awaitable: bool | None,
        tag: int = 0,
    ) -> None:
        self._agent = agent
        self._native = _core._make_group(agent, notice, counter, timeout, priority, awaitable, tag)

    def add(
        self, plan: _core.Plan, from_picks: Any = None, to_picks: Any = None, *, stream: Any = None
    ) -> _core.Post:
        """Posts a member. Raises Again without credit: add it again. Any other error ends the group."""
        return plan.post(from_picks, to_picks, stream=stream, group=self._native)

    def copy(
        self,
        from_: _core.BlockList | PickedBlocks | View,
        to: _core.BlockList | PickedBlocks | View,
        *,
        stream: Any = None,
    ) -> _core.Post:
        """Posts a member, as Agent.copy() does."""
        source, from_picks, target, to_picks = pair(from_, to)
        return self.add(self._agent._plan_of(source, target), from_picks, to_picks, stream=stream)

    async def add_async(
        self, plan: _core.Plan, from_picks: Any = None, to_picks: Any = None, *, stream: Any = None
    ) -> _core.Post:
        """add() that waits for credit."""
        return await plan.post_async(from_picks, to_picks, stream=stream, group=self._native)

    async def copy_async(
        self,
        from_: _core.BlockList | PickedBlocks | View,
        to: _core.BlockList | PickedBlocks | View,
        *,
        stream: Any = None,
    ) -> _core.Post:
        """copy() that waits for a connection and for credit."""
        from ._asyncio import reach

        source, from_picks, target, to_picks = pair(from_, to)
        await reach(source, target)
        return await self.add_async(self._agent._plan_of(source, target), from_picks, to_picks, stream=stream)

    def close(self) -> Status:
        """No more members come. OK: all is done; IN_PROGRESS. Raises if it was closed before."""
        return self._native.close()

    def poll(self) -> Status:
        """OK or IN_PROGRESS; raises if it failed."""
        return self._native.poll()

    def wait(self, timeout: float | None = None) -> Status:
        """Waits for the outcome, and raises if it failed; NotYet if the timeout is first."""
        return self._native.wait(timeout)

    def wait_fenced(self, fences: str = "both", timeout: float | None = None) -> None:
        """After a failure: waits until no byte of any member can land, or be read, any more. fences: "local", "remote" or
        "both". Raises NotYet, and Unsupported at once where a backend can't say when that is."""
        self._native.wait_fenced(fences, timeout)

    async def wait_fenced_async(self, fences: str = "both", timeout: float | None = None) -> None:
        """wait_fenced() for event loops."""
        from ._asyncio import wait_fenced

        await wait_fenced(self._native, fences, timeout)

    def cancel(self) -> None:
        """Ends it, and every member in flight. Wait for the fence before reusing the memory."""
        self._native.cancel()

    def set_limit(self, bytes_per_s: int) -> None:
        """Limits what its members move together; 0: no limit."""
        self._native.set_limit(bytes_per_s)

    @property
    def result(self) -> _core.GroupResult:
        """Its result so far."""
        return self._native.result

    def __await__(self) -> Generator[Any, None, None]:
        from ._asyncio import wait_group

        return wait_group(self._native).__await__()

    def __enter__(self) -> Group:
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
            self.wait()
        else:
            self.cancel()
            try:
                self.wait_fenced("local")
            except _errors.Unsupported:  # there is nothing to wait for
                pass

    async def __aenter__(self) -> Group:
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        if kind is None:
            self.close()
            await self
        else:
            from ._asyncio import fence

            self.cancel()
            await fence(self._native)

    def __repr__(self) -> str:
        result = self.result
        return f"Group(members={result.members}, status={result.status.name})"
