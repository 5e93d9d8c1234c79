"""The agent: what the extension module does, and on top of it keyword arguments, asyncio and JSON."""

from __future__ import annotations

import atexit
import sys
import threading

from . import _core, _errors
from ._results import StorageInfo, StoredObject
from ._storage import flags_of, place_of

TYPE_CHECKING = False
if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from typing import Any, Literal

    from ._asyncio import HealthChanges, Hub, Notices
    from ._layout import Layout, View
    from ._plan import Group, PickedBlocks

atexit.register(_core._close_all)

_KEPT_PLANS = 64  # of Agent.copy


class Agent(_core.Agent):
    """One participant: a name, registered memory, peers, and threads that make progress.

    name: 1 to 255 bytes of any kind but NUL; it need not be unique.
    progress: "hosted", where Towline's own threads make progress, or "caller", where only the application's calls do.
    workers: progress threads, 1 to 8; 1 unless the configuration says otherwise.
    listen: "host:port[,host:port]" where every port of the agent is, by default "127.0.0.1:0": peers of this host and
        user. Give an address of this host to be reached from others; "none" opens no port.
    advertise: what peers are told to connect to instead of that.
    backends: names in order of preference, as a list or with commas; by default all that are usable.
    config: TOML text, or a mapping from keys ("peer.lost", or {"peer": {"lost": ..}}) to values, over the environment and
        the configuration file.
    default_timeout: seconds for posts and control calls that name none; 30 by default.

    `close()`, or the end of a `with` block, ends everything. So does dropping the agent and all that was made from it.
    """

    def __init__(
        self,
        name: str | bytes,
        *,
        progress: str = "hosted",
        workers: int | None = None,
        listen: str | None = None,
        advertise: str | None = None,
        backends: str | Iterable[str] | None = None,
        config: str | Mapping[str, Any] | None = None,
        default_timeout: float | None = None,
    ) -> None:
        if progress not in ("hosted", "caller"):
            raise _errors.InvalidArgument(f"progress is 'hosted' or 'caller', not {progress!r}")
        if backends is not None and not isinstance(backends, str):
            backends = ",".join(backends)
        if config is not None and not isinstance(config, str):
            config = _toml(config, "")
        if workers is not None and not 0 <= workers < 1 << 32:
            raise _errors.InvalidArgument(f"workers is a number from 1 to 8, not {workers}")
        super().__init__(
            name, progress == "hosted", workers or 0, listen, advertise, backends, config, default_timeout
        )
        self._hub_of_loops: Hub | None = None
        self._making_hub = threading.Lock()
        self._directories: dict[str, _core.Directory] = {}
        self._plans: dict[tuple[Any, Any], _core.Plan] = {}  # the last used last
        self._keeping_plans = threading.Lock()

    def __enter__(self) -> Agent:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Agent:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close_async()

    def __repr__(self) -> str:
        return "Agent(closed)" if self.closed else f"Agent({self.name!r}, {self.address!r})"

    def close(self) -> None:
        """Ends every transfer (their outcome is CLOSED), tells the peers, and waits for threads that are in a call.

        The finalizer of registered memory may run on a thread of the agent's own, or while it closes: there it only begins,
        and the interpreter ends after it.
        """
        if _core._is_letting_go():
            if not self.closed:  # the thread is no daemon, though its parent here is one to Python
                threading.Thread(target=self.close, name="towline-close", daemon=False).start()
            return
        hub = self._hub_of_loops
        if hub is not None:
            hub.detach()
        self._close()
        self._directories.clear()
        self._plans.clear()
        if hub is not None:
            hub.finish()

    async def close_async(self) -> None:
        """The same for event loops; it goes on if the task is cancelled."""
        from ._asyncio import close

        await close(self)

    # ---- memory

    def allocate(self, nbytes: int, huge: bool = False) -> _core.Memory:
        """Zeroed, page-aligned memory that peers on this host can map: the fastest to reach. huge: huge pages, or fail.

        It is a buffer; `memory.numpy(dtype, shape)` is an array of it. It is freed when nothing uses it any more.
        """
        return _core._allocate(self, nbytes, huge)

    def register(
        self,
        obj: Any,
        *,
        access: str = "none",
        guarded: bool = False,
        share: bool = False,
        kind: str | None = None,
        name: str | None = None,
        layout: Layout | tuple[Any, ...] | None = None,
        page_dim: int | None = None,
    ) -> _core.Region:
        """Lets peers reach memory: of an array, a tensor, a buffer, or (address, length[, device]).

        access: what peers may do: "none", "read", "write" or "all" ("r", "w", "rw"). Without it the region is for this
        agent's use: what its reads fill and its writes send; peers can't reach it. guarded: only through paths where this agent checks every
        access. share: moves page-aligned private memory onto shared memory in place, so that peers can map it; nobody may
        write to it meanwhile, nor while the last Region of it is deregistered, which moves it back.

        name: by which peers find it, `peer[name]`; AlreadyExists if another region of the agent has it. page_dim: of an
        array, the dimension whose elements are moved as a whole; or layout: the same said in bytes. Then `region[3, pages]`
        are elements of it, and `peer[name][3, pages]` of the peer's.

        The Region keeps `obj` alive. Keep the Region: dropping it deregisters, as `region.deregister()` does.
        """
        return _core._register(self, obj, access, guarded, share, kind, name, layout, page_dim)

    # ---- storage

    def register_storage(
        self,
        what: str | os.PathLike[str] | int | Any,
        *,
        access: str | None = None,
        create: bool = False,
        truncate: bool = False,
        direct: bool = False,
        replace: bool = False,
        conditional: bool = False,
        sync: str = "none",
        mode: int = 0,
        nbytes: int = 0,
        name: str | None = None,
        layout: Layout | tuple[Any, ...] | None = None,
    ) -> _core.Region:
        """Opens a file, block device or object as a region: `region.blocks(offset, length)` says what to read or write.

        what: a path, a URI ("file:/data/kv.bin", "s3://bucket/key"), or something open: a descriptor, or what has a
            fileno(). Objects need an agent with config='plugins = "object"'.
        access: "read", "write" or "all"; by default "read", and "all" with create, truncate or replace.
        create: make it when it is not there. truncate: empty it first. direct: past the page cache.
        replace: write a new one that takes the old one's place at `region.commit()`, whole or not at all.
        conditional: objects: a write or commit fails (Stale) where somebody else has made, changed or removed it since.
        sync: when a write is done: "none", at once; "data", on the device; "full", with all of the file's attributes.
        mode: permissions of a file that is made, less the umask; 0o666 by default.
        nbytes: the region's size; writes may grow the file up to it. The present size by default, or that of the layout if
            it may be written and is smaller.
        name, layout: as in register(), so that `region[3, pages]` is those pages of the file. Peers are not told.
        """
        uri, descriptor = place_of(what)
        flags = flags_of(create, truncate, direct, replace, conditional)
        return _core._register_storage(self, uri, descriptor, access, flags, sync, mode, nbytes, name, layout)

    def query_storage(self, what: str | os.PathLike[str]) -> StorageInfo | None:
        """Looks at a path or URI; None when nothing is there."""
        uri, _ = place_of(what)
        if uri is None:
            raise _errors.InvalidArgument("query_storage: a path or a URI, not an open file")
        found = _core._query_storage(self, uri)
        return None if found is None else StorageInfo(*found)

    def list_storage(self, prefix: str, limit: int | None = None) -> list[StoredObject]:
        """(URI, what it is) of everything whose URI begins with `prefix` ("s3://bucket/model/"), in order; at most `limit`.

        Raises Unsupported for what can't be listed: files can't.
        """
        found = _core._list_storage(self, prefix, sys.maxsize if limit is None else limit)
        return [StoredObject(uri, StorageInfo(kind, nbytes, modified_ns)) for uri, kind, nbytes, modified_ns in found]

    # ---- peers

    def connect(self, address: str | bytes, timeout: float | None = None) -> _core.Peer:
        """Meets the agent at "host:port", "[v6]:port", "unix:/path" or "unix:@name", or in a directory as soon as it is
        published there: "etcd://host:port/name".

        timeout: seconds for all of it; the agent's by default. Raises Unreachable, NotFound or TimedOut, and says what it
        waited for.
        """
        return super().connect(address, timeout)

    async def connect_async(self, address: str | bytes, timeout: float | None = None) -> _core.Peer:
        """The same for event loops."""
        from ._asyncio import connect

        return await connect(self, address, timeout)

    @property
    def peers(self) -> list[_core.Peer]:
        """All that are known, also those that came by themselves."""
        found = []
        for entry in self.info()["peers"]:
            try:
                found.append(self.find_peer(entry["incarnation"]))
            except _errors.NotFound:  # gone meanwhile
                pass
        return found

    def directory(self, address: str) -> _core.Directory:
        """A directory where agents find one another, such as "etcd://host:port/namespace". It lives with this object."""
        return _core._open_directory(self, address)

    def publish(
        self,
        address: str,
        *,
        label: str | None = None,
        regions: Iterable[_core.Region] | None = None,
        timeout: float | None = None,
    ) -> _core.DirectoryCall:
        """Publishes this agent's present metadata in the directory at `address`, for as long as the agent is open.

        `await agent.publish(address)`, or `agent.publish(address).wait()`. regions: only these, under a label of its
        own. Publish again when regions came or went.
        """
        return self._published(address).publish(label=label, regions=regions, timeout=timeout)

    def unpublish(
        self, address: str, *, label: str | None = None, timeout: float | None = None
    ) -> _core.DirectoryCall:
        """Takes back what was published there under a label, or with None all of it."""
        return self._published(address).unpublish(label=label, timeout=timeout)

    def _published(self, address: str) -> _core.Directory:
        if address not in self._directories:
            self._directories[address] = self.directory(address)
        return self._directories[address]

    # ---- transfers

    def transfer(
        self,
        from_: _core.BlockList | PickedBlocks | View,
        to: _core.BlockList | PickedBlocks | View,
        *,
        notice: bytes | None = None,
        counter: int | tuple[int, int] | None = None,
        timeout: float | None = None,
        backend: str | None = None,
        workers: int = 1,
    ) -> _core.Transfer:
        """Prepares a move whose picks are fixed: `agent.transfer(theirs[their_pages], mine[my_pages])`, to be posted any
        number of times, once at a time.

        notice: sent to the peer once the data is there. counter: key, or (key, amount), of a counter of the peer's to
        add to then. timeout: seconds from each post. backend: forces one. workers: how many to split the work over.

        For work of a GPU's stream that is captured in a graph. Anything else: copy() and plan().
        """
        from ._plan import pair

        source, from_picks, target, to_picks = pair(from_, to)
        return _core._transfer(
            self, source, from_picks, target, to_picks, notice, counter, timeout, backend, workers
        )

    # ---- plans, posts and groups

    def plan(
        self,
        from_: _core.BlockList | View,
        to: _core.BlockList | View,
        *,
        timeout: float | None = None,
        backend: str | None = None,
        usual_bytes: int = 0,
        recut: bool = False,
    ) -> _core.Plan:
        """Prepares moving blocks from one list to another, once: `plan.post(from_picks, to_picks)` moves some of them.

        A view stands for its region's list. One of the lists is a peer's, or both are this agent's (memory and files). timeout: seconds from each post that
        names none. backend: forces one. usual_bytes: of a post, for the choice of the backend. recut: pairs the bytes
        of picked blocks in order, whatever the layouts of their regions say; without it, layouts that don't match raise
        Mismatch.
        """
        from ._plan import whole

        return _core._plan(self, whole(from_), whole(to), timeout, backend, usual_bytes, recut)

    async def plan_async(
        self,
        from_: _core.BlockList | View,
        to: _core.BlockList | View,
        *,
        timeout: float | None = None,
        backend: str | None = None,
        usual_bytes: int = 0,
        recut: bool = False,
    ) -> _core.Plan:
        """The same for event loops: plan() blocks until the peer is connected."""
        from ._asyncio import make_plan

        return await make_plan(
            self, from_, to, timeout=timeout, backend=backend, usual_bytes=usual_bytes, recut=recut
        )

    def copy(
        self,
        from_: _core.BlockList | PickedBlocks | View,
        to: _core.BlockList | PickedBlocks | View,
        *,
        notice: bytes | None = None,
        counter: int | tuple[int, int] | None = None,
        timeout: float | None = None,
        priority: Literal["bulk", "latency"] = "bulk",
        stream: Any = None,
        tag: int = 0,
    ) -> _core.Post:
        """Starts moving `theirs[their_pages]` to `mine[my_pages]`, or the other way round, pairwise in order.

        `await agent.copy(..)`, or `agent.copy(..).result()` without asyncio. Cancelling the task cancels the copy and waits
        until this side's memory is fenced. The plans of the last lists are kept for the next copy.

        notice: sent to the peer once the data is there. counter: key, or (key, amount), of a counter of the peer's to add
        to then. timeout: seconds. priority: "latency" goes before "bulk". tag: of the
        notice, for the peer's notices(tag). stream: of a GPU, in whose order it moves, or "unordered": at once; by default
        torch's current one where this agent's memory is a GPU's, and InvalidArgument without torch.

        Raises OutOfRange, Mismatch and so on for lists and picks that don't fit; and where an event loop runs Again when
        the peer gives no credit, for which copy_async() waits.
        """
        from ._plan import pair

        source, from_picks, target, to_picks = pair(from_, to)
        return self._plan_of(source, target).post(
            from_picks,
            to_picks,
            notice=notice,
            counter=counter,
            timeout=timeout,
            priority=priority,
            stream=stream,
            tag=tag,
        )

    async def copy_async(
        self,
        from_: _core.BlockList | PickedBlocks | View,
        to: _core.BlockList | PickedBlocks | View,
        *,
        notice: bytes | None = None,
        counter: int | tuple[int, int] | None = None,
        timeout: float | None = None,
        priority: Literal["bulk", "latency"] = "bulk",
        stream: Any = None,
        tag: int = 0,
    ) -> _core.Post:
        """copy() that waits for a connection and for credit, and returns the Post, started: `await (await
        agent.copy_async(..))`."""
        from ._asyncio import reach
        from ._plan import pair

        source, from_picks, target, to_picks = pair(from_, to)
        await reach(source, target)
        return await self._plan_of(source, target).post_async(
            from_picks,
            to_picks,
            notice=notice,
            counter=counter,
            timeout=timeout,
            priority=priority,
            stream=stream,
            tag=tag,
        )

    def group(
        self,
        *,
        notice: bytes | None = None,
        counter: int | tuple[int, int] | None = None,
        timeout: float | None = None,
        priority: Literal["bulk", "latency"] = "bulk",
        awaitable: bool | None = None,
        tag: int = 0,
    ) -> Group:
        """Posts that end as one, in a `with` or `async with` block: its end closes the group and waits for its outcome, or,
        after an exception, cancels it and waits until this side's memory is fenced.

        notice, counter: to each peer of the members, after the last byte of the last one. timeout: seconds for all of it.
        tag: of the notice. awaitable: whether its end is told to event loops; by default when it is made where one runs.
        """
        from ._plan import Group

        return Group(self, notice, counter, timeout, priority, awaitable, tag)

    def _plan_of(self, from_: _core.BlockList, to: _core.BlockList) -> _core.Plan:
        key = (from_._identity, to._identity)
        with self._keeping_plans:
            plan = self._plans.pop(key, None)
            if plan is not None:
                self._plans[key] = plan
                return plan
        plan = self.plan(from_, to)
        dropped = None  # outside the lock
        with self._keeping_plans:
            plan = self._plans.setdefault(key, plan)  # another thread's, if it came first
            if len(self._plans) > _KEPT_PLANS:
                dropped = self._plans.pop(next(iter(self._plans)))
        del dropped
        return plan  # it keeps both lists, so their ids stay theirs

    # ---- notices

    def receive(self, timeout: float | None = None) -> _core.Notice | None:
        """The next notice to which no notices(tag) subscribes; None when none came within the timeout. None waits without
        end, 0 only looks."""
        return _core._own_queue(self).receive(self, timeout)

    def notices(self, tag: int | None = None, mask: int | None = None) -> Notices:
        """The notices that arrive, for `async for`, or one by one for threads: `notices.receive(timeout)`.

        tag: from now on only those with this tag come here, and no longer to receive(), or with a mask those whose tag has
        the mask's bits of `tag`. The first of several subscriptions gets a notice. close(), or the end of a `with` block,
        ends it. The iteration ends when the agent is closed.
        """
        from ._asyncio import Notices

        return Notices(self, tag, mask)

    def health_changes(self) -> HealthChanges:
        """(peer, health) whenever a peer is connected, goes silent or is lost, from now on, for `async for`: "alive",
        "suspect" or "lost". If a peer's health changes faster than it is read, only the last value comes. It ends when the agent is
        closed."""
        from ._asyncio import HealthChanges

        return HealthChanges(self)

    # ---- information

    def info(self) -> dict[str, Any]:
        """Backends, with the reason where one is not usable, regions, peers, topology."""
        import json

        return json.loads(self._info())

    def metrics(self) -> dict[str, Any]:
        """Bytes, transfers, errors and latencies by peer, backend and direction."""
        import json

        return json.loads(self._metrics())

    def _hub(self) -> Hub:
        """The way from this agent's events to event loops."""
        if self._hub_of_loops is None:
            import weakref

            from ._asyncio import Hub

            _core._own_queue(self)  # raises in a forked child, where the lock may be held for ever
            with self._making_hub:  # loops of several threads may come here at once
                if self._hub_of_loops is None:
                    hub = Hub(self)
                    weakref.finalize(self, hub.detach).atexit = False
                    self._hub_of_loops = hub
        return self._hub_of_loops


def _toml(config: Mapping[str, Any], section: str) -> str:
    from collections.abc import Mapping

    if not isinstance(config, Mapping):
        raise _errors.InvalidArgument(f"config is TOML text or a mapping, not {type(config).__name__}")
    text = ""
    for key, value in config.items():
        if isinstance(value, Mapping):
            text += _toml(value, f"{section}{key}.")
        else:
            text += f"{section}{key} = {_toml_value(value, f'{section}{key}')}\n"
    return text


def _toml_value(value: Any, key: str) -> str:
    import json
    import os

    if isinstance(value, os.PathLike):
        value = os.fspath(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml_value(item, key) for item in value)}]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    raise _errors.InvalidArgument(
        f"config: {key} is a text, a number, true, false or a list of these, not {type(value).__name__}"
    )
