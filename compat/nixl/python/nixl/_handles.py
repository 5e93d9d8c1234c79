"""Prepared lists and requests, as the agent hands them out."""

from __future__ import annotations

from .logging import get_logger

logger = get_logger(__name__)


class _Handle:
    """Something the agent keeps for its holder. Freed by release(), or when the last reference to it goes.

    Args:
        agent: the binding's nixlAgent that made it.
        value: its number there.
    """

    __slots__ = ("_handle", "_agent", "_released")

    def __init__(self, agent, value: int):
        self._agent = agent
        self._handle = value
        self._released = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._handle:#x}, released={self._released})"

    def _free(self) -> None:
        raise NotImplementedError

    def release(self) -> None:
        """Frees it; a second call does nothing."""
        if not self._released:
            self._free()
            self._released = True
            self._handle = 0

    def __del__(self):
        if self._released:
            return
        try:
            self.release()
        except Exception as error:
            # The agent frees it at its end.
            _complain("%s %#x was not freed: %s", type(self).__name__, self._handle, error)


class nixl_prepped_dlist_handle(_Handle):
    """A prepared descriptor list. Requests made from it outlive it."""

    __slots__ = ()

    def _free(self) -> None:
        self._agent.releasedDlistH(self._handle)


class nixl_xfer_handle(_Handle):
    """A transfer request.

    release() cancels what is in flight and waits until no byte of it can land any more. It raises
    nixlRepostActiveError when the wait was too long: nothing is freed then; call again.
    """

    __slots__ = ()

    def _free(self) -> None:
        self._agent.releaseXferReq(self._handle)


def _complain(message: str, *arguments) -> None:
    """Logs from a finaliser, which may run while the interpreter ends and nothing works any more."""
    try:
        logger.error(message, *arguments)
    except Exception:
        pass
