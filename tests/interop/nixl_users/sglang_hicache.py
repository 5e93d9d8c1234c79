#!/usr/bin/env python3
"""SGLang's own NIXL code for its storage cache (HiCache), unmodified, on files and memory of the host: it makes the
native agent itself, probes for files by path, asks for keys, writes pages and reads them, also from several threads and
without the page cache. NIXL is whatever `nixl` is here.

What the module takes of SGLang besides, for a model's memory and configuration, are stand-ins: all of that needs GPUs.
Prints one line for each part; exits 1 when one fails.
"""

from __future__ import annotations

import ctypes
import enum
import importlib
import importlib.metadata
import mmap
import os
import sys
import tempfile
import threading
import types

PAGE, PAGES = 16 << 10, 64
PACKAGE = "sglang.srt.mem_cache.storage.nixl"


class Setting:
    def __init__(self, value) -> None:
        self.value = value

    def get(self):
        return self.value


class Anything:
    """Stands for classes that are only named."""


class PoolName(enum.Enum):
    KV = "kv"
    MAMBA = "mamba"


def stand_in(name: str, path: str | None = None, **contents) -> None:
    module = types.ModuleType(name)
    module.__path__ = [] if path is None else [path]
    module.__dict__.update(contents)
    sys.modules[name] = module


def load():
    folder = importlib.metadata.distribution("sglang").locate_file("sglang/srt/mem_cache/storage/nixl")
    for name in ("sglang", "sglang.srt", "sglang.srt.mem_cache", "sglang.srt.mem_cache.storage"):
        stand_in(name)
    stand_in(PACKAGE, str(folder))
    stand_in(
        "sglang.srt.environ",
        envs=types.SimpleNamespace(
            SGLANG_HICACHE_NIXL_USE_DIRECT_IO=Setting(False), SGLANG_HICACHE_NIXL_BACKEND_STORAGE_DIR=Setting(None)
        ),
    )
    named = ("HiCacheStorageConfig", "HiCacheStorageExtraInfo", "PoolHitPolicy", "PoolTransfer", "PoolTransferResult")
    stand_in(
        "sglang.srt.mem_cache.hicache_storage",
        STORAGE_BATCH_SIZE=128,
        HiCacheStorage=Anything,
        PoolName=PoolName,
        **{name: Anything for name in named},
    )
    stand_in("sglang.srt.mem_cache.pool_host", HostKVCache=Anything)
    stand_in("sglang.srt.mem_cache.storage.mmap", alloc_mmap=None)
    return importlib.import_module(PACKAGE + ".hicache_nixl")


def cache_on_files(module, folder: str, direct: bool) -> None:
    extra = {"plugin": {"posix": {"active": True}}, "l3_cleaner_enabled": False, "use_direct_io": direct}
    config = types.SimpleNamespace(extra_config=extra, tp_rank=0, tp_size=1, model_name="a/model", is_mla_model=False)
    cache = module.HiCacheNixl(config, folder)
    assert cache.backend_selector.backend_name == "POSIX" and cache.registry.path_mode
    memory = mmap.mmap(-1, 2 * PAGES * PAGE)
    memory[: PAGES * PAGE] = os.urandom(PAGES * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    registered = cache.agent.register_memory([(address, 2 * PAGES * PAGE, 0, "")], "DRAM")

    def pages(first: int, count: int):
        return [(address + i * PAGE, PAGE) for i in range(first, first + count)]

    keys = [f"key{i}" for i in range(PAGES)]
    files = [cache.file_manager.get_file_path(key) for key in keys]
    assert cache._xfer_pre_registered(pages(0, PAGES), files, "WRITE")
    assert all(cache._query_keys_exist(keys)) and cache._query_keys_exist(["another"]) == [False]
    assert cache._xfer_pre_registered(pages(PAGES, PAGES), files, "READ")
    assert memory[: PAGES * PAGE] == memory[PAGES * PAGE :]

    failed = []

    def work(first: int) -> None:
        for _ in range(10):
            for verb in ("WRITE", "READ"):
                if not cache._xfer_pre_registered(pages(first, 16), files[first : first + 16], verb):
                    failed.append((first, verb))

    threads = [threading.Thread(target=work, args=(first,)) for first in range(0, PAGES, 16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed, failed
    assert memory[: PAGES * PAGE] == memory[PAGES * PAGE :]

    assert not cache._xfer_pre_registered(pages(0, 1), [folder + "/none"], "READ")
    os.truncate(files[0], 100)
    assert not cache._xfer_pre_registered(pages(0, 1), files[:1], "READ")
    cache.agent.deregister_memory(registered)


def main() -> int:
    failed = 0
    module = load()
    for direct in (False, True):
        what = "direct" if direct else "cached"
        try:
            with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
                cache_on_files(module, folder, direct)
            print(f"sglang hicache, {what}: passed", flush=True)
        except Exception as error:
            failed = 1
            print(f"sglang hicache, {what}: {error!r}", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main())
