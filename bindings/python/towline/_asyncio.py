"""From an agent's events to event loops. Imported when something is first awaited.

The agent's event descriptor is readable while completions or notices wait to be pulled. Each loop that waits for
something of the agent watches it; whichever wakes up first pulls everything and wakes the waiters, in whatever loop they
are. There is no thread of its own, and no polling, but for agents whose caller makes progress.
"""

from __future__ import annotations

import asyncio
import functools
import weakref
from collections import deque
from typing import Any

from . import _core, _errors
from ._errors import Status

_AGAIN_SECONDS = 0.0005  # between two attempts to post while the peer gives no credit


class Hub:
    """Who waits for what of one agent. Holds it weakly: a loop must not keep an agent open."""

    def __init__(self, agent: _core.Agent) -> None:
        self._agent = weakref.ref(agent)
        self._fd = agent.event_fd
        self._hosted = agent.hosted
        self._loops: set[asyncio.AbstractEventLoop] = set()
        self._transfers: dict[int, list[asyncio.Future[None]]] = {}
        self._notices: deque[asyncio.Future[None]] = deque()
        self._driving = False

    def wait_transfer(self, number: int) -> asyncio.Future[None]:
        future = self._attach().create_future()
        self._transfers.setdefault(number, []).append(future)
        return future

    def forget_transfer(self, number: int, future: asyncio.Future[None]) -> None:
        waiting = self._transfers.get(number)
        if waiting is not None and future in waiting:
            waiting.remove(future)
            if not waiting:
                del self._transfers[number]

    def wait_notice(self) -> asyncio.Future[None]:
        future = self._attach().create_future()
        self._notices.append(future)
        return future

    def detach(self) -> None:
        """Watches no more."""
        loops, self._loops = self._loops, set()
        for loop in loops:
            if loop.is_closed():
                continue
            if loop is asyncio._get_running_loop() or not loop.is_running():
                loop.remove_reader(self._fd)
            else:
                loop.call_soon_threadsafe(loop.remove_reader, self._fd)

    def wake_all(self) -> None:
        """Lets everyone who waits look again."""
        for number in list(self._transfers):
            self._wake(self._transfers.pop(number))
        self._wake_notices()

    def _attach(self) -> asyncio.AbstractEventLoop:
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            self._loops = {other for other in self._loops if not other.is_closed()}
            loop.add_reader(self._fd, self._ready)
            self._loops.add(loop)
        if not self._hosted and not self._driving:
            self._driving = True
            loop.call_soon(self._drive, loop)
        return loop

    def _ready(self) -> None:
        agent = self._agent()
        if agent is None or agent.closed:
            return
        try:
            for number in agent._pull():
                self._wake(self._transfers.pop(number, ()))
            if any(not future.done() for future in self._notices):
                self._wake_notices()
            else:
                self._notices.clear()
                agent._put_aside()
        except (_errors.Closed, _errors.Forked):
            self.detach()

    def _drive(self, loop: asyncio.AbstractEventLoop) -> None:
        agent = self._agent()
        self._notices = deque(future for future in self._notices if not future.done())
        self._driving = agent is not None and not agent.closed and bool(self._transfers or self._notices)
        if agent is not None and self._driving:
            agent.progress()
            loop.call_soon(self._drive, loop)

    def _wake_notices(self) -> None:
        waiting, self._notices = self._notices, deque()
        self._wake(waiting)

    @staticmethod
    def _wake(futures: Any) -> None:
        here = asyncio._get_running_loop()
        for future in futures:
            loop = future.get_loop()
            if loop is here:
                _finish(future)
            elif not loop.is_closed():
                loop.call_soon_threadsafe(_finish, future)


