"""Programs import this to name the implementation behind "gloo": here, ours."""

from ._backends import Native as TorchCommGloo

__all__ = ["TorchCommGloo"]
