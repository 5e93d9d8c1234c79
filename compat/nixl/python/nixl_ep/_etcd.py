"""Ranks that meet by etcd, over its JSON interface."""

from __future__ import annotations

import base64
import http.client
import json
import time
import urllib.error
import urllib.request

from ._meeting import key_of, pause

_SECONDS = 5.0  # for a server to answer


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


class EtcdMeeting:
    """endpoints: as in NIXL_ETCD_ENDPOINTS, "host:port" or "http(s)://host:port", separated by commas. Keys lie in the namespace."""

    changes = True  # as StoreMeeting's

    def __init__(self, endpoints: str, namespace: str, mode: str) -> None:
        given = [each.strip().rstrip("/") for each in endpoints.split(",") if each.strip()]
        self._servers = [each if "://" in each else f"http://{each}" for each in given]
        self._namespace = namespace.rstrip("/")
        self._mode = mode

    def _post(self, call: str, body: dict) -> dict:
        """By the first server that answers."""
        failures = []
        for server in self._servers:
            request = urllib.request.Request(f"{server}/v3/kv/{call}", json.dumps(body).encode(), {"Content-Type": "application/json"})
            try:
                with urllib.request.urlopen(request, timeout=_SECONDS) as answer:
                    return json.loads(answer.read())
            except (OSError, ValueError, http.client.HTTPException) as failure:  # urllib's errors are OSErrors
                failures.append(f"{server}: {failure}")
        raise ConnectionError(f"nixl_ep: etcd (NIXL_ETCD_ENDPOINTS) refuses {call}: " + "; ".join(failures or ["no server is named"]))

    def _key(self, rank: int) -> str:
        return _text(f"{self._namespace}/{key_of(self._mode, rank)}".encode())

    def publish(self, rank: int, description: bytes) -> None:
        self._post("put", {"key": self._key(rank), "value": _text(description)})

    def fetch(self, rank: int, seconds: float) -> bytes:
        """Waits for the rank's description, and for servers that do not answer."""
        end = time.monotonic() + seconds
        while True:
            found = None
            try:
                found = self._post("range", {"key": self._key(rank)}).get("kvs")
            except ConnectionError:
                if time.monotonic() > end:
                    raise
            if found:
                return base64.b64decode(found[0].get("value", ""))
            if time.monotonic() > end:
                raise TimeoutError(f"nixl_ep: timed out after {seconds:.0f} s waiting for rank {rank} in etcd")
            pause()

    def withdraw(self, rank: int) -> None:
        self._post("deleterange", {"key": self._key(rank)})

    def anyone(self, again: bool, failure: Exception | None) -> bool:
        if failure is not None:
            raise failure
        return again
