"""The extension module. Use the names through `towline`."""

import os
from collections.abc import Callable, Coroutine, Generator, Iterable, Sequence
from typing import Any, Literal, final

from typing_extensions import Buffer

from ._errors import Error
from ._status import Status
from ._layout import Layout, View
from ._plan import PickedBlocks
from ._results import DirectoryEvent, FailedRange

version: str

Kind = Literal["dram", "vram", "file", "block", "object"]
Picks = None | slice | range | int | Sequence[int] | Any  # or an array of 4- or 8-byte integers

def status_text(status: int) -> str: ...
def _status_list() -> list[tuple[str, int]]: ...
def _install(status_type: type[Status], make: Callable[[int, str], Error]) -> None: ...
def _close_all() -> None: ...
def _is_letting_go() -> bool: ...
def _start_log() -> None: ...
def _stop_log() -> None: ...
def _forget_log() -> None: ...
def _next_logs() -> list[tuple[int, str]] | None: ...
def _next_number() -> int: ...
def _events(agent: Agent) -> _Queue: ...
def _own_queue(agent: Agent) -> _Queue: ...
def _health_queue(agent: Agent) -> _Queue: ...
def _subscribed_queue(agent: Agent, tag: int, mask: int | None) -> _Queue: ...
def _peer(agent: Agent, handle: _PeerHandle) -> Peer: ...
def _allocate(agent: Agent, nbytes: int, huge: bool) -> Memory: ...
def _register(
    agent: Agent,
    object: Any,
    access: str,
    guarded: bool,
    share: bool,
    kind: str | None,
    name: str | None,
    layout: tuple[Any, ...] | None,
    page_dim: int | None,
) -> Region: ...
def _region_list(region: Region) -> BlockList: ...
def _peer_region_list(peer: Peer, name: str) -> BlockList: ...
def _register_storage(
    agent: Agent,
    uri: str | None,
    fd: int,
    access: str | None,
    flags: int,
    sync: str,
    mode: int,
    nbytes: int,
    name: str | None,
    layout: Layout | tuple[Any, ...] | None,
) -> Region: ...
def _query_storage(agent: Agent, uri: str) -> tuple[Kind, int, int] | None: ...
def _list_storage(agent: Agent, prefix: str, limit: int) -> list[tuple[str, Kind, int, int]]: ...

_STORAGE_CREATE: int
_STORAGE_TRUNCATE: int
_STORAGE_DIRECT: int
_STORAGE_REPLACE: int
_STORAGE_CONDITIONAL: int

def _transfer(
    agent: Agent,
    from_: BlockList,
    from_picks: Picks,
    to: BlockList,
    to_picks: Picks,
    notice: Buffer | None,
    counter: int | tuple[int, int] | None,
    timeout: float | None,
    backend: str | None,
    workers: int,
) -> Transfer: ...

def _plan(
    agent: Agent,
    from_: BlockList,
    to: BlockList,
    timeout: float | None,
    backend: str | None,
    usual_bytes: int,
    recut: bool,
) -> Plan: ...
def _make_group(
    agent: Agent,
    notice: Buffer | None,
    counter: int | tuple[int, int] | None,
    timeout: float | None,
    priority: str,
    awaitable: bool | None,
    tag: int,
) -> _Group: ...

def _open_directory(agent: Agent, address: str) -> Directory: ...

