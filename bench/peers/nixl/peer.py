"""One side of a NIXL pair, told what to do by the harness: one JSON request per line on standard input, one answer per
line on standard output. Set up as NIXL is fastest on a host: no progress thread, ucx_error_handling_mode=none, UCX's
transports chosen by the harness through the environment, requests prepared once and posted again.
"""

import base64
import json
import mmap
import os
import select
import sys
import time

import numpy as np
from nixl_cu13 import _bindings as bindings
from nixl_cu13._api import nixl_agent, nixl_agent_config

STAMP_EPOCH = np.uint64(0x9E3779B97F4A7C15)  # the same stamp as bench/p2p/cell.h
STAMP_INDEX = np.uint64(0xC2B2AE3D27D4EB4F)
STAMP_WORD = np.uint64(0x165667B19E3779F9)
SERVE_LOOPS_PER_LOOK = 64


def read_request():
    line = bytearray()
    while not line.endswith(b"\n"):
        chunk = os.read(0, 1 << 20)
        if not chunk:
            return None
        line += chunk
    return json.loads(line)


# Answers keep standard output to themselves; what libraries print there goes to standard error.
ANSWERS = os.dup(1)
os.dup2(2, 1)


def answer(message):
    os.write(ANSWERS, json.dumps(message).encode() + b"\n")


class Side:
    def __init__(self, role):
        self.role = role
        self.other = "target" if role == "initiator" else "initiator"
        self.request = None

    def setup(self, span):
        self.pages = mmap.mmap(-1, span, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
        self.memory = np.frombuffer(self.pages, dtype=np.uint8)
        self.memory[:] = 1
        start = time.perf_counter()
        self.agent = nixl_agent(self.role, nixl_agent_config(enable_prog_thread=False, backends=[]))
        self.agent.create_backend("UCX", {"ucx_error_handling_mode": "none"})
        agent_ms = (time.perf_counter() - start) * 1e3
        address = self.memory.ctypes.data
        self.agent.register_memory([(address, span, 0, "")], "DRAM")
        return {"metadata": base64.b64encode(self.agent.get_agent_metadata()).decode(), "address": address, "agent_ms": agent_ms}

    def connect(self, metadata, address):
        self.remote_address = address
        self.agent.add_remote_agent(base64.b64decode(metadata))
        return {}

    def prepare(self, op, block, local, remote):
        mine, theirs = (local, remote) if self.role == "initiator" else (remote, local)
        self.block = block
        self.offsets = np.array(mine, dtype=np.uint64) * np.uint64(block)
        if self.role == "target":
            return {}
        self.release()
        here = self._descriptors(self.memory.ctypes.data, mine)
        there = self._descriptors(self.remote_address, theirs)
        self.lists = [
            self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", here, "DRAM"),
            self.agent.prep_xfer_dlist(self.other, there, "DRAM"),
        ]
        every = np.arange(len(mine), dtype=np.int32)
        self.request = self.agent.make_prepped_xfer(op, self.lists[0], every, self.lists[1], every)
        self._run(1)  # connects, which needs the target to serve
        return {}

    def _descriptors(self, base, blocks):
        rows = np.zeros((len(blocks), 3), dtype=np.uint64)
        rows[:, 0] = np.uint64(base) + np.array(blocks, dtype=np.uint64) * np.uint64(self.block)
        rows[:, 1] = self.block
        return rows

    def run(self, iterations):
        self._run(3 if self.block * len(self.offsets) <= 8 << 20 else 1)
        return {"seconds": self._run(iterations)}

    def _run(self, iterations):
        # Below the Python wrapper, whose own cost is not NIXL's.
        post, status = self.agent.agent.postXferReq, self.agent.agent.getXferStatus
        handle, busy = self.request._handle, bindings.NIXL_IN_PROG
        start = time.perf_counter()
        for _ in range(iterations):
            state = post(handle)
            while state == busy:
                state = status(handle)
        return time.perf_counter() - start

    def serve(self):
        """Drives UCX's progress until the next request arrives: a NIXL target without its thread has to."""
        answer({"serving": True})
        notices = self.agent.agent.getNotifs
        empty = {}
        while not select.select([0], [], [], 0)[0]:
            for _ in range(SERVE_LOOPS_PER_LOOK):
                notices(empty, [])
        return None

    def costs(self, block, local, remote):
        """Making a transfer of many blocks, and posting a small one; the target serves meanwhile."""
        self.prepare("WRITE", block, local, remote)
        every = np.arange(len(local), dtype=np.int32)
        samples = []
        for _ in range(9):
            start = time.perf_counter()
            self.agent.make_prepped_xfer("WRITE", self.lists[0], every, self.lists[1], every).release()
            samples.append((time.perf_counter() - start) * 1e9 / len(local))
        return {
            "make_ns_per_block": sorted(samples)[len(samples) // 2],
            "post_ns": self._post_ns(64),
            "post_page_ns": self._post_ns(4096),
        }

    def _post_ns(self, block):
        self.prepare("WRITE", block, [0], [0])
        samples = sorted(self._run(2000) * 1e9 / 2000 for _ in range(9))
        return samples[len(samples) // 2]

    def rest(self):
        return {}

    def release(self):
        if self.request is not None:
            self.request.release()
            for handle in self.lists:
                handle.release()
            self.request = None
        return {}

    def stamp(self, epoch, count=None):
        for index, offset in enumerate(self.offsets[:count]):
            self._words(offset)[:] = self._stamp(epoch, index)
        return {}

    def verify(self, epoch, count=None):
        wrong = sum(
            not np.array_equal(self._words(offset), self._stamp(epoch, index)) for index, offset in enumerate(self.offsets[:count])
        )
        return {"wrong": wrong}

    def _words(self, offset):
        return self.memory[int(offset) : int(offset) + self.block].view(np.uint64)

    def _stamp(self, epoch, index):
        with np.errstate(over="ignore"):
            first = np.uint64(epoch) * STAMP_EPOCH + np.uint64(index) * STAMP_INDEX
            return first + np.arange(self.block // 8, dtype=np.uint64) * STAMP_WORD


def converse(side):
    while (request := read_request()) is not None:
        verb = request.pop("do")
        try:
            result = getattr(side, verb)(**request)
        except Exception as error:  # the harness decides what to do about it
            result = {"error": f"NIXL {verb}: {error!r}"}
        if result is not None:
            answer(result)
    os._exit(0)  # past the wheel's finalizers, which can crash


if __name__ == "__main__":
    converse(Side(sys.argv[1]))
