"""One contender in a process of its own: moves objects as it is told by lines of JSON on stdin, and answers on stdout.

A command: {"op": "GET" | "PUT", "keys": [...], "bytes": size of each, "concurrency": in flight at once}.
An answer: {"seconds", "latencies": [s of each object] or [], "cpu_seconds", "wrong": bytes of the last GET that differ,
"memory": the most bytes that were held meanwhile beyond what was held before}. The first line is {"ready": true}.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import pathlib
import resource
import subprocess
import sys
import threading
import time

PART = 8 << 20
PATTERN = bytes(range(251)) * (1 << 12)  # of a period that no block size is a multiple of
ACCESS_KEY, SECRET_KEY, BUCKET, REGION = "bench", "benchbench", "bucket", "us-east-1"
AZURE_ACCOUNT = "devstoreaccount1"  # of every Azurite, with this key
AZURE_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def pattern(size: int) -> bytes:
    return (PATTERN * (size // len(PATTERN) + 1))[:size]


def prepare(array, op: str, size: int, count: int) -> None:
    """Objects to PUT, or zeros where GET is to write."""
    if op == "PUT":
        for place in range(count):
            array[place * size : (place + 1) * size] = memoryview(pattern(size))
    else:
        array[: size * count] = 0


class Towline:
    """Into and out of one piece of registered memory, one transfer an object."""

    BACKENDS = {"s3": "object", "azure": "azure", "gcs": "gcs"}
    SCHEMES = {"s3": "s3", "azure": "az", "gcs": "gs"}

    def __init__(self, endpoint: str, span: int, server: str) -> None:
        import numpy
        import towline

        backend = self.BACKENDS[server]
        keys = f'access_key = "{ACCESS_KEY}"\nsecret_key = "{SECRET_KEY}"\n'
        if server == "azure":
            keys = f'account = "{AZURE_ACCOUNT}"\naccount_key = "{AZURE_KEY}"\n'
        if server == "s3":
            keys += f'region = "{REGION}"\n'
        self.config = f'plugins = "object"\n[{backend}]\nendpoint = "{endpoint}"\n{keys}[tuning.{backend}]\n'
        self.config += f"multipart = {PART}\npart = {PART}\n"
        if server == "s3":  # as the CRT client does it; by default bytes that go over an unencrypted line are signed
            self.config += 'sign_payload = "never"\n'
        self.bucket = f"{self.SCHEMES[server]}://{BUCKET}"
        self.towline = towline
        self.array = numpy.frombuffer(bytearray(span), numpy.uint8)
        self.agents: dict = {}

    def agent(self, concurrency: int):
        if concurrency not in self.agents:
            agent = self.towline.Agent(
                "mover",
                listen="none",
                config=f"{self.config}concurrency = {concurrency}\n",
            )
            self.agents[concurrency] = (agent, agent.register(self.array, access="rw"))
        return self.agents[concurrency][0]

    def prepare(self, op: str, size: int, count: int) -> None:
        prepare(self.array, op, size, count)

    def move(self, op: str, keys: list[str], size: int, concurrency: int) -> list[float]:
        agent = self.agent(concurrency)
        mine = agent.block_list(self.towline.Blocks(self.array.ctypes.data, size, (len(keys), size)))
        latencies, flying = [], []

        def land() -> None:
            """Takes all that have ended, at least one: whichever ends first makes room for the next."""
            while True:
                ended = [one for one in flying if one[0].poll() == self.towline.Status.OK]
                for one in ended:
                    flying.remove(one)
                    latencies.append((one[0].result().ended_at_ns or time.perf_counter_ns()) / 1e9 - one[2])
                if ended:
                    return
                with contextlib.suppress(self.towline.TimedOut):
                    flying[0][0].wait(0.001 if len(flying) > 1 else 300)

        for place, key in enumerate(keys):
            began = time.perf_counter()
            uri = f"{self.bucket}/{key}"
            if op == "GET":
                object = agent.register_storage(uri, nbytes=size)
                move = agent.plan(agent.block_list(object.blocks(0, size)), mine, timeout=300).post(0, place)
            else:
                object = agent.register_storage(uri, create=True, truncate=True, nbytes=size)
                move = agent.plan(mine, agent.block_list(object.blocks(0, size)), timeout=300).post(place, 0)
            flying.append((move, object, began))  # dropped, the object would be deregistered: that waits for its transfer
            if len(flying) >= concurrency:
                land()
        while flying:
            land()
        return latencies

    def got(self, place: int, size: int) -> bytes:
        return self.array[place * size : (place + 1) * size].tobytes()


class Crt:
    """Amazon's CRT client; from and to files in memory, which it opens itself, or through Python's buffers."""

    def __init__(self, endpoint: str, span: int, folder: pathlib.Path, in_memory: bool) -> None:
        import awscrt.auth
        import awscrt.http
        import awscrt.s3

        self.s3, self.http = awscrt.s3, awscrt.http
        self.host = endpoint.removeprefix("http://")
        self.folder, self.in_memory = folder, in_memory
        self.signing = awscrt.s3.create_default_s3_signing_config(
            region=REGION,
            credential_provider=awscrt.auth.AwsCredentialsProvider.new_static(ACCESS_KEY, SECRET_KEY),
        )
        self.buffer = bytearray(span) if self.in_memory else bytearray()
        self.clients: dict = {}

    def client(self, concurrency: int):
        if concurrency not in self.clients:
            self.clients[concurrency] = self.s3.S3Client(
                region=REGION, tls_mode=self.s3.S3RequestTlsMode.DISABLED, signing_config=self.signing,
                part_size=PART, multipart_upload_threshold=PART, max_active_connections_override=concurrency,
            )
        return self.clients[concurrency]

    def prepare(self, op: str, size: int, count: int) -> None:
        self.body = pattern(size)
        if not self.in_memory and op == "PUT":
            (self.folder / "source").write_bytes(self.body)

    def request(self, op: str, key: str, size: int, place: int):
        headers = self.http.HttpHeaders([("host", self.host)])
        more = {}
        stream = None
        if op == "PUT":
            headers.add("content-length", str(size))
            headers.add("content-type", "application/octet-stream")
            if self.in_memory:
                stream = io.BytesIO(self.body)
            else:
                more["send_filepath"] = str(self.folder / "source")
        elif self.in_memory:
            into = memoryview(self.buffer)[place * size : (place + 1) * size]

            def on_body(chunk, offset, **_):
                into[offset : offset + len(chunk)] = chunk

            more["on_body"] = on_body
        else:
            more["recv_filepath"] = str(self.folder / f"got-{place}")
        return self.http.HttpRequest(op, f"/{BUCKET}/{key}", headers, stream), more

    def move(self, op: str, keys: list[str], size: int, concurrency: int) -> list[float]:
        client = self.client(concurrency)
        kind = self.s3.S3RequestType.GET_OBJECT if op == "GET" else self.s3.S3RequestType.PUT_OBJECT
        room = threading.Semaphore(concurrency)
        latencies: list[float] = []
        flying = []
        for place, key in enumerate(keys):
            room.acquire()
            request, more = self.request(op, key, size, place)
            began = time.perf_counter()

            def on_done(began=began, **_):
                latencies.append(time.perf_counter() - began)
                room.release()

            flying.append(client.make_request(type=kind, request=request, on_done=on_done, **more))
        for request in flying:
            request.finished_future.result(300)
        return latencies

    def got(self, place: int, size: int) -> bytes:
        if self.in_memory:
            return bytes(memoryview(self.buffer)[place * size : (place + 1) * size])
        return (self.folder / f"got-{place}").read_bytes()


class S5cmd:
    """One run of the program for all objects: its start, some milliseconds, is in its time."""

    def __init__(self, endpoint: str, folder: pathlib.Path, program: str) -> None:
        self.endpoint, self.folder, self.program = endpoint, folder, program
        self.environment = {**os.environ, "AWS_ACCESS_KEY_ID": ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
                            "AWS_REGION": REGION}  # fmt: skip

    def prepare(self, op: str, size: int, count: int) -> None:
        if op == "PUT":
            (self.folder / "source").write_bytes(pattern(size))

    def move(self, op: str, keys: list[str], size: int, concurrency: int) -> list[float]:
        copy = f"cp --part-size {PART >> 20} --concurrency {concurrency}"
        lines = [
            f"{copy} s3://{BUCKET}/{key} {self.folder}/got-{place}" if op == "GET"
            else f"{copy} {self.folder}/source s3://{BUCKET}/{key}"
            for place, key in enumerate(keys)
        ]  # fmt: skip
        (self.folder / "commands").write_text("\n".join(lines) + "\n")
        workers = concurrency if size <= PART else max(1, min(concurrency, len(keys)))
        words = [self.program, "--endpoint-url", self.endpoint, "--numworkers", str(workers), "--log", "error", "run"]
        subprocess.run([*words, f"{self.folder}/commands"], check=True, env=self.environment, stdout=sys.stderr)
        return []

    def got(self, place: int, size: int) -> bytes:
        return (self.folder / f"got-{place}").read_bytes()


def cpu_seconds() -> float:
    use = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in use)


class Memory:
    """How much more the process held at most than when this was made; of a program it ran, all that held."""

    def __init__(self) -> None:
        pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins here
        self.before = self.status("VmRSS")

    @staticmethod
    def status(key: str) -> int:
        lines = pathlib.Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(key))

    def peak(self, runs_program: bool) -> int:
        if runs_program:
            return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss << 10
        return self.status("VmHWM") - self.before


def contender(args):
    if args.contender == "towline":
        return Towline(args.endpoint, args.span, args.server)
    if args.contender in ("crt", "crt_memory"):
        return Crt(args.endpoint, args.span, args.folder, args.contender == "crt_memory")
    if args.contender == "s5cmd":
        return S5cmd(args.endpoint, args.folder, args.s5cmd)
    import cloud_clients

    kinds = {"azure": cloud_clients.AzureClient, "google": cloud_clients.GoogleClient, "nixl": cloud_clients.NixlAzure,
             "dropin": cloud_clients.NixlAzure}  # fmt: skip
    return kinds[args.contender](args.endpoint, args.span)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("contender", choices=["towline", "crt", "crt_memory", "s5cmd", "azure", "google", "nixl", "dropin"])
    parser.add_argument("endpoint")
    parser.add_argument("span", type=int, help="bytes of all objects of a command at most")
    parser.add_argument("folder", type=pathlib.Path, help="for files, in memory")
    parser.add_argument("--server", default="s3", choices=["s3", "azure", "gcs"])
    parser.add_argument("--s5cmd", default="s5cmd")
    args = parser.parse_args()
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print is no answer
    mover = contender(args)
    print(json.dumps({"ready": True}), file=answers, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        op, keys, size = command["op"], command["keys"], command["bytes"]
        mover.prepare(op, size, len(keys))
        memory = Memory()
        used, began = cpu_seconds(), time.perf_counter()
        latencies = mover.move(op, keys, size, command["concurrency"])
        seconds, used = time.perf_counter() - began, cpu_seconds() - used
        held = memory.peak(args.contender == "s5cmd")
        wrong = 0
        if op == "GET" and command["check"]:
            expected = pattern(size)
            wrong = sum(mover.got(place, size) != expected for place in {0, len(keys) // 2, len(keys) - 1})
        print(json.dumps({"seconds": seconds, "latencies": latencies, "cpu_seconds": used, "wrong": wrong, "memory": held}),
              file=answers, flush=True)  # fmt: skip
    answers.flush()
    if args.contender == "nixl":
        os._exit(0)  # its agent ends a process by a fault


if __name__ == "__main__":
    main()
