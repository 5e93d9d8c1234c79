"""What Buffer needs of torch's GPUs."""

from __future__ import annotations


class _Memory:
    """Bytes on a GPU, for torch.as_tensor."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


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

    def bytes_at(self, address: int, size: int):
        import torch

        return torch.as_tensor(_Memory(address, size), device=self.device)