class Agent:
    """One participant: see towline.Agent."""

    def __init__(
        self,
        name: str | bytes,
        hosted: bool,
        workers: int,
        listen: str | None,
        advertise: str | None,
        backends: str | None,
        config: str | None,
        timeout: float | None,
    ) -> None: ...
    @property
    def name(self) -> str:
        """As it was given; bytes that are no UTF-8 as surrogates."""
    @property
    def incarnation(self) -> str:
        """32 hexadecimal digits, new for every agent made."""
    @property
    def address(self) -> str:
        """The addresses that peers connect to; empty when the agent does not listen."""
    @property
    def hosted(self) -> bool:
        """Towline's own threads make progress; else the application's calls do."""
    @property
    def closed(self) -> bool:
        """It was closed, or is being closed: calls raise Closed."""
    @property
    def event_fd(self) -> int:
        """Polls readable while notices wait for receive(). Owned by the agent."""
    def progress(self) -> int:
        """One pass of every worker; the number of things done. Needed only with progress="caller"."""
    def metadata(self, regions: Iterable[Region] | None = None) -> bytes:
        """The metadata that peers need: this agent's addresses, and all regions or these."""
    def set_limit(self, bytes_per_s: int, priority: Literal["all", "bulk", "latency"] = "all") -> None:
        """Limits what this agent's posts move together, or those of one priority; 0: no limit."""
    def add_backend(self, plugin: str | bytes | os.PathLike[str]) -> None:
        """Adds the backends of a plugin, by its file or by the name of one that comes with Towline, such as "object".

        This agent's regions are registered with them, in this call. Peers that know this agent learn of it from its new
        metadata. Error with ALREADY_EXISTS, or with UNSUPPORTED and the reason why the plugin can't be taken."""
    def add_peer(self, blob: Buffer) -> Peer:
        """Makes a peer known from its metadata, or adds the regions in it to a peer that is known."""
    def find_peer(self, name: str | bytes) -> Peer:
        """A known peer by its name or incarnation, also one that came by itself. Raises NotFound, and AlreadyExists
        when several agents that are there bear the name."""
    def counter(self, initial: int = 0) -> Counter:
        """A number here that peers add to."""
    def block_list(self, source: Any, *, page_dim: int | None = None, kind: Kind = "dram") -> BlockList:
        """Blocks of this agent's registered memory.

        source: Blocks, (address, length[, device]), an array of pages, or a list of these; or an N x 2 or N x 3 array of
        8-byte integers, each row (address, length[, device]), which is not copied.

        page_dim: of an array, the last dimension that counts blocks, the first by default: a block is all that follows,
        which must be contiguous. Given, an array is memory whatever its shape and type.
        """
    def _close(self) -> None: ...
    def connect(self, address: str | bytes, timeout: float | None = None) -> Peer:
        """See towline.Agent."""
    def _start_connecting(self, address: str | bytes, timeout: float | None, number: int) -> None: ...
    def _info(self) -> str: ...
    def _metrics(self) -> str: ...
    @property
    def _timeout(self) -> float: ...
    def _hub(self) -> Any: ...

@final
class _PeerHandle: ...

@final
class _Queue:
    @property
    def fd(self) -> int: ...
    def take(self) -> list[tuple[int, int, int, str | None, _PeerHandle | None]]: ...
    def receive(self, agent: Agent, timeout: float | None) -> Notice | None: ...
    def close(self) -> None: ...

@final
class Memory(Buffer):
    """Shared memory that peers on this host can map. A buffer."""

    @property
    def address(self) -> int:
        """Its address in this process; a multiple of the page size."""
    def __len__(self) -> int: ...
    def numpy(self, dtype: Any = "uint8", shape: Any = None) -> Any:
        """A NumPy array of it, which keeps it alive."""
    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
    def __dlpack__(self, **keywords: Any) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __enter__(self) -> Memory: ...
    def __exit__(self, *_: object) -> None:
        """Frees it."""
    def free(self) -> None:
        """Frees it now. Raises BufferError while arrays or regions use it."""

