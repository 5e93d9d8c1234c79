"""The servers that objects are measured at: versitygw, and emulators of Azure and of Google's store."""

from __future__ import annotations

import os
import pathlib
import shutil
import socket
import subprocess
import sys
import time

from mover import ACCESS_KEY, AZURE_ACCOUNT, BUCKET, REGION, SECRET_KEY


class Server:
    """Listens on loopback from its making until end()."""

    def __init__(self, folder: pathlib.Path, *program: str, path: str = "", **environment: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        words = [word.replace("ADDRESS", f"127.0.0.1:{port}").replace("PORT", str(port)) for word in program]
        self.url = f"http://127.0.0.1:{port}{path}"
        self.process = subprocess.Popen(
            words, cwd=folder, env={**os.environ, **environment}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        until = time.monotonic() + 30
        while True:
            if self.process.poll() is not None or time.monotonic() > until:
                raise SystemExit(f"{program[0]} does not start")
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                return
            except OSError:
                time.sleep(0.02)

    def cpu_seconds(self) -> float:
        """Of the server so far."""
        return time.clock_gettime(~self.process.pid << 3 | 2)  # the clock of that process, see clock_getcpuclockid(3)

    def forget(self) -> None:
        """Objects that no later cell reads may go."""

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Versitygw(Server):
    def __init__(self, args, folder: pathlib.Path) -> None:
        (folder / BUCKET).mkdir(parents=True)
        super().__init__(
            folder, str(args.peers / "versitygw"), "--port", "ADDRESS", "--region", REGION, "-q", "--keep-alive", "posix",
            str(folder), ROOT_ACCESS_KEY=ACCESS_KEY, ROOT_SECRET_KEY=SECRET_KEY,
        )  # fmt: skip

    def forget(self) -> None:
        for left in (self.folder / BUCKET).iterdir():
            left.unlink() if left.is_file() else shutil.rmtree(left)


class Azurite(Server):
    """Keeps everything in memory. The clients make the container."""

    def __init__(self, args, folder: pathlib.Path) -> None:
        super().__init__(
            folder, args.azurite, "--blobHost", "127.0.0.1", "--blobPort", "PORT", "--inMemoryPersistence", "--silent",
            "--disableTelemetry", "--skipApiVersionCheck", path=f"/{AZURE_ACCOUNT}",
        )  # fmt: skip


class FakeGcs(Server):
    """Keeps everything in memory; takes uploads through the JSON interface alone."""

    def __init__(self, args, folder: pathlib.Path) -> None:
        super().__init__(
            folder, str(args.cloud_peers / "fake-gcs-server"), "-scheme", "http", "-host", "127.0.0.1", "-port", "PORT",
            "-public-host", "ADDRESS", "-external-url", "http://ADDRESS", "-backend", "memory", "-log-level", "error",
        )  # fmt: skip


class PlainGcs(Server):
    """Takes uploads by both interfaces; of the bench's own."""

    def __init__(self, _, folder: pathlib.Path) -> None:
        super().__init__(folder, sys.executable, str(pathlib.Path(__file__).with_name("plain_gcs.py")), "PORT")


class PlainAzure(Server):
    """Checks nothing; of the bench's own."""

    def __init__(self, _, folder: pathlib.Path) -> None:
        program = str(pathlib.Path(__file__).with_name("plain_azure.py"))
        super().__init__(folder, sys.executable, program, "PORT", path=f"/{AZURE_ACCOUNT}")


SERVERS = {"s3": Versitygw, "azure": Azurite, "azure_put": PlainAzure, "gcs": FakeGcs, "gcs_put": PlainGcs}
