"""From an agent's events to event loops. Imported when something is first awaited.

The library tells an event queue of all that is awaited, and its descriptor is readable while events wait. Each loop in
which somebody waits watches it; whichever wakes up first takes the events and wakes the waiters, in whatever loop they are.
There is no thread, and no polling, except that the loop drives an agent whose caller makes progress while somebody waits.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from collections import deque
from typing import Any

from . import _core, _errors
from ._errors import Status
from ._plan import whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from ._agent import Agent
    from ._layout import View
    from ._results import DirectoryEvent

_FULL_SECONDS = 0.02  # between two attempts to post if neither credit nor the end of a post announces room

Event = tuple[int, int, int, "str | None", Any]  # number, status, value, why, the peer's handle

_generation = 0  # of this process: its parent's and one


def _count_fork() -> None:
    global _generation
    _generation += 1


os.register_at_fork(after_in_child=_count_fork)


class _OfProcess:
    """What a forked child leaves alone: its locks may be held for ever, and a loop's selector is still its parent's too, so
    that a descriptor which the child removes is gone for the parent."""

    def __init__(self) -> None:
        self._made_in = _generation

    @property
    def inherited(self) -> bool:
        return self._made_in != _generation


class _Descriptor(_OfProcess):
    """A queue's descriptor, duplicated, and the loops that watch it.

    Those keep it, so that its number is not used for something else meanwhile. And a loop has only one reader of a
    descriptor, which may be the application's.
    """

    def __init__(self, queue: _core._Queue, ready: Callable[[], None]) -> None:
        super().__init__()
        self.queue = queue
        self.fd = os.dup(queue.fd)
        self._ready = ready
        self._loops: set[asyncio.AbstractEventLoop] = set()
        self._lock = threading.Lock()

    def __del__(self) -> None:
        os.close(self.fd)

    def watch(self) -> asyncio.AbstractEventLoop:
        """The running loop, which watches the descriptor from now on."""
        loop = asyncio.get_running_loop()
        if loop not in self._loops:
            with self._lock:
                self._loops = {other for other in self._loops if not other.is_closed()}
                loop.add_reader(self.fd, self._woken)
                self._loops.add(loop)
        return loop

    def _woken(self) -> None:
        if not self.inherited:
            self._ready()

    def leave(self) -> None:
        """The running loop watches no more."""
        if self.inherited:
            return
        loop = asyncio.get_running_loop()
        with self._lock:
            self._loops.discard(loop)
            loop.remove_reader(self.fd)

    def detach(self) -> None:
        """No loop watches any more."""
        if self.inherited:
            return
        with self._lock:
            loops, self._loops = self._loops, set()
        here = asyncio._get_running_loop()
        for loop in loops:
            if loop.is_closed():
                continue
            if loop is here or not loop.is_running():
                loop.remove_reader(self.fd)
            else:
                _call(loop, self._remove, loop)

    def _remove(self, loop: asyncio.AbstractEventLoop) -> None:
        if loop not in self._loops:  # it may watch again
            loop.remove_reader(self.fd)


class _Inbox:
    """A queue of notices, and who waits for one."""

    def __init__(self, queue: _core._Queue) -> None:
        self._descriptor = _Descriptor(queue, self._ready)
        self._waiting: deque[asyncio.Future[Any]] = deque()
        self._unwanted = False
        self.detach = self._descriptor.detach

    def wait(self) -> asyncio.Future[Any]:
        future = self._descriptor.watch().create_future()
        self._waiting.append(future)
        return future

    def waited_for(self) -> bool:
        return any(not future.done() for future in self._waiting)

    def wake(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for future in waiting:
            _wake(future, None)

    def _ready(self) -> None:
        if self.waited_for():
            self._unwanted = False
            self.wake()
        elif self._unwanted:  # the notices stay until somebody takes them
            self._descriptor.leave()
        self._unwanted = not self._waiting


class Hub(_OfProcess):
    """Knows which future waits for which event of one agent. Holds the agent weakly: a loop must not keep it open."""

    def __init__(self, agent: Agent) -> None:
        super().__init__()
        self._agent = weakref.ref(agent)
        self._caller_drives = not agent.hosted
        self._events = _Descriptor(_core._events(agent), self.look)
        self._waiting: dict[int, list[asyncio.Future[Event]]] = {}
        self._afterwards: dict[int, Callable[[], None]] = {}  # what is to be done at the event, waited for or not
        self._shared: dict[Any, int] = {}  # key of a wait to the number of the one event that its waiters share
        self._keys: dict[int, Any] = {}
        self._ends: set[asyncio.Future[None]] = set()  # waits for the end of any post
        self._inboxes: weakref.WeakSet[_Inbox] = weakref.WeakSet()
        self._own_inbox: _Inbox | None = None
        self._driving: set[asyncio.AbstractEventLoop] = set()
        self._lock = threading.RLock()
        self._closed = False

    # ---- waiting

    def future(self, number: int) -> asyncio.Future[Event]:
        """A new future that ends with the event of this number."""
        future = self._watch().create_future()
        with self._lock:
            self._waiting.setdefault(number, []).append(future)
        return future

    def forget(self, number: int, future: asyncio.Future[Event]) -> None:
        if self.inherited:
            return
        with self._lock:
            waiting = self._waiting.get(number)
            if waiting is not None and future in waiting:
                waiting.remove(future)
                if not waiting:
                    del self._waiting[number]

    async def event(
        self,
        start: Callable[[int], None],
        timeout: float | None = None,
        *,
        shared: Any = None,
        afterwards: Callable[[], None] | None = None,
    ) -> Event | None:
        """Starts something with a number, and waits for its event; None if the timeout comes first.

        shared: a key: if the same was started before and its event has not come, that one is waited for. afterwards: called
        at the event, also when nobody waits any more.
        """
        future = self._watch().create_future()
        number = self._begin(future, start, shared, afterwards)
        try:
            return await _within(future, timeout)
        finally:
            self.forget(number, future)

    def _begin(
        self,
        future: asyncio.Future[Event],
        start: Callable[[int], None],
        shared: Any,
        afterwards: Callable[[], None] | None,
    ) -> int:
        with self._lock:
            number = self._shared.get(shared) if shared is not None else None
            if number is not None:
                self._waiting.setdefault(number, []).append(future)
                return number
            number = _core._next_number()
            self._waiting[number] = [future]
            if afterwards is not None:
                self._afterwards[number] = afterwards
            if shared is not None:
                self._shared[shared] = number
                self._keys[number] = shared
            try:
                start(number)
            except BaseException:
                del self._waiting[number]
                self._done(number)
                raise
            return number

    def _done(self, number: int) -> Callable[[], None] | None:
        key = self._keys.pop(number, None)
        if key is not None:
            self._shared.pop(key, None)
        return self._afterwards.pop(number, None)

    async def room(self, peer: _core.Peer | None) -> None:
        """Waits until a post that was refused may be tried again: there is credit, or a post has ended."""
        loop = self._watch()
        end = loop.create_future()
        with self._lock:
            self._ends.add(end)
        waits: set[Any] = {end}
        begun = time.monotonic()
        if peer is not None:
            waits.add(asyncio.ensure_future(credit(peer)))
        try:
            await asyncio.wait(waits, timeout=_FULL_SECONDS, return_when=asyncio.FIRST_COMPLETED)
            if time.monotonic() - begun < 0.0002 and not end.done():  # there was credit all the time
                await asyncio.wait({end}, timeout=_FULL_SECONDS)
        finally:
            with self._lock:
                self._ends.discard(end)
            for wait in waits:
                if not wait.done():
                    wait.cancel()
                elif not wait.cancelled():
                    wait.exception()  # what is wrong with the peer, the next attempt says

    def _watch(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise _errors.Closed("the agent is closed")
        if self.inherited:
            raise _errors.Forked("the agent belongs to the parent of this forked process")
        loop = self._events.watch()
        if self._caller_drives and loop not in self._driving:
            self._driving.add(loop)
            loop.call_soon(self._drive, loop)
        return loop

    # ---- notices

    def own_inbox(self) -> _Inbox:
        agent = self._agent()
        if self._closed or agent is None:
            raise _errors.Closed("the agent is closed")
        with self._lock:
            if self._own_inbox is None:
                self._own_inbox = self.inbox(_core._own_queue(agent))
            return self._own_inbox

    def inbox(self, queue: _core._Queue) -> _Inbox:
        inbox = _Inbox(queue)
        self._inboxes.add(inbox)
        return inbox

    def wait_notice(self, inbox: _Inbox) -> asyncio.Future[Any]:
        self._watch()
        return inbox.wait()

    # ---- events

    def look(self) -> None:
        """Takes what has happened, and wakes who waits for it."""
        try:
            events = self._events.queue.take()
        except (_errors.Closed, _errors.Forked):
            self._events.detach()
            return
        for event in events:
            self._tell(event)

    def _tell(self, event: Event) -> None:
        with self._lock:
            afterwards = self._done(event[0])
            waiting = tuple(self._waiting.pop(event[0], ()))
            ends, self._ends = self._ends, set()
        if afterwards is not None:
            afterwards()
        for future in waiting:
            _wake(future, event)
        for end in ends:
            _wake(end, None)

    def _drive(self, loop: asyncio.AbstractEventLoop) -> None:
        agent = self._agent()
        if agent is None or agent.closed or not self._waited_for():
            self._driving.discard(loop)
            return
        agent.progress()
        loop.call_soon(self._drive, loop)

    def _waited_for(self) -> bool:
        return any(self._waiting.values()) or any(inbox.waited_for() for inbox in list(self._inboxes))

    # ---- the end

    def detach(self) -> None:
        """No loop watches any more, and nobody can begin to wait."""
        self._closed = True
        self._events.detach()
        for inbox in list(self._inboxes):
            inbox.detach()

    def finish(self) -> None:
        """After the agent has closed: tells the last events, and that no others will come."""
        self.look()
        for number in {*self._waiting, *self._afterwards}:
            self._tell((number, Status.CLOSED, 0, "the agent is closed", None))
        for inbox in list(self._inboxes):
            inbox.wake()


def _call(loop: asyncio.AbstractEventLoop, function: Callable[..., object], *arguments: Any) -> None:
    try:
        loop.call_soon_threadsafe(function, *arguments)
    except RuntimeError:  # it has been closed: nobody waits there
        pass


def _wake(future: asyncio.Future[Any], result: Any) -> None:
    loop = future.get_loop()
    if loop is asyncio._get_running_loop():
        _finish(future, result)
    else:
        _call(loop, _finish, future, result)


def _finish(future: asyncio.Future[Any], result: Any) -> None:
    if not future.done():
        future.set_result(result)


async def _within(future: asyncio.Future[Any], timeout: float | None) -> Any:
    """Its result; None if the timeout comes first."""
    if timeout is None:
        return await future
    await asyncio.wait({future}, timeout=timeout)
    return future.result() if future.done() else None


def _check(event: Event | None, otherwise: str = "") -> Event:
    """Raises what the event says; NotYet if none came."""
    if event is None:
        raise _errors.NotYet(otherwise)
    if event[1] < 0:
        raise _errors._make(event[1], event[3] or "")
    return event


# ---- posts and groups


async def wait_post(post: _core.Post) -> _core.Result:
    """The result of a post. Cancelling the task cancels the post, and waits until this side's memory is fenced."""
    await _outcome(post)
    return post._result()