def _finish(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


async def wait_transfer(move: _core.Transfer) -> Status:
    """Posts a transfer if that never happened, and waits for its outcome. Cancelling the task cancels the transfer."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + move.timeout
    while not move.posted:
        if move.post() == Status.AGAIN:
            if loop.time() >= deadline:
                raise _errors.Again("the peer gave no credit before the transfer's timeout")
            await asyncio.sleep(_AGAIN_SECONDS)
    if move._look() != Status.IN_PROGRESS:
        return move.poll()
    try:
        if not move.awaitable:
            return await loop.run_in_executor(None, move.wait)
        while move._look() == Status.IN_PROGRESS:
            await _woken(move)
    except asyncio.CancelledError:
        move.cancel()
        raise
    return move.poll()


async def _woken(move: _core.Transfer) -> None:
    """Waits until the end of `move` may have come."""
    hub = move._agent._hub()
    future = hub.wait_transfer(move._id)
    try:
        # The transfer may have ended, and its completion been pulled, before this wait.
        if move._look() == Status.IN_PROGRESS:
            await future
    finally:
        hub.forget_transfer(move._id, future)


async def wait_post(post: _core.Post) -> _core.Result:
    """The result of a post. Cancelling the task cancels the post, and waits until this side's memory is fenced."""
    try:
        await _outcome(post)
    except asyncio.CancelledError:
        post.cancel()
        await fence(post)
        raise
    return post._result()


async def wait_group(group: _core._Group) -> None:
    """The outcome of a group; raises if it failed. Cancelling the task is as for a post."""
    try:
        await _outcome(group)
    except asyncio.CancelledError:
        group.cancel()
        await fence(group)
        raise
    group.poll()


async def _outcome(what: Any) -> None:
    if what._look() != Status.IN_PROGRESS:
        return
    if not what.awaitable:
        await asyncio.get_running_loop().run_in_executor(None, _wait_quietly, what)
    while what._look() == Status.IN_PROGRESS:
        await _woken(what)


def _wait_quietly(what: Any) -> None:
    try:
        what.wait()
    except _errors.Error:  # raised where it is awaited
        pass


async def fence(what: Any) -> None:
    """Not to be cancelled itself: memory that is still written must not be used again."""
    fenced = asyncio.get_running_loop().run_in_executor(None, what.wait_fenced, "local")
    while not fenced.done():
        try:
            await asyncio.shield(fenced)
        except asyncio.CancelledError:
            continue


async def in_thread(call: Any, *arguments: Any, **keywords: Any) -> Any:
    """Runs a blocking call on a thread of the executor and returns its result. Cancelling the task does not end the call."""
    return await asyncio.get_running_loop().run_in_executor(None, functools.partial(call, *arguments, **keywords))


async def wait_call(call: _core.DirectoryCall) -> Any:
    """The result of a directory's call. Cancelling the task cancels the call."""
    if not call.done:
        try:
            await asyncio.get_running_loop().run_in_executor(None, _let_end, call)
        except asyncio.CancelledError:
            call.cancel()
            raise
    return call.wait()


def _let_end(call: _core.DirectoryCall) -> None:
    try:
        call.wait()
    except _errors.Error:  # raised where it is awaited
        pass


async def wait_event(watch: _core.Watch) -> tuple[str, str, bytes]:
    """The next event of a watch."""
    loop = asyncio.get_running_loop()
    while True:
        # In slices, so that the thread stops soon after the task stops awaiting.
        try:
            event = await loop.run_in_executor(None, watch.next, 0.2)
        except _errors.Closed:
            raise StopAsyncIteration from None
        if event is not None:
            return event


class Notices:
    """An agent's notices, one after another."""

    def __init__(self, agent: _core.Agent) -> None:
        self._agent = agent

    def __aiter__(self) -> Notices:
        return self

    async def __anext__(self) -> _core.Notice:
        while True:
            try:
                notice = self._agent.receive(0)
                if notice is not None:
                    return notice
                future = self._agent._hub().wait_notice()
                # A notice may have arrived, and been put aside by another loop, before this wait.
                notice = self._agent.receive(0)
            except _errors.Closed:
                raise StopAsyncIteration from None
            if notice is not None:
                future.cancel()
                return notice
            await future
