"""Works."""

from __future__ import annotations

from datetime import timedelta
from typing import Any, Callable

from towline import Error, Status

from ._types import DEFAULT_TIMEOUT, WorkStatus

_STATES = {
    "not_started": WorkStatus.NOT_STARTED,
    "in_progress": WorkStatus.INPROGRESS,
    "completed": WorkStatus.COMPLETED,
    "timed_out": WorkStatus.TIMEDOUT,
    "error": WorkStatus.ERROR,
}


class TorchWork:
    """An operation: ended (`native` None), one of ours, or what a registered class returned."""

    def __init__(self, native: Any = None, timeout: timedelta | None = None, blocking: bool = False) -> None:
        self._native, self._timeout, self._blocking = native, timeout or DEFAULT_TIMEOUT, blocking
        self._status: WorkStatus | None = None if native is not None else WorkStatus.COMPLETED
        self._wait_hooks: tuple[list[Callable], list[Callable]] = ([], [])

    @property
    def status(self) -> WorkStatus:
        if self._status is not None:
            return self._status
        return _STATES[self._native.state] if hasattr(self._native, "state") else WorkStatus.INPROGRESS

    def is_completed(self) -> bool:
        return self.status not in (WorkStatus.NOT_STARTED, WorkStatus.INPROGRESS)

    def wait(self) -> None:
        for hook in self._wait_hooks[0]:
            hook()
        if self._status is None:
            try:
                self._native.wait()
            except Error as error:
                raise RuntimeError(str(error)) from error
            if not hasattr(self._native, "state"):
                self._status = WorkStatus.COMPLETED
        for hook in self._wait_hooks[1]:
            hook()

    def wait_blocking(self) -> None:
        if not self._blocking:
            raise RuntimeError("waitBlocking not implemented for this backend; use wait()")
        self.wait()
        if hasattr(self._native, "wait_blocking"):
            try:
                self._native.wait_blocking()
            except Error as error:
                raise RuntimeError(str(error)) from error

    def get_timeout(self) -> timedelta:
        return self._timeout

    def error(self) -> Status:
        return self._native.poll() if hasattr(self._native, "poll") else Status.OK

    def register_work_start_hook(self, hook: Callable[[], None]) -> None:
        if hasattr(self._native, "on_start"):
            self._native.on_start(hook)
        else:
            hook()

    def register_work_end_hook(self, hook: Callable[[], None]) -> None:
        if hasattr(self._native, "on_end"):
            self._native.on_end(hook)
        else:
            hook()

    def register_work_wait_pre_hook(self, hook: Callable[[], None]) -> None:
        self._wait_hooks[0].append(hook)

    def register_work_wait_post_hook(self, hook: Callable[[], None]) -> None:
        self._wait_hooks[1].append(hook)

    def _set_status(self, status: WorkStatus) -> None:
        self._status = status