async def wait_group(group: _core._Group) -> None:
    """The outcome of a group; raises if it failed. Cancelling the task is as for a post."""
    await _outcome(group)
    group.poll()


async def _outcome(what: _core.Post | _core._Group) -> None:
    if what._look() != Status.IN_PROGRESS:
        return
    try:
        hub = what._agent._hub()
        while what._look() == Status.IN_PROGRESS:
            if not what.awaitable:  # no event tells its outcome, but one tells its fence, which comes with or after it
                _check(await hub.event(lambda number: what._start_fence("local", number)))
                continue
            future = hub.future(what._id)
            try:
                # It may have ended, and its event been taken, before this wait.
                if what._look() == Status.IN_PROGRESS:
                    await future
            finally:
                hub.forget(what._id, future)
    except asyncio.CancelledError:
        what.cancel()
        await fence(what)
        raise
    except _errors.Closed:  # its outcome says more
        if what._look() == Status.IN_PROGRESS:
            raise


async def wait_fenced(what: _core.Post | _core._Group, fences: str = "both", timeout: float | None = None) -> None:
    """After a failure: waits until no byte of it can land, or be read, any more. Raises NotYet, and
    Unsupported where the backend can't say when that is."""
    event = await what._agent._hub().event(
        lambda number: what._start_fence(fences, number), timeout, shared=("fence", what._id, fences)
    )
    _check(event, "it is not fenced yet")


