"""NIXL's POSIX plugin between memory and one file, told what to do by the harness as peer.py is."""

import mmap
import os
import sys

import numpy as np
from nixl_cu13._api import nixl_agent, nixl_agent_config

from peer import Side, converse

HUGE_PAGE = 2 << 20


class FileSide(Side):
    def __init__(self):
        super().__init__("initiator")

    def setup(self, span, path, direct, engine):
        self.pages = mmap.mmap(-1, span + HUGE_PAGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.pages.madvise(mmap.MADV_HUGEPAGE)
        whole = np.frombuffer(self.pages, dtype=np.uint8)
        first = -whole.ctypes.data % HUGE_PAGE
        self.memory = whole[first : first + span]
        self.memory[:] = 1
        self.agent = nixl_agent(self.role, nixl_agent_config(enable_prog_thread=False, backends=[]))
        self.agent.create_backend("POSIX", {"use_aio": "false", engine: "true"})
        self.agent.register_memory([(self.memory.ctypes.data, span, 0, "")], "DRAM")
        self.file = os.open(path, os.O_RDWR | (os.O_DIRECT if direct else 0))
        self.agent.register_memory([(0, span, self.file, "")], "FILE")
        return {}

    def prepare(self, op, block, local, remote):
        self.release()
        self.block = block
        self.offsets = np.array(local, dtype=np.uint64) * np.uint64(block)
        there = self._descriptors(0, remote)
        there[:, 2] = self.file
        self.lists = [
            self.agent.prep_xfer_dlist("NIXL_INIT_AGENT", self._descriptors(self.memory.ctypes.data, local), "DRAM"),
            self.agent.prep_xfer_dlist(self.role, there, "FILE"),
        ]
        every = np.arange(len(local), dtype=np.int32)
        self.request = self.agent.make_prepped_xfer(op, self.lists[0], every, self.lists[1], every)
        return {}


if __name__ == "__main__":
    converse(FileSide())
