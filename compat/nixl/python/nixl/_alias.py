"""Makes other package names stand for nixl, with the same modules and classes, not copies of them."""

from __future__ import annotations

import importlib
import sys

MODULES = ("_api", "_bindings", "_utils", "logging", "telemetry")


def install(package: str) -> None:
    """Lets `package`, which is being imported, answer for nixl and its submodules."""
    nixl = importlib.import_module("nixl")
    alias = sys.modules[package]
    for name in nixl.__all__:
        setattr(alias, name, getattr(nixl, name))
    for name in MODULES:
        module = importlib.import_module(f"nixl.{name}")
        sys.modules[f"{package}.{name}"] = module
        setattr(alias, name, module)
    alias.__all__ = nixl.__all__
    alias.__version__ = nixl.__version__