async def fence(what: _core.Post | _core._Group) -> None:
    """Not to be cancelled itself: memory that is still written must not be used again. Where the backend can't say when
    that ends, there is nothing to wait for."""
    fenced = asyncio.ensure_future(wait_fenced(what, "local"))
    while not fenced.done():
        try:
            await asyncio.wait({fenced})
        except asyncio.CancelledError:
            continue
    error = fenced.exception()
    if error is not None and not isinstance(error, (_errors.Closed, _errors.Unsupported)):  # a closed agent reaches no memory
        raise error


async def reach(*lists: _core.BlockList) -> None:
    """Connects to the peer of these lists if that has never been done, so that making a plan need not."""
    for blocks in lists:
        if blocks.peer is not None and blocks.peer.health == "unknown":
            await credit(blocks.peer)


async def make_plan(
    agent: Agent, from_: _core.BlockList | View, to: _core.BlockList | View, **keywords: Any
) -> _core.Plan:
    source, target = whole(from_), whole(to)
    await reach(source, target)
    return agent.plan(source, target, **keywords)


async def post(plan: _core.Plan, *arguments: Any, **keywords: Any) -> _core.Post:
    """Plan.post() that waits for credit, up to the agent's timeout."""
    return await _with_room(plan._agent, lambda: plan._peer, lambda: plan.post(*arguments, **keywords))


