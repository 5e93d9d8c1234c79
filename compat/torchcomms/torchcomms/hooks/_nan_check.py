"""Refuses operations whose input holds a NaN, before they are issued."""

from __future__ import annotations

from typing import Any

import torch


class NanCheckHook:
    def __init__(self) -> None:
        self._handles: list[Any] = []

    def register_with_comm(self, comm: Any) -> None:
        self._handles.append(comm.register_pre_hook(lambda name, op_id, told: self._check(comm, name, op_id, told)))

    def unregister(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    @staticmethod
    def _check(comm: Any, name: Any, op_id: int, told: Any) -> None:
        if name.name in ("recv",) or getattr(told, "root", comm.get_rank()) != comm.get_rank() and name.name in ("broadcast", "scatter"):
            return
        given = getattr(told, "input", None)
        given = getattr(told, "tensor", None) if given is None else given
        for tensor in given if isinstance(given, (list, tuple)) else [given]:
            if isinstance(tensor, torch.Tensor) and tensor.is_floating_point() and torch.isnan(tensor).any():
                raise RuntimeError(f"NaN in the input of {name.name} (operation {op_id}) of {comm.get_name()}")