@final
class Region:
    """Registered memory, or a registered file or object. Dropping it deregisters it."""

    @property
    def key(self) -> int:
        """Its number among the regions of its agent, until it is deregistered."""
    @property
    def address(self) -> int:
        """Its address in this process; 0 for a file or object."""
    @property
    def kind(self) -> Kind:
        """The kind of its memory."""
    @property
    def device(self) -> int:
        """The number that blocks of it name: of a file, one that the agent gave it."""
    @property
    def owner(self) -> Any:
        """The object that was registered, kept alive; None for memory by address, and files."""
    def blocks(self, offset: int, length: int, *dims: tuple[int, int]) -> Blocks:
        """Blocks of the region, from a number of bytes into it: for block_list()."""
    def commit(self, timeout: float | None = None) -> None:
        """For a file: waits for transfers in flight, 30 s by default, and makes all that was written durable; with
        replace=True the new file then takes the old one's place, once. Raises IoError, NoSpace, TimedOut or Stale."""
    def commit_async(self, timeout: float | None = None) -> Coroutine[Any, Any, None]:
        """The same for event loops. It goes on if the task is cancelled."""
    @property
    def name(self) -> str | None:
        """By which peers find it; None without one."""
    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
    def deregister_async(self, timeout: float | None = None) -> Coroutine[Any, Any, None]:
        """For event loops: the region can't be used any more, and this returns once nothing reaches its memory. NotYet
        after the timeout; then, and if the task is cancelled, it goes on, and `owner` lives until it has ended."""
    @property
    def _agent(self) -> Any: ...
    @property
    def _number(self) -> int: ...
    @property
    def _gone(self) -> bool: ...
    def _start_commit(self, timeout: float | None, number: int) -> None: ...
    def _start_deregistering(self, number: int) -> None: ...
    def _deregistered(self) -> None: ...
    def __enter__(self) -> Region: ...
    def __exit__(self, *_: object) -> None:
        """Deregisters it."""
    def view(self) -> View:
        """All of its elements, by the layout that it was registered with."""
    def __getitem__(self, picks: Any) -> View:
        """Some of them: `region[layer, pages]`."""
    def deregister(self, timeout: float | None = None) -> None:
        """Tells peers and waits for work in flight, 30 s by default. Raises TimedOut when some peer has not let go."""

@final
class RegionInfo:
    """A peer's region, as far as known."""

    @property
    def key(self) -> int:
        """Its number at its owner."""
    @property
    def name(self) -> str | None:
        """By which it is found; None without one."""
    @property
    def address(self) -> int:
        """Its address in its owner's process."""
    @property
    def nbytes(self) -> int:
        """Its size in bytes."""
    @property
    def device(self) -> int:
        """The number of its GPU in its owner's process, or of its file."""
    @property
    def kind(self) -> Kind:
        """The kind of its memory."""
    @property
    def access(self) -> Literal["none", "read", "write", "all"]:
        """The access that its owner gives peers."""
    @property
    def guarded(self) -> bool:
        """Its owner checks each access."""

@final
class Blocks:
    """One contiguous `length` repeated over up to four nested (count, stride in bytes) dimensions, outermost first.

    Block (i, j) of Blocks(address, length, (n, s), (m, t)) lies at address + i * s + j * t, and is number i * m + j.
    """

    def __init__(
        self, address: int, length: int, *dims: tuple[int, int], kind: Kind = "dram", device: int = 0
    ) -> None: ...
    @property
    def address(self) -> int:
        """The first block's address, in the peer for its lists; in a file or object the offset in bytes."""
    @property
    def length(self) -> int:
        """The length of each block, in bytes."""
    @property
    def dims(self) -> tuple[tuple[int, int], ...]:
        """(count, stride in bytes) of each dimension, outermost first."""
    @property
    def kind(self) -> Kind:
        """The kind of memory that they are in."""
    @property
    def device(self) -> int:
        """The GPU or file that they are on."""
    def __len__(self) -> int: ...

@final
class BlockList:
    """Checked blocks, ours or a peer's. Indices count through its entries."""

    @property
    def blocks(self) -> int:
        """How many there are."""
    @property
    def nbytes(self) -> int:
        """The length of all of them together, in bytes."""
    @property
    def peer(self) -> Peer | None:
        """The peer that owns the memory; None: this agent."""
    @property
    def layout(self) -> Layout | None:
        """The layout of the region that all of it was made from; None: it was made from blocks."""
    @property
    def _identity(self) -> Any: ...
    def _select(self, choices: tuple[Any, ...]) -> memoryview: ...
    def __len__(self) -> int: ...
    def __getitem__(self, picks: Picks) -> PickedBlocks:
        """Some of its blocks, in order, for Agent.copy(): None (all), a slice or range, integers, or an array of 4- or
        8-byte integers, which is not copied."""