async def _with_room(agent: Agent, peer: Callable[[], Any], attempt: Callable[[], _core.Post]) -> _core.Post:
    deadline = time.monotonic() + agent._timeout
    while True:
        try:
            return attempt()
        except _errors.Again:
            if time.monotonic() >= deadline:
                raise
        await agent._hub().room(peer())


# ---- peers, counters, regions


async def connect(agent: Agent, address: str | bytes, timeout: float | None) -> _core.Peer:
    event = await agent._hub().event(lambda number: agent._start_connecting(address, timeout, number))
    return _core._peer(agent, _check(event)[4])


async def credit(peer: _core.Peer, timeout: float | None = None) -> None:
    """Waits until the peer has credit for a notice of any size. Raises NotYet."""
    event = await peer._agent._hub().event(
        lambda number: peer._start_credit(number), timeout, shared=("credit", peer.incarnation)
    )
    _check(event, "the peer gives no credit yet")


async def send(peer: _core.Peer, data: Any, *, tag: int = 0, timeout: float | None = None) -> None:
    """Peer.send() for event loops."""
    await _with_credit(peer, timeout, lambda: peer._try_send(data, tag))


async def add(peer: _core.Peer, key: int, amount: int = 1, *, timeout: float | None = None) -> None:
    """Peer.add() for event loops."""
    await _with_credit(peer, timeout, lambda: peer._try_add(key, amount))


async def _with_credit(peer: _core.Peer, timeout: float | None, attempt: Callable[[], bool]) -> None:
    deadline = time.monotonic() + (peer._agent._timeout if timeout is None else timeout)
    connected = peer.health != "unknown"  # the first attempt would block until it is
    while not connected or not attempt():
        connected = True
        left = deadline - time.monotonic()
        if left <= 0:
            raise _errors.Again("the peer gives no credit now")
        try:
            await credit(peer, left)
        except _errors.NotYet:
            pass


async def refresh(peer: _core.Peer, timeout: float | None = None) -> None:
    """Peer.refresh() for event loops."""
    _check(await peer._agent._hub().event(lambda number: peer._start_refresh(timeout, number)))


async def wait_counter(counter: _core.Counter, threshold: int, timeout: float | None = None) -> int:
    """Counter.wait() for event loops."""
    if counter.value >= threshold:
        return counter.value
    started = []

    def start(number: int) -> None:
        counter._start(threshold, number)
        started.append(number)

    event = None
    try:
        event = await counter._agent._hub().event(start, timeout)
    finally:
        if event is None and started:
            counter._forget(started[0])
    return _check(event, f"the counter has not reached {threshold} yet")[2]


async def deregister(region: _core.Region, timeout: float | None = None) -> None:
    """Region.deregister() for event loops. Raises NotYet; then, and if the task is cancelled, it goes on by itself."""
    if region._gone:
        return
    try:
        event = await region._agent._hub().event(
            region._start_deregistering, timeout, shared=("region", region._number), afterwards=region._deregistered
        )
    except _errors.Stale:
        if region._gone:
            return
        raise
    _check(event, "some peer or transfer still uses the region; it is deregistered once none does")


