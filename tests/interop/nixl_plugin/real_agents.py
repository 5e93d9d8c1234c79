#!/usr/bin/env python3
"""real_agents.py PLUGIN [BESIDE] [--drop-in] [--figures]: a plugin of NIXL's interface by NIXL's Python calls, in two processes.

PLUGIN is libplugin_TOWLINE.so, or libplugin_TCPX.so with BESIDE, the plugin of Towline's that it needs: they are loaded by the agent of NIXL's
published wheel. The wheel is looked for in TOWLINE_NIXL_WHEEL, the folder that `pip install --target` made of nixl-cu12 or nixl-cu13, else among
the installed packages. Exits 77, with the reason, where there is none. With --drop-in, PLUGIN is NIXL's, and Towline's package loads it.

With --figures it prints, for lists of 4 KiB blocks, the time of a WRITE through the agent. That needs a plugin of a
release build.
"""

from __future__ import annotations

import gc
import hashlib
import importlib
import importlib.util
import multiprocessing as mp
import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

BLOCK = 4096
MOST = 4096
SKIPPED = 77
# What runs over memory that was taken back, and to a peer that left, end with.
ERRORS = {"TOWLINE": ("NOT_FOUND", "DISCONNECT"), "TCPX": ("NOT_FOUND", "DISCONNECT"), "MOONCAKE": ("BACKEND", "BACKEND")}