@final
class Peer:
    """Another agent as seen from here."""

    @property
    def name(self) -> str:
        """As the peer named itself."""
    @property
    def incarnation(self) -> str:
        """32 hexadecimal digits; another one after the peer has restarted."""
    @property
    def health(self) -> Literal["unknown", "alive", "suspect", "lost"]:
        """"unknown": never connected. "suspect": silent for a while. "lost": gone for good."""
    def regions(self) -> list[RegionInfo]:
        """The regions that it has registered for others, in that order, as far as known: refresh() fetches new ones."""
    def region(self, name: str) -> View:
        """The elements of its region with this name. Raises NotFound, with the names there are; refresh() fetches new ones."""
    def __getitem__(self, name: str) -> View:
        """The same: `peer["kv"][layer, pages]`."""
    def block_list(self, source: Any, *, kind: Kind = "dram") -> BlockList:
        """Blocks of the peer's memory: Blocks, (address, length[, device]), a list of these, or an array of rows."""
    def send(self, data: Buffer, *, tag: int = 0, timeout: float | None = None) -> None:
        """Sends a notice of at most 65,536 bytes, with a tag of 64 bits for the peer's notices(tag). Waits for credit up to
        the timeout, the agent's by default, then raises Again. A peer of a version without tags: Unsupported."""
    def add(self, key: int, amount: int = 1, *, timeout: float | None = None) -> None:
        """Adds to the peer's counter with this key. A counter that is gone drops it, which the peer's metrics count."""
    def refresh(self, timeout: float | None = None) -> None:
        """Fetches the peer's present regions."""
    def send_async(self, data: Buffer, *, tag: int = 0, timeout: float | None = None) -> Coroutine[Any, Any, None]:
        """send() for event loops. `data` must not change until then."""
    def add_async(self, key: int, amount: int = 1, *, timeout: float | None = None) -> Coroutine[Any, Any, None]:
        """add() for event loops."""
    def refresh_async(self, timeout: float | None = None) -> Coroutine[Any, Any, None]:
        """refresh() for event loops. It goes on if the task is cancelled."""
    def credit_async(self, timeout: float | None = None) -> Coroutine[Any, Any, None]:
        """Waits until the peer has credit for a notice of any size, after Again. Raises NotYet. Others may use it first."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...
    @property
    def _agent(self) -> Any: ...
    def _try_send(self, data: Buffer, tag: int) -> bool: ...
    def _try_add(self, key: int, amount: int) -> bool: ...
    def _start_refresh(self, timeout: float | None, number: int) -> None: ...
    def _start_credit(self, number: int) -> None: ...
    def set_limit(self, bytes_per_s: int) -> None:
        """Limits what this agent's posts move to and from the peer; 0: no limit."""
    def remove(self) -> None:
        """Forgets the peer: everything in flight to it is cancelled."""

