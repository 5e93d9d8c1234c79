"""One side of a pair that is measured, through NIXL's Python interface: NIXL itself, or Towline under its name.

    side.py PACKAGE ROLE

The harness writes one JSON request per line to standard input and reads one answer per line from standard output. What
libraries print goes to standard error.
"""

import base64
import importlib
import json
import mmap
import os
import select
import statistics
import sys
import tempfile
import time

import numpy as np

PACKAGE, ROLE = sys.argv[1], sys.argv[2]
LOOKS_PER_SELECT = 64
CALL_BLOCK = 256  # bytes a descriptor, where calls are measured
WARM_TURNS = 20
SHORT_CALLS = 200  # of one descriptor, made for one sample
WARM_BYTES = 8 << 20  # what is run more than once before it is measured

_answers = os.dup(1)
os.dup2(2, 1)


def answer(message):
    os.write(_answers, json.dumps(message).encode() + b"\n")


def read_request():
    line = bytearray()
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1 << 20)
        if not chunk:
            return None
        line += chunk
    return json.loads(line)


class Side:
    def setup(self, span, memory, prog_thread, params):
        """An agent with `span` bytes: "ordinary" private pages, or "shared", a file in memory as torch shares tensors."""
        start = time.perf_counter()
        api = importlib.import_module(f"{PACKAGE}._api")
        imported = time.perf_counter()
        self.bindings = importlib.import_module(f"{PACKAGE}._bindings")
        self.pages = self._map(span, memory)
        self.memory = np.frombuffer(self.pages, dtype=np.uint8)
        self.memory[:] = 1
        self.address = self.memory.ctypes.data
        created = time.perf_counter()
        self.agent = api.nixl_agent(ROLE, api.nixl_agent_config(enable_prog_thread=prog_thread, backends=[]))
        self.agent.create_backend("UCX", params)
        agent_s = time.perf_counter() - created
        self.agent.register_memory([(self.address, span, 0, "")], "DRAM")
        self.request, self.lists, self.sending = None, [], False
        blob = base64.b64encode(self.agent.get_agent_metadata()).decode()
        return {"metadata": blob, "address": self.address, "agent_s": agent_s, "import_s": imported - start}

    @staticmethod
    def _map(span, memory):
        if memory == "ordinary":
            return mmap.mmap(-1, span, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        with tempfile.TemporaryFile(dir="/dev/shm") as file:
            file.truncate(span)
            return mmap.mmap(file.fileno(), span, flags=mmap.MAP_SHARED)

    def meet(self, metadata, address):
        self.their_address = address
        self.other = self.agent.add_remote_agent(base64.b64decode(metadata)).decode()
        return {}

    # ---- moving data

    def _rows(self, base, blocks, block):
        rows = np.zeros((len(blocks), 3), dtype=np.uint64)
        rows[:, 0] = np.uint64(base) + np.asarray(blocks, dtype=np.uint64) * np.uint64(block)
        rows[:, 1] = block
        return rows

    def prepare(self, operation, block, mine, theirs):
        """A request between blocks of both sides, run once so that all is connected."""
        self.release()
        rows = self._rows(self.address, mine, block), self._rows(self.their_address, theirs, block)
        self.lists = [
            self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", rows[0], "DRAM"),
            self.agent.prep_xfer_dlist(self.other, rows[1], "DRAM"),
        ]
        every = np.arange(len(mine), dtype=np.int32)
        self.request = self.agent.make_prepped_xfer(operation, self.lists[0], every, self.lists[1], every)
        self._run(3 if block * len(mine) <= WARM_BYTES else 1)
        return {}

    def release(self):
        if self.request is not None:
            self.request.release()
        for handle in self.lists:
            handle.release()
        self.request, self.lists = None, []
        return {}

    def run(self, iterations):
        return {"seconds": self._run(iterations) / iterations}

    def _run(self, iterations):
        transfer, check, request = self.agent.transfer, self.agent.check_xfer_state, self.request
        start = time.perf_counter()
        for _ in range(iterations):
            state = transfer(request)
            while state == "PROC":
                state = check(request)
        return time.perf_counter() - start

    def fill(self, value):
        self.memory[:] = value
        return {}

    def check(self, block, mine, value):
        wrong = sum(not (self.memory[i * block : (i + 1) * block] == value).all() for i in mine)
        return {"wrong": int(wrong)}

    # ---- calls

    def calls(self, count, repeats):
        """Seconds of each call for `count` descriptors; those that move data move 256 bytes each."""
        agent, order = self.agent, np.random.default_rng(count).permutation(count)
        mine = self._rows(self.address, order, CALL_BLOCK)
        theirs = self._rows(self.their_address, order, CALL_BLOCK)
        tuples = [tuple(row) for row in mine.tolist()]
        figures = {}

        # Calls that are about as short as reading the clock are made one after another.
        calls = [None] * (SHORT_CALLS if count == 1 else 1)

        def measure(name, call, free=None):
            samples = []
            for _ in range(repeats):
                results = []
                keep = results.append
                start = time.perf_counter()
                for _ in calls:
                    keep(call())
                samples.append((time.perf_counter() - start) / len(calls))
                if free is not None:
                    for result in results:
                        free(result)
            figures[name] = statistics.median(samples)

        release = lambda handle: handle.release()
        measure("get_xfer_descs, tuples", lambda: agent.get_xfer_descs(tuples, "DRAM"))
        measure("get_xfer_descs, array", lambda: agent.get_xfer_descs(mine, "DRAM"))
        here, there = agent.get_xfer_descs(mine, "DRAM"), agent.get_xfer_descs(theirs, "DRAM")
        measure("prep_xfer_dlist, local", lambda: agent.prep_xfer_dlist("", here), release)
        measure("prep_xfer_dlist, remote", lambda: agent.prep_xfer_dlist(self.other, there), release)
        local, remote = agent.prep_xfer_dlist("", here), agent.prep_xfer_dlist(self.other, there)
        every = np.random.default_rng(7).permutation(count).astype(np.int32)
        listed = every.tolist()
        make = agent.make_prepped_xfer
        measure("make_prepped_xfer, arrays", lambda: make("WRITE", local, every, remote, every), release)
        measure("make_prepped_xfer, lists", lambda: make("WRITE", local, listed, remote, listed), release)
        measure("initialize_xfer", lambda: agent.initialize_xfer("WRITE", here, there, self.other), release)
        self.request = make("WRITE", local, every, remote, every)
        self._run(2)
        runs = 200 if count == 1 else 1
        measure("transfer + check_xfer_state", lambda: self._run(runs))
        figures["transfer + check_xfer_state"] /= runs
        self.lists = [local, remote]
        self.release()
        return figures

    # ---- latency

    def ping(self, size, rounds):
        """Seconds of one way of a WRITE with its notification: half a round trip."""
        handle = self._message(size, b"ping")
        self._turns(handle, WARM_TURNS, first=True)
        seconds = self._turns(handle, rounds, first=True) / rounds / 2
        self._drain(handle)
        handle.release()
        return {"seconds": seconds}

    def pong(self, size, rounds):
        handle = self._message(size, b"pong")
        answer({"ready": True})
        self._turns(handle, rounds + WARM_TURNS, first=False)
        self._drain(handle)
        handle.release()
        return {}

    def _message(self, size, text):
        rows = self._rows(self.address, [0], size), self._rows(self.their_address, [1], size)
        descs = [self.agent.get_xfer_descs(table, "DRAM") for table in rows]
        return self.agent.initialize_xfer("WRITE", *descs, self.other, text)

    def _turns(self, handle, rounds, first):
        """Sends and receives in turn, without a call in between that the program would not make."""
        transfer, check, news = self.agent.transfer, self.agent.check_xfer_state, self.agent.get_new_notifs
        sending, receives = self.sending, not first
        start = time.perf_counter()
        for _ in range(2 * rounds):
            if receives:
                while not news():
                    if sending:  # NIXL sends a notification when its sender asks about the request
                        sending = check(handle) == "PROC"
            else:
                while sending:
                    sending = check(handle) == "PROC"
                sending = transfer(handle) == "PROC"
            receives = not receives
        self.sending = sending
        return time.perf_counter() - start

    def _drain(self, handle):
        while self.sending:
            self.sending = self.agent.check_xfer_state(handle) == "PROC"

    # ---- rest

    def idle(self, seconds):
        """Share of a core that the process uses while its application waits."""
        start, used = time.perf_counter(), time.process_time()
        select.select([], [], [], seconds)
        return {"share": (time.process_time() - used) / (time.perf_counter() - start)}

    def serve(self):
        """Polls until the next request is there: without its progress thread NIXL's target has to."""
        answer({"serving": True})
        while not select.select([0], [], [], 0)[0]:
            for _ in range(LOOKS_PER_SELECT):
                self.agent.get_new_notifs()
        return None


def main():
    side = Side()
    while (request := read_request()) is not None:
        verb = request.pop("do")
        try:
            result = getattr(side, verb)(**request)
        except Exception as error:  # the harness decides what to do about it
            result = {"error": f"{PACKAGE} {ROLE}: {verb}: {error!r}"}
        if result is not None:
            answer(result)
    os._exit(0)  # past the finalizers of NIXL's wheel, which can crash


if __name__ == "__main__":
    main()