async def commit(region: _core.Region, timeout: float | None = None) -> None:
    """Region.commit() for event loops. It goes on if the task is cancelled."""
    _check(await region._agent._hub().event(lambda number: region._start_commit(timeout, number)))


# ---- directories


async def wait_call(call: _core.DirectoryCall) -> Any:
    """The result of a directory's call. Cancelling the task cancels the call."""
    if not call.done:
        try:
            await call._agent._hub().event(call._start)
        except asyncio.CancelledError:
            call.cancel()
            raise
    return call.wait()


async def next_of_watch(watch: _core.Watch) -> DirectoryEvent:
    while True:
        try:
            event = watch.next(0)
            if event is not None:
                return event
            _check(await watch._agent._hub().event(watch._start, shared=("watch", watch._number)))
        except _errors.Closed:
            raise StopAsyncIteration from None


# ---- notices, and the end


class Notices:
    """An agent's notices, one after another: all that come to the agent, or those whose tag has certain bits."""

    def __init__(self, agent: Agent, tag: int | None, mask: int | None) -> None:
        self._agent = agent
        if tag is None:
            if mask is not None:
                raise _errors.InvalidArgument("notices: a mask needs a tag")
            self._queue: _core._Queue | None = _core._own_queue(agent)
        else:
            self._queue = _core._subscribed_queue(agent, tag, mask)
        self._subscribed = tag is not None
        self._inbox: _Inbox | None = None

    def receive(self, timeout: float | None = None) -> _core.Notice | None:
        """The next one, for threads; None if none comes within the timeout."""
        if self._queue is None:
            raise _errors.Closed("nobody subscribes to these notices any more")
        return self._queue.receive(self._agent, timeout)

    def close(self) -> None:
        """Tasks that wait for one stop. If it has a tag, what waits is dropped, and others get what comes."""
        inbox, queue = self._inbox, self._queue
        self._inbox = self._queue = None
        if queue is not None and self._subscribed:
            if inbox is not None:
                inbox.detach()
            queue.close()
        if inbox is not None:
            inbox.wake()

    def __enter__(self) -> Notices:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __aiter__(self) -> Notices:
        return self

    async def __anext__(self) -> _core.Notice:
        while True:
            try:
                notice = self.receive(0)
                if notice is not None:
                    return notice
                hub = self._agent._hub()
                if self._inbox is None:
                    assert self._queue is not None
                    self._inbox = hub.inbox(self._queue) if self._subscribed else hub.own_inbox()
                future = hub.wait_notice(self._inbox)
                # One may have arrived, and another loop been woken for it, before this wait.
                notice = self.receive(0)
            except _errors.Closed:
                raise StopAsyncIteration from None
            if notice is not None:
                future.cancel()
                return notice
            await future


_HEALTH = ("unknown", "alive", "suspect", "lost")


class HealthChanges:
    """Changes of the health of an agent's peers, for `async for`."""

    def __init__(self, agent: Agent) -> None:
        self._agent = agent
        self._queue = _core._health_queue(agent)
        self._told: deque[Event] = deque()
        self._inbox: _Inbox | None = None

    def __aiter__(self) -> HealthChanges:
        return self

    async def __anext__(self) -> tuple[_core.Peer, str]:
        while True:
            try:
                future = None
                if not self._told:
                    hub = self._agent._hub()
                    if self._inbox is None:
                        self._inbox = hub.inbox(self._queue)
                    future = hub.wait_notice(self._inbox)
                    self._told.extend(self._queue.take())
                if self._told:
                    if future is not None:
                        future.cancel()
                    event = self._told.popleft()
                    return _core._peer(self._agent, event[4]), _HEALTH[event[2]]
            except _errors.Closed:
                raise StopAsyncIteration from None
            assert future is not None
            await future


async def close(agent: Agent) -> None:
    """Agent.close() on a thread of its own, since it waits for peers and for the agent's threads."""
    loop = asyncio.get_running_loop()
    closed = loop.create_future()

    def work() -> None:
        try:
            agent.close()
        finally:
            _call(loop, _finish, closed, None)

    threading.Thread(target=work, name="towline-close", daemon=True).start()
    await closed