@final
class Transfer:
    """A move whose picks are fixed. It can be posted as often as wanted, once at a time, and be captured in a GPU's graph."""

    @property
    def nbytes(self) -> int:
        """The bytes that it moves."""
    @property
    def posted(self) -> bool:
        """It was posted at least once."""
    @property
    def timeout(self) -> float:
        """Seconds that each post has."""
    @property
    def result(self) -> Result:
        """The last post's outcome, and what it moved."""
    def post(self) -> Status:
        """Starts it. OK: done already. IN_PROGRESS: accepted. AGAIN: no credit or space now. Anything else raises."""
    def poll(self) -> Status:
        """OK or IN_PROGRESS; raises if it failed."""
    def wait(self, timeout: float | None = None) -> Status:
        """Waits for the end of the last post, and posts first if that never happened. Raises if it failed, and NotYet
        when the timeout came first: then it is still in flight."""
    def wait_fenced(
        self, fences: Literal["local", "remote", "both"] = "both", timeout: float | None = None
    ) -> None:
        """After a failure: waits until no byte of it can land, or be read, any more. Raises NotYet."""
    def post_on(self, stream: Any) -> Status:
        """Posts it as work of a GPU's stream (of torch, of CuPy, with `__cuda_stream__`, or by address): it comes after
        what the stream was given before, and what the stream is given later comes after it. IN_PROGRESS: posted, with an
        outcome like any post. OK: the stream is being captured, and each replay of the graph moves the bytes. AGAIN: no
        credit or connection yet. Anything else raises."""
    def wait_on(self, stream: Any) -> Status:
        """Makes everything that is put into the stream from here on wait for the last post. This thread waits for nothing."""
    @property
    def replays(self) -> Replays:
        """Counts of captured posts."""
    def cancel(self) -> None:
        """Ends it with CANCELLED if it has no outcome yet. Wait for the fence before reusing the memory."""
    def set_notice(self, notice: Buffer | None) -> None:
        """Replaces the notice of later posts. Raises Busy while in flight."""
    def route(self) -> dict[str, Any]:
        """Which backend moves the bytes, over what, why, and why others do not."""

@final
class Plan:
    """Two lists and the way between them, to be posted with new picks each time, several at once. When nothing refers to
    it any more, what is in flight is cancelled, and its memory fenced; a Post refers to its plan."""

    @property
    def from_(self) -> BlockList:
        """The list that bytes come from."""
    @property
    def to(self) -> BlockList:
        """The list that they go to."""
    def post(
        self,
        from_picks: Picks = None,
        to_picks: Picks = None,
        *,
        notice: Buffer | None = None,
        counter: int | tuple[int, int] | None = None,
        timeout: float | None = None,
        priority: Literal["bulk", "latency"] = "bulk",
        stream: Any = None,
        group: _Group | None = None,
        awaitable: bool | None = None,
        tag: int = 0,
    ) -> Post:
        """Starts moving picked blocks, pairwise in order. Wrong picks raise, and say which. Without credit it waits, or
        raises Again where an event loop runs. stream: of a GPU, as in Transfer.post_on(), or "unordered": at once, whatever
        streams do. Without it, memory of a GPU of this agent is moved in torch's current stream of that GPU if the program
        uses torch with GPUs, and else refused. tag: of the notice. awaitable:
        whether its end is told to event loops at once; by default where one runs. Without it an `await` is told 2 ms later
        at most."""
    def post_async(
        self,
        from_picks: Picks = None,
        to_picks: Picks = None,
        *,
        notice: Buffer | None = None,
        counter: int | tuple[int, int] | None = None,
        timeout: float | None = None,
        priority: Literal["bulk", "latency"] = "bulk",
        stream: Any = None,
        group: _Group | None = None,
        awaitable: bool | None = None,
        tag: int = 0,
    ) -> Coroutine[Any, Any, Post]:
        """post() that waits for credit, up to the agent's timeout, and returns the Post, started."""
    @property
    def backend(self) -> str:
        """What moves the bytes now; "staged": two legs through staging memory."""
    @property
    def _agent(self) -> Any: ...
    @property
    def _peer(self) -> Peer | None: ...
    def route(self) -> dict[str, Any]:
        """Which backend moves the bytes, over what, why, and why others do not."""

