"""Refuses operations whose tensors hold a NaN, before they are issued."""

from __future__ import annotations

from typing import Any

import torch


class NanCheckHook:
    """Looks at inputs, and if asked at what outputs hold beforehand; raises RuntimeError."""

    def __init__(self, check_inputs: bool = True, check_outputs: bool = False) -> None:
        self._fields = [("input", ("input", "tensor"))] if check_inputs else []
        self._fields += [("output", ("output",))] if check_outputs else []
        self._handles: list[Any] = []

    def register_with_comm(self, comm: Any) -> None:
        self._handles.append(comm.register_pre_hook(lambda name, op_id, told: self._check(comm, name, op_id, told)))

    def unregister(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def is_enabled(self) -> bool:
        """Whether any communicator is looked at."""
        return bool(self._handles)

    def _check(self, comm: Any, name: Any, op_id: int, told: Any) -> None:
        if name.name == "recv":
            return
        if torch.cuda.is_available() and torch.cuda.is_current_stream_capturing():
            return  # looking would wait for the GPU, and end the capture
        gives = getattr(told, "root", comm.get_rank()) == comm.get_rank() or name.name not in ("broadcast", "scatter")
        for what, fields in self._fields:
            if what == "input" and not gives:
                continue
            for tensor in self._tensors(told, fields):
                if tensor.is_floating_point() and torch.isnan(tensor).any():
                    raise RuntimeError(f"NaN in the {what} of {name.name} (operation {op_id}) of {comm.get_name()}")

    @staticmethod
    def _tensors(told: Any, fields: tuple[str, ...]) -> list[torch.Tensor]:
        given = next((found for field in fields if (found := getattr(told, field, None)) is not None), [])
        return [one for one in (given if isinstance(given, (list, tuple)) else [given]) if isinstance(one, torch.Tensor)]
