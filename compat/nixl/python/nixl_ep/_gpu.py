"""What Buffer needs of torch's GPUs."""

from __future__ import annotations

import os
import warnings

_QUEUES = "CUDA_DEVICE_MAX_CONNECTIONS"


class _Memory:
    """Bytes on a GPU, for torch.as_tensor."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def _tensors_in(made):
    if isinstance(made, tuple):
        for part in made:
            yield from _tensors_in(part)
    elif made is not None:
        yield made


def warn_of_few_queues() -> None:
    """A kernel that stands behind one that waits holds up every stream of its queue, and with it copies that bring what is waited for."""
    queues = os.environ.get(_QUEUES, "8")
    if not queues.isdigit() or int(queues) < 32:
        warnings.warn(
            f"nixl_ep: this process has {queues} queues for its streams, so tokens of other hosts may come late, or not before the "
            f"timeout: set {_QUEUES}=32 before CUDA starts",
            stacklevel=2,
        )


class TorchGpu:
    """The calling thread's current GPU."""

    host: str | None = None  # the real one; tests count ranks as on other hosts

    def __init__(self) -> None:
        import torch

        self.index = torch.cuda.current_device()
        self.device = torch.device("cuda", self.index)
        self._communication = None

    def table(self):
        from . import _library

        return _library.load()

    def functions(self) -> int:
        """The address of Towline's functions, for ranks of other hosts."""
        from nixl import _bindings

        return _bindings._experts_functions()

    def opens_to_hosts(self) -> None:
        warn_of_few_queues()

    def stream(self) -> int:
        import torch

        return torch.cuda.current_stream(self.device).cuda_stream

    def communication_stream(self):
        import torch

        if self._communication is None:
            self._communication = torch.cuda.Stream(self.device, priority=-1)
        return self._communication

    def beside(self, work):
        """Does it on the communication stream, after what the current stream holds. Returns its end, as an event."""
        import torch

        stream = self.communication_stream()
        stream.wait_stream(torch.cuda.current_stream(self.device))
        work(stream.cuda_stream)
        event = torch.cuda.Event()
        event.record(stream)
        return event

    def make_beside(self, work, after, tensors):
        """Does work(stream), which returns tensors that it makes, on the communication stream: after the event, or without one after what the
        current stream holds. `tensors` are those that it uses. Returns what it made, and its end as an event."""
        import torch

        stream, current = self.communication_stream(), torch.cuda.current_stream(self.device)
        if after is None:
            stream.wait_stream(current)
        else:
            stream.wait_event(after)
        # First: work that raises may have put some kernels into the stream.
        for tensor in _tensors_in(tensors):
            tensor.record_stream(stream)
        with torch.cuda.stream(stream):
            made = work(stream.cuda_stream)
        event = torch.cuda.Event()
        event.record(stream)
        for tensor in _tensors_in(made):
            tensor.record_stream(current)
        return made, event

    def wait(self, event) -> None:
        """The current stream waits."""
        import torch

        torch.cuda.current_stream(self.device).wait_event(event)

    def bytes_at(self, address: int, size: int):
        import torch

        return torch.as_tensor(_Memory(address, size), device=self.device)
