"""What NIXL's packages choose their wheel by. Here one package serves all, and nothing is chosen; programs may still ask."""

from __future__ import annotations

import importlib.util
import pathlib
import re
import sys

__all__ = ["detect_cuda_major"]

_TORCH_CUDA = re.compile(r"""^cuda\b[^=\n]*=\s*['"](\d+)""", re.MULTILINE)


def detect_cuda_major() -> int | None:
    """The major version of the CUDA that this process uses: torch's, cuda-python's or cupy's if one is imported, else that which
    an installed torch was built for. Imports none of them. None: no CUDA."""
    torch = sys.modules.get("torch")
    bindings = sys.modules.get("cuda.bindings")
    for version in (getattr(getattr(torch, "version", None), "cuda", None), getattr(bindings, "__version__", None)):
        if version:
            return int(version.split(".")[0])
    if (cupy := sys.modules.get("cupy")) is not None:
        try:
            return cupy.cuda.runtime.runtimeGetVersion() // 1000
        except Exception:  # its library does not load
            pass
    return _torch_cuda_major()


def _torch_cuda_major() -> int | None:
    try:
        spec = importlib.util.find_spec("torch")
        if spec is None or not spec.origin:
            return None
        text = (pathlib.Path(spec.origin).parent / "version.py").read_text()
    except (ImportError, OSError, ValueError):
        return None
    found = _TORCH_CUDA.search(text)
    return int(found[1]) if found else None
