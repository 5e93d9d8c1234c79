"""Ranks that meet by etcd, over its JSON interface."""

from __future__ import annotations

import base64
import json
import time
import urllib.error
import urllib.request

from ._meeting import pause

_SECONDS = 5.0  # for a server to answer


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class EtcdMeeting:
    """endpoints: as in NIXL_ETCD_ENDPOINTS, "host:port" or "http(s)://host:port", separated by commas. Keys lie in the namespace."""

    def __init__(self, endpoints: str, namespace: str) -> None:
        given = [each.strip().rstrip("/") for each in endpoints.split(",") if each.strip()]
        self._servers = [each if "://" in each else f"http://{each}" for each in given]
        self._namespace = namespace.rstrip("/")

    def _post(self, call: str, body: dict) -> dict:
        """By the first server that answers."""
        failures = []
        for server in self._servers:
            request = urllib.request.Request(f"{server}/v3/kv/{call}", json.dumps(body).encode(), {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                    return json.loads(answer.read())
            except (OSError, ValueError) as failure:  # HTTP errors are OSErrors
                failures.append(f"{server}: {failure}")
        raise ConnectionError(f"nixl_ep: etcd (NIXL_ETCD_ENDPOINTS) refuses {call}: " + "; ".join(failures or ["no server is named"]))

    def _key(self, rank: int) -> str:
        return _text(f"{self._namespace}/NIXL_EP/{rank}".encode())

    def publish(self, rank: int, description: bytes) -> None:
        self._post("put", {"key": self._key(rank), "value": _text(description)})

    def fetch(self, rank: int, seconds: float) -> bytes:
        """Waits for the rank's description."""
        end = time.monotonic() + seconds
        while True:
            found = self._post("range", {"key": self._key(rank)}).get("kvs")
            if found:
                return base64.b64decode(found[0].get("value", ""))
            if time.monotonic() > end:
                raise TimeoutError(f"nixl_ep: timed out after {seconds:.0f} s waiting for rank {rank} in etcd")
            pause()

    def withdraw(self, rank: int) -> None:
        self._post("deleterange", {"key": self._key(rank)})

    def anyone(self, again: bool) -> bool:
        return again
