"""The end of an exchange, as an event of a CUDA stream. Importing it needs no torch."""

from __future__ import annotations

__all__ = ["EventHandle", "EventOverlap"]


class EventHandle:
    """A moment in a stream: given, or what the current stream holds now."""

    def __init__(self, event=None) -> None:
        import torch

        if event is None:
            event = torch.cuda.Event()
            event.record(torch.cuda.current_stream())
        self._event = event

    def current_stream_wait(self) -> None:
        import torch

        torch.cuda.current_stream().wait_event(self._event)


class EventOverlap:
    """An event, and tensors that stay alive until it is gone. As a context manager, the current stream waits at the end."""

    def __init__(self, event: EventHandle | None = None, extra_tensors: tuple | None = None) -> None:
        self.event = event
        self.extra_tensors = extra_tensors

    def current_stream_wait(self) -> None:
        """The current stream waits. Only with an event: of an exchange with async_finish, or captured."""
        if self.event is None:
            raise RuntimeError("nixl_ep: this exchange has no event: give async_finish=True")
        self.event.current_stream_wait()

    def __enter__(self) -> EventOverlap:
        return self

    def __exit__(self, *_) -> None:
        if self.event is not None:
            self.event.current_stream_wait()