def find_wheel() -> str | None:
    """The wheel's package, or None."""
    folder = os.environ.get("TOWLINE_NIXL_WHEEL", "")
    if folder:
        sys.path.insert(0, folder)
    for name in ("nixl_cu13", "nixl_cu12"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:
            continue
        # Ours has packages of the same names.
        if list(Path(spec.origin).parent.parent.glob(f".{name}.mesonpy.libs")):
            return name
    return None


def make_agent(package: str, backend: str, name: str):
    api = importlib.import_module(package)
    agent = api.nixl_agent(name, api.nixl_agent_config(enable_prog_thread=False, backends=[]))
    parameters = {} if backend == "MOONCAKE" else {"timeout_ms": "5000"}
    if backend == "TCPX":
        parameters |= {"source": "emulated", "listen": "127.0.0.1:0"}
    agent.create_backend(backend, parameters)
    return agent


def owner(package: str, backend: str, pipe) -> None:
    """Registers memory, and answers with what became of it."""
    import numpy as np

    agent = make_agent(package, backend, "owner")
    memory = np.zeros(BLOCK * MOST, np.uint8)
    registered = agent.register_memory([(memory.ctypes.data, memory.nbytes, 0, "")], "DRAM")
    pipe.send((agent.get_agent_metadata(), memory.ctypes.data))
    seen: list[bytes] = []
    while True:
        asked = pipe.recv()
        if asked == "end":
            break
        if asked == "bytes":
            pipe.send(memory[: 4 * BLOCK].tobytes())
        if asked == "all":
            pipe.send(hashlib.sha256(memory).hexdigest())
        if asked == "notifs":
            until = time.monotonic() + 10
            while not seen and time.monotonic() < until:
                for texts in agent.get_new_notifs().values():
                    seen += texts
            pipe.send(seen)
            seen = []
        if asked == "take back":
            agent.deregister_memory(registered)
            pipe.send("taken back")
    del agent
    gc.collect()
    pipe.send("bye")


def run(agent, handle) -> None:
    state = agent.transfer(handle)
    until = time.monotonic() + 20
    while state == "PROC":
        assert time.monotonic() < until, "the transfer does not end"
        state = agent.check_xfer_state(handle)
    assert state == "DONE", state


def check(package: str, backend: str, pipe, figures: bool) -> None:
    import numpy as np

    agent = make_agent(package, backend, "caller")
    kinds = agent.get_backend_mem_types(backend)
    assert "DRAM_SEG" in kinds, kinds
    metadata, there = pipe.recv()
    assert agent.add_remote_agent(metadata) in (b"owner", "owner")
    mine = (np.arange(BLOCK * MOST) % 251).astype(np.uint8)
    agent.register_memory([(mine.ctypes.data, mine.nbytes, 0, "")], "DRAM")

    def lists(count: int):
        here = [(mine.ctypes.data + i * BLOCK, BLOCK, 0) for i in range(count)]
        remote = [(there + (count - 1 - i) * BLOCK, BLOCK, 0) for i in range(count)]
        return agent.get_xfer_descs(here, "DRAM"), agent.get_xfer_descs(remote, "DRAM")

    # A WRITE of four blocks, the last first, with a notification after them.
    handle = agent.initialize_xfer("WRITE", *lists(4), "owner", b"four blocks")
    assert agent.query_xfer_backend(handle) == backend
    run(agent, handle)
    pipe.send("notifs")
    assert pipe.recv() == [b"four blocks"]
    pipe.send("bytes")
    assert pipe.recv() == b"".join(mine[i * BLOCK : (i + 1) * BLOCK].tobytes() for i in (3, 2, 1, 0))
    run(agent, handle)  # again
    pipe.send("notifs")
    assert pipe.recv() == [b"four blocks"]
    agent.release_xfer_handle(handle)

    # A READ by prepared lists, and a notification alone.
    from_list, to_list = lists(4)
    here = agent.prep_xfer_dlist("NIXL_INIT_AGENT", from_list)
    remote = agent.prep_xfer_dlist("owner", to_list)
    mine[: 4 * BLOCK] = 0
    handle = agent.make_prepped_xfer("READ", here, [0, 2], remote, [0, 2], b"read")
    run(agent, handle)
    pipe.send("notifs")
    assert pipe.recv() == [b"read"]
    assert mine[:BLOCK].tobytes() == (np.arange(BLOCK * MOST) % 251).astype(np.uint8)[:BLOCK].tobytes()
    assert not mine[BLOCK : 2 * BLOCK].any()
    agent.send_notif("owner", b"alone")
    pipe.send("notifs")
    assert pipe.recv() == [b"alone"]

    # 16 MiB at once: over tcpx, its payload flows.
    mine[:] = (np.arange(BLOCK * MOST) * 7 % 253).astype(np.uint8)
    whole = [(mine.ctypes.data, mine.nbytes, 0)]
    handle = agent.initialize_xfer(
        "WRITE", agent.get_xfer_descs(whole, "DRAM"), agent.get_xfer_descs([(there, mine.nbytes, 0)], "DRAM"), "owner", b"all"
    )
    run(agent, handle)
    pipe.send("notifs")
    assert pipe.recv() == [b"all"]
    pipe.send("all")
    assert pipe.recv() == hashlib.sha256(mine).hexdigest()
    print("moved: WRITE and READ, lists by both calls, notifications, a second run")

    if figures:
        for count in (1, 64, 1024, 4096):
            print(f"{count} blocks: {fastest(agent, agent.initialize_xfer('WRITE', *lists(count), 'owner')):.1f} us")

    # The owner takes its memory back: runs are refused, but the owner is there. It leaves: that is said.
    handle = agent.initialize_xfer("WRITE", *lists(4), "owner")
    pipe.send("take back")
    assert pipe.recv() == "taken back"
    taken_back, left = ERRORS[backend]
    assert taken_back in refusal(agent, handle)
    pipe.send("end")
    assert pipe.recv() == "bye"
    assert left in refusal(agent, handle)
    print("left: memory that was taken back and a peer that left are reported as such")


def refusal(agent, handle) -> str:
    """The error of a run over memory that is gone."""
    try:
        run(agent, handle)
    except Exception as error:  # the wheel's own types
        return f"{error} {type(error).__name__}".upper().replace("NOTFOUND", "NOT_FOUND")
    raise AssertionError("memory that was taken back takes bytes")


def fastest(agent, handle) -> float:
    """Microseconds of one run, the fastest mean of five."""
    best = float("inf")
    for _ in range(5):
        begin = time.perf_counter()
        times = 200
        for _ in range(times):
            run(agent, handle)
        best = min(best, (time.perf_counter() - begin) / times * 1e6)
    return best


def main() -> int:
    package = "nixl._api" if "--drop-in" in sys.argv else find_wheel()
    if package is None:
        print("skipped: NIXL's published wheel is not here; set TOWLINE_NIXL_WHEEL to a folder with it")
        return SKIPPED
    plugin, *beside = (Path(name).resolve() for name in sys.argv[1:] if not name.startswith("--"))
    backend = plugin.stem.removeprefix("libplugin_")
    with tempfile.TemporaryDirectory() as folder:
        shutil.copy(plugin, Path(folder) / plugin.name)
        for file in beside:
            to = Path(folder) / "towline" / "plugins"
            to.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, to / file.name)
        os.environ["NIXL_PLUGIN_DIR"] = folder
        context = mp.get_context("spawn")
        ours, theirs = context.Pipe()
        process = context.Process(target=owner, args=(package, backend, theirs))
        process.start()
        try:
            check(package, backend, ours, "--figures" in sys.argv)
            process.join(20)
            assert process.exitcode == 0, f"the owner's exit code is {process.exitcode}"
        finally:
            process.kill()
    return 0


if __name__ == "__main__":
    sys.exit(main())
