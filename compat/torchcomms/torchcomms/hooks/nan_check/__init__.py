"""The check for NaNs, by the name that torchcomms has for it."""

from .._nan_check import NanCheckHook

__all__ = ["NanCheckHook"]
