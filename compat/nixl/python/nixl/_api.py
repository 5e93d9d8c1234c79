"""The agent, as programs written for NIXL use it.

What a call can't do raises one of the exceptions of nixl._bindings, named after the status: nixlNotFoundError,
nixlNotAllowedError and so on. No call returns "ERR".
"""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Callable, Optional, TypeVar, Union

from . import _bindings, _describe
from ._config import DEFAULT_COMM_PORT, nixl_agent_config, nixl_thread_sync_t
from ._handles import nixl_prepped_dlist_handle, nixl_xfer_handle
from .logging import get_logger

if TYPE_CHECKING:
    import numpy as np

__all__ = [
    "DEFAULT_COMM_PORT",
    "nixl_agent",
    "nixl_agent_config",
    "nixl_backend_handle",
    "nixl_prepped_dlist_handle",
    "nixl_thread_sync_t",
    "nixl_xfer_handle",
]

logger = get_logger(__name__)

nixlBind = _bindings  # the name that programs import the lists and exceptions by

_NONE: list[int] = []  # no backends named; never changed
_XferList = _bindings.nixlXferDList

# A backend's number in the binding; callers name backends.
nixl_backend_handle = int

# The name of each backend's parameter for its number of threads.
_THREADS_PARAMETER = {
    "UCX": "num_threads",
    "OBJ": "num_threads",
    "LIBFABRIC": "num_threads",
    "GDS_MT": "thread_count",
    "UCCL": "num_cpus",
}


_Method = TypeVar("_Method", bound=Callable)


def _quick(method: _Method) -> _Method:
    """The method, done by the extension where the arguments are the usual ones."""
    return getattr(_bindings, f"_quick_{method.__name__}")(method)


