"""Builds a wheel named `nixl` that holds no code and requires `towline-nixl`.

Projects that require `nixl[cu13]==1.5.0` are satisfied by it, and pip does not bring NVIDIA's in. Its version is
NIXL_VERSION of the environment, else that of the interface here, with the local label `towline`: `==1.5.0` accepts
`1.5.0+towline`. NIXL_DISTRIBUTION names another of NVIDIA's wheels to stand for, `nixl-cu12` or `nixl-cu13`. It needs
nothing to be built.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import zipfile
from pathlib import Path

INTERFACE = "1.5.1"
EXTRAS = ("cu12", "cu13")
NAMES = ("nixl", "nixl-cu12", "nixl-cu13")


def _version() -> str:
    version = os.environ.get("NIXL_VERSION", INTERFACE)
    if not re.fullmatch(r"\d+(\.\d+)*", version):
        raise SystemExit(f"NIXL_VERSION is '{version}', and should be a version such as {INTERFACE}")
    return f"{version}+towline"


def _name() -> str:
    name = os.environ.get("NIXL_DISTRIBUTION", NAMES[0])
    if name not in NAMES:
        raise SystemExit(f"NIXL_DISTRIBUTION is '{name}', and should be one of {', '.join(NAMES)}")
    return name


def _metadata(name: str, version: str) -> str:
    lines = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        "Summary: Stands for NIXL where towline-nixl takes its place",
        "Requires-Python: >=3.10",
        "Requires-Dist: towline-nixl",
        *(f"Provides-Extra: {extra}" for extra in EXTRAS if name == NAMES[0]),
    ]
    return "\n".join(lines) + "\n"


def _record_line(name: str, content: bytes) -> str:
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    return f"{name},sha256={digest},{len(content)}\n"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    version = _version()
    stem = f"{_name().replace('-', '_')}-{version}"
    folder = f"{stem}.dist-info"
    files = {
        f"{folder}/METADATA": _metadata(_name(), version),
        f"{folder}/WHEEL": "Wheel-Version: 1.0\nGenerator: towline\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(_record_line(name, text.encode()) for name, text in files.items())
    files[f"{folder}/RECORD"] = record + f"{folder}/RECORD,,\n"
    file = f"{stem}-py3-none-any.whl"
    with zipfile.ZipFile(Path(wheel_directory) / file, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
    return file