@final
class Post:
    """One run of a plan. `await post`, or `post.result()`. Dropping it lets it go on as long as its plan is there."""

    @property
    def backend(self) -> str:
        """What moves it, or has moved it."""
    @property
    def nbytes(self) -> int:
        """The bytes that it moves."""
    @property
    def awaitable(self) -> bool:
        """Its end is told to event loops at once."""
    def poll(self) -> Status:
        """OK or IN_PROGRESS; raises if it failed."""
    def done(self) -> bool:
        """It has its outcome. Never raises for it."""
    def wait(self, timeout: float | None = None) -> Status:
        """Waits for the outcome. Raises if it failed, and NotYet when the timeout came first: then
        it is still in flight."""
    def result(self, timeout: float | None = None) -> Result:
        """The same, and what was moved."""
    def peek(self) -> Result:
        """What it has moved so far. Waits for nothing, and never raises for the outcome."""
    def wait_fenced(
        self, fences: Literal["local", "remote", "both"] = "both", timeout: float | None = None
    ) -> None:
        """After a failure: waits until no byte of it can land, or be read, any more. Raises NotYet."""
    def wait_fenced_async(
        self, fences: Literal["local", "remote", "both"] = "both", timeout: float | None = None
    ) -> Coroutine[Any, Any, None]:
        """wait_fenced() for event loops."""
    def cancel(self) -> None:
        """Ends it with CANCELLED if it has no outcome yet. Wait for the fence before reusing the memory."""
    def __await__(self) -> Generator[Any, None, Result]:
        """result() for event loops. Cancelling the task cancels the post, and waits until this side is fenced."""
    _id: int
    _agent: Any
    _looked: bool
    def _look(self) -> int: ...
    def _result(self) -> Result: ...
    def _start_fence(self, fences: str, number: int) -> None: ...

@final
class GroupResult:
    """The outcome of a group."""

    @property
    def status(self) -> Status:
        """The outcome; IN_PROGRESS before it."""
    @property
    def fenced_locally(self) -> bool:
        """Nothing reaches this side's memory any more."""
    @property
    def fenced_remotely(self) -> bool:
        """Nothing reaches the peers' memory any more."""
    @property
    def members(self) -> int:
        """How many have joined, refused ones included."""
    @property
    def nbytes(self) -> int:
        """The bytes that have certainly been moved."""
    @property
    def total_nbytes(self) -> int:
        """The bytes of all members."""
    @property
    def failed_member(self) -> int | None:
        """The first to fail, in the order of joining."""

@final
class _Group:
    @property
    def awaitable(self) -> bool: ...
    @property
    def result(self) -> GroupResult: ...
    def close(self) -> Status: ...
    def poll(self) -> Status: ...
    def wait(self, timeout: float | None = None) -> Status: ...
    def wait_fenced(self, fences: str = "both", timeout: float | None = None) -> None: ...
    def cancel(self) -> None: ...
    def set_limit(self, bytes_per_s: int) -> None: ...
    _id: int
    _agent: Any
    def _look(self) -> int: ...
    def _start_fence(self, fences: str, number: int) -> None: ...

@final
class Replays:
    """How often replayed graphs came to a transfer, and what became of that."""

    @property
    def begun(self) -> int:
        """How often replayed graphs have reached the transfer."""
    @property
    def ended(self) -> int:
        """How many of them have ended."""
    @property
    def refused(self) -> int:
        """How many of those that ended moved nothing."""
    @property
    def status(self) -> Status:
        """OK, or why replays are refused from now on."""

@final
class Result:
    """The last post's outcome."""

    @property
    def status(self) -> Status:
        """The outcome; IN_PROGRESS before it."""
    @property
    def nbytes(self) -> int:
        """Moved for certain."""
    @property
    def total_nbytes(self) -> int:
        """The bytes that the post was to move."""
    @property
    def blocks(self) -> int:
        """How many blocks that were."""
    @property
    def fenced_locally(self) -> bool:
        """Nothing reaches this side's memory any more."""
    @property
    def fenced_remotely(self) -> bool:
        """Nothing reaches the peer's memory any more."""
    @property
    def posted_at_ns(self) -> int:
        """Nanoseconds of CLOCK_MONOTONIC; 0: it was done when post() returned."""
    @property
    def ended_at_ns(self) -> int:
        """Likewise."""
    @property
    def failed(self) -> list[FailedRange]:
        """The first 8 ranges of blocks that were not moved."""

@final
class Notice:
    """A small message that arrived."""

    @property
    def peer(self) -> Peer:
        """That sent it: `notice.peer.send(..)` answers, `notice.peer["kv"]` is its memory."""
    @property
    def data(self) -> bytes:
        """At most 65,536 bytes."""
    @property
    def nbytes(self) -> int:
        """len(data)."""
    @property
    def tag(self) -> int:
        """0: it was sent without one."""

