"""Options of an agent."""

from __future__ import annotations

from enum import Enum
from typing import Optional

from . import _bindings

DEFAULT_COMM_PORT = _bindings.DEFAULT_COMM_PORT


class nixl_thread_sync_t(Enum):
    """The locking of an agent against several threads. Towline's agents may be called from any thread, whatever is set
    here; the value is kept for programs that look at it."""

    NIXL_THREAD_SYNC_NONE = _bindings.NIXL_THREAD_SYNC_NONE
    NIXL_THREAD_SYNC_STRICT = _bindings.NIXL_THREAD_SYNC_STRICT
    NIXL_THREAD_SYNC_RW = _bindings.NIXL_THREAD_SYNC_RW
    NIXL_THREAD_SYNC_DEFAULT = _bindings.NIXL_THREAD_SYNC_DEFAULT


class nixl_agent_config:
    """Options of nixl_agent.

    Args:
        enable_prog_thread: whether a thread of the agent makes progress, so that peers are served, and notifications
            leave, while the application does other things. It sleeps when there is nothing to do.
        enable_listen_thread: whether peers may exchange metadata with this agent over TCP, at `listen_port`.
        listen_port: the port for that; 0 takes a free one.
        capture_telemetry: whether requests can be asked for their figures.
        num_threads: handed to the backends that take a number of threads; 0 leaves it to them.
        backends: those to create at once, ["UCX"] by default.
        sync_mode: a nixl_thread_sync_t. None: STRICT when listening, else NONE.

    Raises:
        TypeError: sync_mode is something else.
    """

    def __init__(
        self,
        enable_prog_thread: bool = True,
        enable_listen_thread: bool = False,
        listen_port: int = DEFAULT_COMM_PORT,
        capture_telemetry: bool = False,
        num_threads: int = 0,
        backends: list[str] = ["UCX"],
        sync_mode: Optional[nixl_thread_sync_t] = None,
    ):
        if sync_mode is not None and not isinstance(sync_mode, nixl_thread_sync_t):
            raise TypeError(f"sync_mode must be a nixl_thread_sync_t, not {type(sync_mode).__name__}")
        self.enable_pthread = enable_prog_thread
        self.enable_listen = enable_listen_thread
        self.port = listen_port
        self.capture_telemetry = capture_telemetry
        self.num_threads = num_threads
        self.backends = backends
        self.sync_mode = sync_mode

    def _native(self) -> _bindings.nixlAgentConfig:
        mode = self.sync_mode
        if mode is None:
            strict = nixl_thread_sync_t.NIXL_THREAD_SYNC_STRICT
            mode = strict if self.enable_listen else nixl_thread_sync_t.NIXL_THREAD_SYNC_NONE
        native = _bindings.nixlAgentConfig()
        native.useProgThread = self.enable_pthread
        native.useListenThread = self.enable_listen
        native.listenPort = self.port
        native.syncMode = mode.value
        native.captureTelemetry = self.capture_telemetry
        return native
