"""A server that takes objects of up to 8 MiB by both of Google's interfaces, XML and JSON, which no server at hand does: so that uploads
of Towline and of Google's client meet the same one. It keeps them in memory, checks nobody and says little.

Usage: plain_gcs.py PORT
"""

from __future__ import annotations

import hashlib
import http.server
import json
import sys
import urllib.parse


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1  # head and body leave together
    objects: dict[str, bytes] = {}

    def answer(self, status: int, body: bytes = b"", kind: str = "application/json", **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Type", kind)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self) -> bytes:
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def keep(self, key: str, content: bytes) -> dict[str, str]:
        self.objects[key] = content
        return {"ETag": f'"{hashlib.md5(content).hexdigest()}"', "x_goog_generation": "1"}

    def do_PUT(self) -> None:
        self.answer(200, **self.keep(self.path.removeprefix("/bucket/"), self.body()))

    def do_POST(self) -> None:
        body = self.body()
        if not self.path.startswith("/upload/"):  # of a bucket
            return self.answer(200, b'{"kind": "storage#bucket", "name": "bucket"}')
        boundary = b"--" + self.headers.get_boundary().encode()
        _, about, content, _ = body.split(boundary, 3)
        about = json.loads(about.split(b"\r\n\r\n", 1)[1])
        self.keep(about["name"], content.split(b"\r\n\r\n", 1)[1][:-2])
        self.answer(200, json.dumps({**about, "bucket": "bucket", "generation": "1"}).encode())

    def do_GET(self) -> None:
        path = urllib.parse.urlsplit(self.path).path
        content = self.objects.get(urllib.parse.unquote(path.rsplit("/", 1)[1]))
        if content is None:
            return self.answer(404)
        kind = "application/octet-stream"
        if (asked := self.headers.get("Range", "")).startswith("bytes="):
            first, last = asked.removeprefix("bytes=").split("-")
            begin, end = int(first), min(int(last or len(content)) + 1, len(content))
            return self.answer(206, content[begin:end], kind, Content_Range=f"bytes {begin}-{end - 1}/{len(content)}")
        self.answer(200, content, kind)

    do_HEAD = do_GET

    def log_message(self, *_) -> None:
        pass


if __name__ == "__main__":
    http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
