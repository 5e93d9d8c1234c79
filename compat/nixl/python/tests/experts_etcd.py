"""A real etcd, for ranks that meet there."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import shutil
import socket
import subprocess
import time
import urllib.request


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _post(address: str, call: str, body: dict) -> dict:
    request = urllib.request.Request(f"http://{address}/v3/kv/{call}", json.dumps(body).encode())
    with urllib.request.urlopen(request, timeout=5) as answer:
        return json.loads(answer.read())


def keys(address: str) -> list:
    """All of its keys."""
    return _post(address, "range", {"key": "AA==", "range_end": "AA=="}).get("kvs", [])


@contextlib.contextmanager
def running(folder: pathlib.Path):
    """Its address; None where it is not installed."""
    if shutil.which("etcd") is None:
        yield None
        return
    address, peers = f"127.0.0.1:{_free_port()}", f"http://127.0.0.1:{_free_port()}"
    command = ["etcd", "--data-dir", folder / "data", "--listen-client-urls", f"http://{address}", "--advertise-client-urls"]
    command += [f"http://{address}", "--listen-peer-urls", peers, "--initial-advertise-peer-urls", peers]
    command += ["--initial-cluster", f"default={peers}", "--log-level", "error"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            end = time.monotonic() + 60
            while True:
                try:
                    keys(address)
                    break
                except OSError:
                    if process.poll() is not None or time.monotonic() > end:
                        raise RuntimeError((folder / "log").read_text()) from None
                    os.sched_yield()
            yield address
        finally:
            process.terminate()
            process.wait()
