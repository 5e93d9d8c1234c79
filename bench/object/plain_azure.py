"""A server of Azure's block blobs that checks nothing: it shows what uploads cost the clients. Azurite computes a CRC-64 in JavaScript, 15 ns a
byte, which then hides all else; the service does that on other machines.

Usage: plain_azure.py PORT
"""

from __future__ import annotations

import http.server
import sys
import urllib.parse
import uuid

from plain_gcs import Handler as Plain

DATE = "Fri, 27 Nov 2026 12:00:00 GMT"


class Handler(Plain):
    blocks: dict[str, dict[str, bytes]] = {}

    def said(self) -> tuple[str, dict[str, list[str]]]:
        url = urllib.parse.urlsplit(self.path)
        return url.path, urllib.parse.parse_qs(url.query)

    def tell(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.answer(status, body, "application/octet-stream", ETag='"0x1"', Last_Modified=DATE, x_ms_version="2021-12-02",
                    x_ms_request_id=str(uuid.uuid4()), x_ms_request_server_encrypted="true", **headers)  # fmt: skip

    def handle_expect_100(self) -> bool:
        going_on = super().handle_expect_100()
        self.wfile.flush()  # Azure's client for C++ waits for it
        return going_on

    def do_PUT(self) -> None:
        body = self.body()
        path, query = self.said()
        match query.get("comp", [""])[0]:
            case "block":
                self.blocks.setdefault(path, {})[query["blockid"][0]] = body
            case "blocklist":
                names = [part.split("<", 1)[0] for part in body.decode().split("<Latest>")[1:]]
                kept = self.blocks.pop(path)
                self.objects[path] = b"".join(kept[name] for name in names)
            case _:
                self.objects[path] = body
        self.tell(201)

    def do_GET(self) -> None:
        content = self.objects.get(self.said()[0])
        if content is None:
            return self.tell(404, x_ms_error_code="BlobNotFound")
        about = {"x_ms_blob_type": "BlockBlob", "x_ms_creation_time": DATE, "x_ms_server_encrypted": "true",
                 "x_ms_lease_state": "available", "x_ms_lease_status": "unlocked", "Accept_Ranges": "bytes"}  # fmt: skip
        asked = self.headers.get("x-ms-range") or self.headers.get("Range") or ""
        if not asked.startswith("bytes="):
            return self.tell(200, content, **about)
        first, last = asked.removeprefix("bytes=").split("-")
        begin, end = int(first), min(int(last or len(content)) + 1, len(content))
        self.tell(206, content[begin:end], Content_Range=f"bytes {begin}-{end - 1}/{len(content)}", **about)

    do_HEAD = do_GET


class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128


if __name__ == "__main__":
    Server(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