@final
class Counter:
    """A 64-bit number here that peers add to."""

    @property
    def key(self) -> int:
        """The name that peers use for it; it travels to them with the application's own data."""
    @property
    def value(self) -> int:
        """As it is now."""
    def wait(self, threshold: int, timeout: float | None = None) -> int:
        """Waits until the value is at least the threshold, and gives the value. Raises NotYet."""
    def wait_async(self, threshold: int, timeout: float | None = None) -> Coroutine[Any, Any, int]:
        """wait() for event loops."""
    def __enter__(self) -> Counter: ...
    def __exit__(self, *_: object) -> None:
        """Destroys it: what peers add from then on is refused."""
    _agent: Any
    def _start(self, threshold: int, number: int) -> None: ...
    def _forget(self, number: int) -> None: ...

@final
class Directory:
    """Agents find one another here by name. Keys are relative to its namespace; an agent's are name/label.

    Its end, or close(), takes back what was published or put leased, unless another one of the same address is open.
    """

    def put(
        self, key: str, value: Buffer, *, leased: bool = False, create: bool = False, timeout: float | None = None
    ) -> DirectoryCall:
        """leased: the key goes when this agent is gone. create: fails with ALREADY_EXISTS when the key is there."""
    def get(
        self, key: str, *, prefix: bool = False, wait: bool = False, timeout: float | None = None
    ) -> DirectoryCall:
        """Gives the key's bytes, or raises NotFound; with prefix a dict of every key that begins so. wait: until there is
        one."""
    def delete(self, key: str, *, prefix: bool = False, timeout: float | None = None) -> DirectoryCall:
        """Removes a key, or with prefix all that begin so. NotFound if there was no such key."""
    def publish(
        self, *, label: str | None = None, regions: Iterable[Region] | None = None, timeout: float | None = None
    ) -> DirectoryCall:
        """Puts this agent's present metadata, leased."""
    def unpublish(self, *, label: str | None = None, timeout: float | None = None) -> DirectoryCall:
        """Takes back what publish() put under this label, or with None all of it."""
    def fetch(
        self,
        name: str,
        *,
        label: str | None = None,
        wait: bool = False,
        follow: bool = False,
        timeout: float | None = None,
    ) -> DirectoryCall:
        """Gives the Peer that published itself as name. follow: the peer is forgotten once its key is gone."""
    def watch(self, prefix: str = "") -> Watch:
        """Changes below a prefix from now on, after the present entries."""
    def close(self, timeout: float | None = None) -> None:
        """Takes back what was leased or published, and waits for that, 2 s by default."""
    def _info(self) -> str: ...
    def __enter__(self) -> Directory: ...
    def __exit__(self, *_: object) -> None: ...

@final
class DirectoryCall:
    """Something that was asked of a directory. `await` it, or wait() for it."""

    @property
    def done(self) -> bool:
        """It has ended; wait() does not block."""
    def wait(self, timeout: float | None = None) -> Any:
        """Its result; raises what failed, and NotYet when the timeout came first: then it goes on."""
    def cancel(self) -> None:
        """It ends with Cancelled if it has not ended."""
    def __await__(self) -> Generator[Any, None, Any]: ...
    _agent: Any
    def _start(self, number: int) -> None: ...

@final
class Watch:
    """The events of a directory, for `for` and `async for`: (kind, key, value), where kind is "put", "gone", or once
    "synced", when everything that was there at first has been told."""

    @property
    def following(self) -> bool:
        """False while it connects to a server."""
    def next(self, timeout: float | None = None) -> DirectoryEvent | None:
        """None when no event came within the timeout."""
    def __iter__(self) -> Watch: ...
    def __next__(self) -> DirectoryEvent: ...
    def __aiter__(self) -> Watch: ...
    _agent: Any
    _number: int
    def _start(self, number: int) -> None: ...
    async def __anext__(self) -> DirectoryEvent: ...