class nixl_agent:
    """One participant: registered memory, known peers, transfers and notifications. Any thread may call anything.

    Args:
        agent_name: what peers know it by; must not be empty.
        nixl_conf: see nixl_agent_config; None takes its defaults.
        instantiate_all: create every backend there is; ignored when nixl_conf is given.

    Raises:
        ValueError: the name is empty.
    """

    def __init__(
        self, agent_name: str, nixl_conf: Optional[nixl_agent_config] = None, instantiate_all: bool = False
    ):
        if nixl_conf and instantiate_all:
            logger.warning("instantiate_all is ignored, since a configuration is given")
            instantiate_all = False
        conf = nixl_conf or nixl_agent_config()
        # Looked up here, so that a program may put its own in its place.
        self.agent = _bindings.nixlAgent(agent_name, conf._native())
        self.name = agent_name
        self.notifs: dict[str, list[bytes]] = {}
        self.backends: dict[str, nixl_backend_handle] = {}
        self.backend_mems: dict[str, list[str]] = {}
        self.backend_options: dict[str, dict[str, str]] = {}
        self.plugin_b_options: dict[str, dict[str, str]] = {}
        self.plugin_mem_types: dict[str, list[str]] = {}
        self.nixl_mems = dict(_describe.MEMORY_TYPES)
        self.nixl_ops = {"WRITE": _bindings.NIXL_WRITE, "READ": _bindings.NIXL_READ}
        self.plugin_list = self.agent.getAvailPlugins()
        for backend in self.plugin_list if instantiate_all else conf.backends:
            if backend not in self.plugin_list:
                logger.warning("backend %s is not created: there is no such plugin here", backend)
                continue
            if instantiate_all and not self.get_plugin_mem_types(backend):
                continue
            threads = {}
            if conf.num_threads > 0 and backend in _THREADS_PARAMETER:
                threads[_THREADS_PARAMETER[backend]] = str(conf.num_threads)
            self.create_backend(backend, threads)
        logger.info("Initialized NIXL agent: %s", agent_name)

    # ---- backends

    def get_plugin_list(self) -> list[str]:
        """The backends that can be created."""
        return self.plugin_list

    def get_plugin_mem_types(self, backend: str) -> list[str]:
        """The memory types that a backend takes; empty, and a warning, when there is no such plugin."""
        self._load_plugin(backend)
        return self.plugin_mem_types.get(backend, [])

    def get_plugin_params(self, backend: str) -> dict[str, str]:
        """A backend's parameters for creation, with defaults; empty, and a warning, when there is no such plugin."""
        self._load_plugin(backend)
        return self.plugin_b_options.get(backend, {})

    def get_backend_mem_types(self, backend: str) -> list[str]:
        """The memory types that a created backend takes; empty, and a warning, when it was not created."""
        return self._created(backend, self.backend_mems, [])

    def get_backend_params(self, backend: str) -> dict[str, str]:
        """The parameters that a created backend runs with; empty, and a warning, when it was not created."""
        return self._created(backend, self.backend_options, {})

    def create_backend(self, backend: str, initParams: dict[str, str] = {}) -> None:
        """Creates a backend.

        Raises:
            nixlNotFoundError: there is no such plugin.
            nixlInvalidParamError: it was created already, or does not take these parameters.
        """
        handle = self.agent.createBackend(backend, initParams)
        self.backends[backend] = handle
        self.backend_options[backend], self.backend_mems[backend] = self.agent.getBackendParams(handle)
        logger.info("Backend %s was instantiated", backend)

    # ---- memory

    def register_memory(
        self, reg_list: Any, mem_type: Optional[str] = None, backends: list[str] = []
    ) -> _bindings.nixlRegDList:
        """Registers memory, which must stay in place until it is deregistered.

        Args:
            reg_list: what get_reg_descs takes.
            mem_type: needed with tuples and arrays.
            backends: those to register with; all that take the memory type when empty.

        Returns:
            The list to deregister with.
        """
        descs = self.get_reg_descs(reg_list, mem_type)
        self.agent.registerMem(descs, self._handles(backends))
        return descs

    def deregister_memory(self, dereg_list: _bindings.nixlRegDList, backends: list[str] = []) -> None:
        """Deregisters the list that register_memory returned. Peers detach first, and transfers in flight end.

        Raises:
            nixlNotFoundError: some descriptor is not registered like that.
        """
        self.agent.deregisterMem(dereg_list, self._handles(backends))

    def query_memory(
        self, reg_list: Any, backend: str, mem_type: Optional[str] = None
    ) -> list[Optional[dict[str, str]]]:
        """Asks a backend about each descriptor, a file's size for example; None where it finds nothing.

        Raises:
            ValueError: the backend was not created.
        """
        descs = self.get_reg_descs(reg_list, mem_type)
        if backend not in self.backends:
            raise ValueError(f"backend {backend!r} was not created; these were: {', '.join(self.backends) or 'none'}")
        return self.agent.queryMem(descs, self.backends[backend])

    # ---- descriptor lists

    @_quick
    def get_xfer_descs(self, descs: Any, mem_type: Optional[str] = None) -> Optional[_bindings.nixlXferDList]:
        """A list for transfers.

        Args:
            descs: a list of (address, bytes, device) with `mem_type`; an N x 3 NumPy array of such rows, 64-bit, with
                `mem_type`; a contiguous tensor or a list of them; or a nixlXferDList, which is given back.
            mem_type: "DRAM", "VRAM", "FILE", "BLOCK" or "OBJ".

        Returns:
            None, and an error in the log, where `descs` is none of these.

        Raises:
            KeyError: there is no such memory type.
        """
        return _describe.xfer_descs(descs, mem_type)

    def get_reg_descs(self, descs: Any, mem_type: Optional[str] = None) -> Optional[_bindings.nixlRegDList]:
        """A list for registrations: as get_xfer_descs, with tuples of (address, bytes, device, text or bytes)."""
        return _describe.reg_descs(descs, mem_type)

    def get_remote_descs(self, descs: Any, mem_type: Optional[str] = None) -> Optional[_bindings.nixlRemoteDList]:
        """A list of (address, bytes, device, agent name), for memory views."""
        return _describe.remote_descs(descs, mem_type)

    def get_serialized_descs(self, descs: Any) -> bytes:
        """A list as bytes, with pickle."""
        return pickle.dumps(descs)

    def deserialize_descs(self, serialized_descs: bytes) -> Any:
        """The list of such bytes. Only of bytes that come from where you trust: pickle runs what they say."""
        return pickle.loads(serialized_descs)

    # ---- transfers

    def make_connection(self, remote_agent: str, backends: list[str] = []) -> None:
        """Connects to a peer now, rather than by the first transfer.

        Raises:
            nixlNotFoundError: no metadata of such an agent was loaded.
        """
        self.agent.makeConnection(remote_agent, self._handles(backends))

    @_quick
    def prep_xfer_dlist(
        self, agent_name: str, xfer_list: Any, mem_type: Optional[str] = None, backends: list[str] = []
    ) -> nixl_prepped_dlist_handle:
        """Checks and resolves a list once, for requests that pick descriptors of it by index.

        Args:
            agent_name: "" or "NIXL_INIT_AGENT" for the local side; for the other side the peer's name, or the agent's
                own for a transfer within it.
            xfer_list: what get_xfer_descs takes, or an N x 5 array of (address, bytes, device, stride, count): `count`
                descriptors that begin `stride` bytes apart. Indices count through all of them.
            mem_type: needed with tuples and arrays.
            backends: those that may be used; any when empty.

        Raises:
            nixlNotFoundError: no such agent, or memory that is not registered there.
        """
        handles = self._handles(backends) if backends else _NONE
        if agent_name == "NIXL_INIT_AGENT":
            agent_name = ""
        if type(xfer_list) is not _XferList:
            if _describe.is_strided(xfer_list):
                if mem_type is None:
                    raise ValueError("an N x 5 array of descriptors needs mem_type")
                handle = self.agent.prepXferDlist(agent_name, self.nixl_mems[mem_type], xfer_list, handles)
                return nixl_prepped_dlist_handle(self.agent, handle)
            xfer_list = self.get_xfer_descs(xfer_list, mem_type)
        return nixl_prepped_dlist_handle(self.agent, self.agent.prepXferDlist(agent_name, xfer_list, handles))

    @_quick
    def make_prepped_xfer(
        self,
        operation: str,
        local_xfer_side: nixl_prepped_dlist_handle,
        local_indices: Union[list[int], np.ndarray],
        remote_xfer_side: nixl_prepped_dlist_handle,
        remote_indices: Union[list[int], np.ndarray],
        notif_msg: Union[bytes, str] = b"",
        backends: list[str] = [],
        skip_desc_merge: bool = False,
    ) -> nixl_xfer_handle:
        """A request between chosen descriptors of two prepared lists, pairwise in order.

        Args:
            operation: "READ" or "WRITE".
            local_indices, remote_indices: as many on both sides; arrays of 32- or 64-bit integers are the fastest.
            notif_msg: arrives at the peer after the data; none when empty.
            skip_desc_merge: has no effect.

        Raises:
            KeyError: another operation.
            nixlInvalidParamError: an index beyond a list, or sides that differ in number or size.
        """
        handle = self.agent.makeXferReq(
            self.nixl_ops[operation],
            local_xfer_side._handle,
            local_indices,
            remote_xfer_side._handle,
            remote_indices,
            notif_msg,
            self._handles(backends) if backends else _NONE,
            skip_desc_merge,
        )
        return nixl_xfer_handle(self.agent, handle)

    @_quick
    def initialize_xfer(
        self,
        operation: str,
        local_descs: _bindings.nixlXferDList,
        remote_descs: _bindings.nixlXferDList,
        remote_agent: str,
        notif_msg: Union[bytes, str] = b"",
        backends: list[str] = [],
    ) -> nixl_xfer_handle:
        """A request between two lists as they are, pairwise in order. For descriptors that are used once; see
        make_prepped_xfer for others.

        Raises:
            KeyError: an operation other than "READ" and "WRITE".
            nixlNotFoundError: no such agent, or memory that is not registered.
            nixlInvalidParamError: sides that differ in number or size.
        """
        handles = self._handles(backends) if backends else _NONE
        handle = self.agent.createXferReq(
            self.nixl_ops[operation], local_descs, remote_descs, remote_agent, notif_msg, handles
        )
        return nixl_xfer_handle(self.agent, handle)

    @_quick
    def transfer(self, handle: nixl_xfer_handle, notif_msg: Union[bytes, str] = b"") -> str:
        """Starts a request; one that has ended may be started again.

        Args:
            notif_msg: replaces the request's notification, from this time on.

        Returns:
            "DONE" when it has ended already, else "PROC".

        Raises:
            nixlRepostActiveError: it is still under way.
            nixlRemoteDisconnectError: the peer is gone.
        """
        return self.agent._transfer(handle._handle, notif_msg)

    @_quick
    def check_xfer_state(self, handle: nixl_xfer_handle) -> str:
        """The state of a request: "DONE" or "PROC".

        Raises:
            nixlNotPostedError: it was never started.
            nixlRemoteDisconnectError, nixlBackendError, nixlCancelledError: it failed like that.
        """
        return self.agent._state(handle._handle)

    def get_xfer_telemetry(self, handle: nixl_xfer_handle) -> _bindings.nixlXferTelemetry:
        """The figures of a request's last run: startTime, postDuration and xferDuration in microseconds, totalBytes,
        descCount.

        Raises:
            nixlNoTelemetryError: the agent does not capture any.
        """
        return self.agent.getXferTelemetry(handle._handle)

    def estimate_xfer_cost(self, req_handle: nixl_xfer_handle) -> tuple[int, int, str]:
        """How long a request is expected to take: microseconds, their margin of error, and the method."""
        duration, margin, method = self.agent.estimateXferCost(req_handle._handle)
        known = method == _bindings.NIXL_COST_ANALYTICAL_BACKEND
        return duration, margin, "ANALYTICAL_BACKEND" if known else "UNKNOWN"

    def query_xfer_backend(self, handle: nixl_xfer_handle) -> str:
        """The name of the backend that a request goes through."""
        chosen = self.agent.queryXferBackend(handle._handle)
        return next(name for name, backend in self.backends.items() if backend == chosen)

    def release_xfer_handle(self, handle: nixl_xfer_handle) -> None:
        """See nixl_xfer_handle.release."""
        handle.release()

    def release_dlist_handle(self, handle: nixl_prepped_dlist_handle) -> None:
        """See nixl_prepped_dlist_handle.release."""
        handle.release()

    # ---- memory views, for kernels

    def prep_mem_view(
        self,
        dlist: Union[_bindings.nixlXferDList, _bindings.nixlRemoteDList],
        *,
        backends: Optional[list[str]] = None,
    ) -> int:
        """A view of memory for GPU kernels that move bytes themselves: the address that the calls of nixl_device.cuh take.

        It is for the GPU whose context is current, if this agent has registered memory there, else for one that it has.

        Raises:
            nixlNotSupportedError: that GPU has no address of some of the memory, or there is no GPU; the log says why.
            nixlNotFoundError: memory that is not registered, or that no loaded metadata tells of.
        """
        return self.agent.prepMemView(dlist, self._handles(backends or []))

    def release_mem_view(self, mvh: int) -> None:
        """Frees what prep_mem_view returned."""
        self.agent.releaseMemView(mvh)

    # ---- notifications

    @_quick
    def get_new_notifs(self, backends: list[str] = []) -> dict[str, list[bytes]]:
        """Takes the notifications that have arrived, by the name of the agent that sent them."""
        return self.agent.getNotifs({}, self._handles(backends)) if backends else self.agent._newNotifs()

    def update_notifs(self, backends: list[str] = []) -> dict[str, list[bytes]]:
        """Adds what has arrived to `notifs`, where check_remote_xfer_done looks, and returns that."""
        for sender, messages in self.get_new_notifs(backends).items():
            self.notifs.setdefault(sender, []).extend(messages)
        return self.notifs

    def check_remote_xfer_done(
        self, remote_agent_name: Union[str, bytes], lookup_tag: bytes, backends: list[str] = [], tag_is_prefix: bool = True
    ) -> bool:
        """Whether a peer's notification with this tag has arrived; if so it is taken, others are kept.

        Args:
            lookup_tag: how the message begins, or with tag_is_prefix=False any part of it. An empty one fits all.
        """
        if isinstance(remote_agent_name, bytes):  # as add_remote_agent gives it
            remote_agent_name = remote_agent_name.decode(errors="surrogateescape")
        messages = self.update_notifs(backends).get(remote_agent_name, ())
        for index, message in enumerate(messages):
            if message.startswith(lookup_tag) if tag_is_prefix else lookup_tag in message:
                del messages[index]
                return True
        return False

    def send_notif(self, remote_agent_name: str, notif_msg: Union[bytes, str], backend: Optional[str] = None) -> None:
        """Sends a notification by itself. It is not ordered with those of transfers.

        Raises:
            nixlNotFoundError: no metadata of such an agent was loaded.
        """
        self.agent.genNotif(remote_agent_name, notif_msg, [] if backend is None else [self.backends[backend]])

    # ---- metadata

    def get_agent_metadata(self) -> bytes:
        """The metadata that peers need to reach this agent and all its registered memory."""
        return self.agent.getLocalMD()

    def get_partial_agent_metadata(
        self, descs: _bindings.nixlRegDList, inc_conn_info: bool = False, backends: list[str] = []
    ) -> bytes:
        """The same with chosen registrations only.

        Args:
            descs: registered descriptors; may be empty, to tell how to connect and nothing else.
            inc_conn_info: whether to tell how to connect as well.
        """
        return self.agent.getLocalPartialMD(descs, inc_conn_info, self._handles(backends))

    def add_remote_agent(self, metadata: bytes) -> bytes:
        """Makes a peer known by its metadata, or adds to what is known of it.

        Returns:
            Its name, as bytes. Every call that takes a name takes it like that too.
        """
        return self.agent.loadRemoteMD(metadata)

    def remove_remote_agent(self, agent: str) -> None:
        """Forgets a peer. Transfers to it end; requests and lists made for it answer with errors."""
        self.agent.invalidateRemoteMD(agent)

    def send_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        """Gives this agent's metadata to the agent listening there; without `ip_addr`, to the directory."""
        self.agent.sendLocalMD(ip_addr, port)

    def send_partial_agent_metadata(
        self,
        descs: _bindings.nixlRegDList,
        inc_conn_info: bool = False,
        backends: list[str] = [],
        ip_addr: str = "",
        port: int = DEFAULT_COMM_PORT,
        label: str = "",
    ) -> None:
        """The same with chosen registrations only; `label` names them in the directory."""
        self.agent.sendLocalPartialMD(descs, inc_conn_info, self._handles(backends), ip_addr, port, label)

    def fetch_remote_metadata(
        self, remote_agent: str, ip_addr: str = "", port: int = DEFAULT_COMM_PORT, label: str = ""
    ) -> None:
        """Asks the agent listening there for its metadata; without `ip_addr`, the directory. check_remote_metadata
        says when it is here."""
        self.agent.fetchRemoteMD(remote_agent, ip_addr, port, label)

    def invalidate_local_metadata(self, ip_addr: str = "", port: int = DEFAULT_COMM_PORT) -> None:
        """Makes the agent listening there forget this one; without `ip_addr`, the directory."""
        self.agent.invalidateLocalMD(ip_addr, port)

    def check_remote_metadata(self, agent: str, descs: Optional[_bindings.nixlXferDList] = None) -> bool:
        """Whether a peer is known, and `descs`, if given, are in its registered memory as far as that is known."""
        if descs is None:
            descs = _bindings.nixlXferDList(_bindings.DRAM_SEG)
        return self.agent.checkRemoteMD(agent, descs) == _bindings.NIXL_SUCCESS

    # ---- helpers

    def _handles(self, backends: list[str]) -> list[int]:
        return [self.backends[name] for name in backends]

    def _load_plugin(self, plugin: str) -> None:
        if plugin in self.plugin_mem_types:
            return
        if plugin not in self.plugin_list:
            logger.warning("there is no plugin %s here", plugin)
            return
        try:
            self.plugin_b_options[plugin], self.plugin_mem_types[plugin] = self.agent.getPluginParams(plugin)
        except Exception:
            logger.warning("plugin %s does not tell its parameters", plugin, exc_info=True)

    @staticmethod
    def _created(backend: str, what: dict[str, Any], nothing: Any) -> Any:
        if backend not in what:
            logger.warning("backend %s was not created", backend)
        return what.get(backend, nothing)
