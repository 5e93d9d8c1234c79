#!/usr/bin/env python3
"""SGLang's own NIXL code for disaggregated serving (disaggregation/nixl/conn.py), unmodified, between two of its managers
on memory of the host: they make the native agents, register KV, auxiliary and layer memory, exchange metadata, prepare
strided lists, and write picked pages by prepared and by plain requests; then the decode side goes away and comes back.
Then the same between two processes, the decode side in one of its own, which is killed in the middle; and with the prefill
side in one of its own, which is killed as it writes, and comes back under its name.
NIXL is whatever `nixl` is here.

What the module takes of SGLang besides (bootstrap servers, sockets, staging on GPUs) are stand-ins.
Prints one line for each part; exits 1 when one fails.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import multiprocessing as mp
import sys
import time
import types

import numpy as np

LAYERS, PAGES, PAGE, AUX = 4, 256, 4096, 512
PACKAGE = "sglang.srt.disaggregation"
NOTICED_S = 10  # that a process was killed


class Setting:
    def __init__(self, value) -> None:
        self.value = value

    def get(self):
        return self.value


class StandIn(types.ModuleType):
    """Has every name: a class of its own for each, that is only named or inherited from."""

    def __getattr__(self, name: str):
        if name.startswith("__"):
            raise AttributeError(name)
        made = type(name, (), {})
        setattr(self, name, made)
        return made


def stand_in(name: str, path=None, **contents) -> types.ModuleType:
    module = StandIn(name)
    module.__path__ = [] if path is None else [str(path)]
    module.__dict__.update(contents)
    sys.modules[name] = module
    return module


class Manager:
    """The attributes that CommonKVManager sets, as far as the code here reads them."""

    def __init__(self, args, mode, server_args, is_mla_backend=False) -> None:
        self.kv_args, self.disaggregation_mode, self.server_args = args, mode, server_args
        self.is_mla_backend, self.is_hybrid_mla_backend = is_mla_backend, False
        self.attn_tp_size, self.attn_cp_size, self.pp_size, self.dcp_size = 1, 1, 1, 1
        self.decode_kv_args_table: dict = {}

    def _start_heartbeat_checker_thread(self) -> None:
        pass

    def requires_dcp_relayout(self, *_) -> bool:
        return False

    def check_peer_aux_buffer_count(self, *_) -> None:
        pass

    def get_mha_kv_ptrs_with_pp(self, src, dst):
        half = len(src) // 2
        return src[:half], src[half:], dst[:half], dst[half:], half


class Mode:
    PREFILL, DECODE = "prefill", "decode"


def load():
    folder = importlib.metadata.distribution("sglang").locate_file("sglang/srt/disaggregation")
    stand_in("sglang")
    stand_in("sglang.srt")
    stand_in(PACKAGE, folder)
    for room in ("base", "common", "nixl"):
        stand_in(f"{PACKAGE}.{room}", f"{folder}/{room}")
    stand_in("sglang.srt.server_args")
    stand_in("sglang.srt.observability")
    stand_in("sglang.srt.observability.trace")
    settings = {
        "SGLANG_DISAGGREGATION_NIXL_BACKEND": "UCX",
        "SGLANG_DISAGGREGATION_NIXL_BACKEND_PARAMS": "{}",
        "SGLANG_DISAGGREGATION_ENGINE_INIT_TIMEOUT": 60,
        "SGLANG_DISAGG_STAGING_BUFFER": False,
        "SGLANG_DISAGGREGATION_QUEUE_SIZE": 1,
    }
    stand_in(
        "sglang.srt.environ",
        envs=types.SimpleNamespace(**{name: Setting(value) for name, value in settings.items()}),
    )
    stand_in("sglang.srt.runtime_context", get_device=lambda: types.SimpleNamespace(device="cpu"))
    stand_in("sglang.srt.utils")
    stand_in("sglang.srt.utils.common", run_with_deadline=lambda work, **_: work())
    stand_in(f"{PACKAGE}.common.conn", CommonKVManager=Manager, ABORT_TAG=b"ABORT")
    stand_in(f"{PACKAGE}.common.staging_handler", STAGING_WATERMARK_WAIT_S=1)
    stand_in(
        f"{PACKAGE}.utils",
        DisaggregationMode=Mode,
        build_transfer_entry_pairs=lambda _, __, sources, targets, **___: [(i, i) for i in range(min(sources, targets))],
    )
    module = importlib.import_module(f"{PACKAGE}.nixl.conn")
    # Threads that listen to SGLang's sockets.
    module.NixlKVManager._start_bootstrap_thread = lambda self: None
    module.NixlKVManager._start_decode_listener_thread = lambda self: None
    return module


class Side:
    """A manager with keys and values of LAYERS layers, and one auxiliary buffer."""

    def __init__(self, module, mode: str, seed: int, name: str = "") -> None:
        if name:  # SGLang takes a new one for each manager
            module.uuid = types.SimpleNamespace(uuid4=lambda: name)
        random = np.random.default_rng(seed)
        self.memory = [random.integers(0, 256, PAGES * PAGE, dtype=np.uint8) for _ in range(2 * LAYERS)]
        self.aux = random.integers(0, 256, 16 * AUX, dtype=np.uint8)
        args = types.SimpleNamespace(
            kv_data_ptrs=[part.ctypes.data for part in self.memory],
            kv_data_lens=[part.nbytes for part in self.memory],
            kv_item_lens=[PAGE] * len(self.memory),
            kv_data_mem_kinds=["DRAM"] * len(self.memory),
            kv_layer_ids=[],
            aux_data_ptrs=[self.aux.ctypes.data],
            aux_data_lens=[self.aux.nbytes],
            aux_item_lens=[AUX],
            state_data_ptrs=[],
            state_data_lens=[],
            state_types=[],
            gpu_id=0,
            ib_device=None,
            engine_rank=0,
        )
        self.manager = module.NixlKVManager(args, mode, types.SimpleNamespace())
        self.agent = self.manager.agent
        self.args = args

    def info(self) -> dict:
        return dict(
            room="None",
            endpoint="127.0.0.1",
            dst_port=0,
            agent_name=self.agent.name,
            agent_metadata=self.agent.get_agent_metadata(),
            dst_kv_ptrs=self.args.kv_data_ptrs,
            dst_kv_mem_kinds=self.args.kv_data_mem_kinds,
            dst_aux_ptrs=self.args.aux_data_ptrs,
            dst_state_data_ptrs=[],
            gpu_id=0,
            decode_tp_size=1,
            decode_tp_rank=0,
            dst_kv_item_len=PAGE,
            dst_kv_item_lens=self.args.kv_item_lens,
            dst_num_slots=PAGES,
        )


def decode_process(pipe) -> None:
    """A decode side that answers with its memory."""
    side = Side(load(), Mode.DECODE, 3)
    pipe.send(side.info())
    while True:
        pipe.send(getattr(side, pipe.recv()))


def prefill_process(pipe, name: str, seed: int, decode: dict) -> None:
    """A prefill side under `name`, which tells its metadata, writes all pages and tells its memory. "again": it writes
    without an end, and says so after the first time."""
    module = load()
    side = Side(module, Mode.PREFILL, seed, name)
    side.manager._add_remote_peer(module.KVArgsRegisterInfo(**decode))
    pipe.send((side.agent.get_agent_metadata(), side.args.kv_data_ptrs))
    pages = np.arange(PAGES, dtype=np.int32)

    def write() -> None:
        handle = side.manager.send_kvcache(decode["agent_name"], pages, decode["dst_kv_ptrs"], pages, 0, "DRAM")
        assert settle(side, [handle])

    write()
    pipe.send(side.memory)
    assert pipe.recv() == "again"
    write()
    pipe.send("begun")
    while True:
        write()


class Process:
    def __init__(self, target, *args) -> None:
        context = mp.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=target, args=(theirs, *args), daemon=True)
        self.process.start()
        theirs.close()
        self.told = self.pipe.recv()

    def kill(self) -> None:
        self.process.kill()
        self.process.join()


class OtherProcess(Process):
    """As Side, of a process of its own."""

    def __init__(self) -> None:
        super().__init__(decode_process)
        self.args = types.SimpleNamespace(
            kv_data_ptrs=self.told["dst_kv_ptrs"], aux_data_ptrs=self.told["dst_aux_ptrs"]
        )

    def __getattr__(self, name: str):
        if name not in ("memory", "aux"):
            raise AttributeError(name)
        self.pipe.send(name)
        return self.pipe.recv()


def settle(side: Side, handles: list) -> bool:
    settled, failed = side.manager._await_handles(handles, failure_seen=False)
    return settled and not failed


def same_pages(prefill: Side, decode: Side, sources, targets) -> bool:
    return all(
        np.array_equal(here.reshape(PAGES, PAGE)[sources], there.reshape(PAGES, PAGE)[targets])
        for here, there in zip(prefill.memory, decode.memory)
    )


def send_pages(module, prefill: Side, decode: Side, name: str) -> None:
    random = np.random.default_rng(7)
    for first in (0, 100):
        sources = np.arange(first, first + 50, dtype=np.int32)
        targets = random.permutation(PAGES)[:50].astype(np.int32)
        handle = prefill.manager.send_kvcache(name, sources, decode.args.kv_data_ptrs, targets, 0, "DRAM")
        assert settle(prefill, [handle])
        assert same_pages(prefill, decode, sources, targets)
    # The path without prepared lists.
    sources, targets = np.arange(20, 40, dtype=np.int32), np.arange(60, 80, dtype=np.int32)
    handle = prefill.manager._send_kvcache_generic(
        peer_name=name,
        src_data_ptrs=prefill.args.kv_data_ptrs,
        dst_data_ptrs=decode.args.kv_data_ptrs,
        item_lens=prefill.args.kv_item_lens,
        prefill_data_indices=sources,
        dst_data_indices=targets,
        dst_gpu_id=0,
        src_mem_kind="DRAM",
        dst_mem_kind="DRAM",
        bypass_prepped=True,
    )
    assert settle(prefill, [handle])
    assert same_pages(prefill, decode, sources, targets)
    assert settle(prefill, [prefill.manager.send_aux(name, 3, decode.args.aux_data_ptrs, 5)])
    assert np.array_equal(prefill.aux[3 * AUX : 4 * AUX], decode.aux[5 * AUX : 6 * AUX])


def peer_that_leaves(module, prefill: Side, decode: Side, name: str) -> None:
    decode.manager.agent = decode.agent = None  # its memory and its connections go with it
    lose(module, prefill, decode, name, 60)


def process_that_is_killed(module, prefill: Side, other: OtherProcess, name: str) -> None:
    pages = np.arange(PAGES, dtype=np.int32)
    handle = prefill.manager.send_kvcache(name, pages, other.args.kv_data_ptrs, pages, 0, "DRAM")
    other.kill()
    begin = time.monotonic()
    lose(module, prefill, other, name, NOTICED_S)
    # What was under way has ended as well, one way or the other.
    while time.monotonic() - begin < NOTICED_S:
        try:
            if prefill.agent.check_xfer_state(handle) == "DONE":
                return
        except module._NIXL_TRANSPORT_ERRORS:
            return
    raise AssertionError(f"a request to a killed process has no end after {NOTICED_S} s")


def check_pages(decode: Side, expected: list) -> None:
    assert all(np.array_equal(here, there) for here, there in zip(decode.memory, expected))


def prefill_that_is_killed(module, decode: Side, name: str) -> None:
    """SGLang's decode side only waits: it learns of the loss from a heartbeat of its own. So a notice and a request of its
    agent stand for the NIXL calls of one that does not."""
    prefill = Process(prefill_process, name, 5, decode.info())
    metadata, addresses = prefill.told
    assert decode.agent.add_remote_agent(metadata) == name.encode()
    check_pages(decode, prefill.pipe.recv())
    prefill.pipe.send("again")
    assert prefill.pipe.recv() == "begun"
    copied = np.zeros(PAGES * PAGE, np.uint8)
    registered = decode.agent.register_memory([(copied.ctypes.data, copied.nbytes, 0, "")], "DRAM")
    lists = [
        decode.agent.get_xfer_descs([(address, copied.nbytes, 0)], "DRAM") for address in (copied.ctypes.data, addresses[0])
    ]
    pull = decode.agent.initialize_xfer("READ", *lists, name)
    assert finish(decode.agent, pull) is None
    prefill.kill()
    begin = time.monotonic()
    calls = [
        lambda: decode.agent.send_notif(name, b"pages, please"),
        lambda: finish(decode.agent, pull, begin + NOTICED_S),
    ]
    for call in calls:
        lost = None
        while lost is None and time.monotonic() - begin < NOTICED_S:
            lost = raised(call)
        assert isinstance(lost, module._NIXL_TRANSPORT_ERRORS) and name in str(lost), repr(lost)
    decode.agent.release_xfer_handle(pull)
    # What the dead process may still have written is over. A new one needs no more than its metadata.
    prefill = Process(prefill_process, name, 6, decode.info())
    assert decode.agent.add_remote_agent(prefill.told[0]) == name.encode()
    check_pages(decode, prefill.pipe.recv())
    lists[1] = decode.agent.get_xfer_descs([(prefill.told[1][0], copied.nbytes, 0)], "DRAM")
    pull = decode.agent.initialize_xfer("READ", *lists, name)
    assert finish(decode.agent, pull) is None
    assert np.array_equal(copied, decode.memory[0])
    decode.agent.release_xfer_handle(pull)
    decode.agent.deregister_memory(registered)
    prefill.kill()


def finish(agent, handle, deadline: float | None = None) -> None:
    """Posts a request and waits until it has ended. Raises what it ends with."""
    deadline = deadline or time.monotonic() + NOTICED_S
    state = agent.transfer(handle)
    while state != "DONE":
        assert time.monotonic() < deadline, "a request has no end"
        state = agent.check_xfer_state(handle)


def raised(call) -> Exception | None:
    try:
        call()
    except Exception as error:
        return error
    return None


def lose(module, prefill: Side, decode, name: str, limit_s: float) -> None:
    """Sends pages until that is refused, as SGLang sees a peer that is lost."""
    sources = np.arange(10, dtype=np.int32)
    deadline = time.monotonic() + limit_s
    lost = None
    while lost is None and time.monotonic() < deadline:
        try:
            handle = prefill.manager.send_kvcache(name, sources, decode.args.kv_data_ptrs, sources, 0, "DRAM")
            prefill.agent.check_xfer_state(handle)
        except Exception as error:  # what the worker catches; by its cause it tells transport errors from others
            lost = error
    assert lost is not None, "the loss of the decode side was not noticed"
    cause = lost.__cause__ or lost
    assert isinstance(cause, module._NIXL_TRANSPORT_ERRORS), repr(cause)


def main() -> int:
    module = load()
    prefill, decode = Side(module, Mode.PREFILL, 1), Side(module, Mode.DECODE, 2)
    info = module.KVArgsRegisterInfo(**decode.info())
    other = OtherProcess()
    there = module.KVArgsRegisterInfo(**other.told)
    failed = 0
    parts = [
        ("peers", lambda: prefill.manager._add_remote_peer(info)),
        ("pages", lambda: send_pages(module, prefill, decode, info.agent_name)),
        ("reload", lambda: prefill.manager._reload_invalidated_peers({info.agent_name: None})),
        ("pages again", lambda: send_pages(module, prefill, decode, info.agent_name)),
        ("a peer that leaves", lambda: peer_that_leaves(module, prefill, decode, info.agent_name)),
        ("peers, two processes", lambda: prefill.manager._add_remote_peer(there)),
        ("pages, two processes", lambda: send_pages(module, prefill, other, there.agent_name)),
        ("a process that is killed", lambda: process_that_is_killed(module, prefill, other, there.agent_name)),
        ("a prefill side that is killed and comes back", lambda: prefill_that_is_killed(module, Side(module, Mode.DECODE, 4), "prefill-0")),
    ]
    for what, part in parts:
        try:
            part()
            assert prefill.manager._use_strided_descs and info.agent_name in prefill.manager.prep_handles
            print(f"sglang disaggregation, {what}: passed", flush=True)
        except Exception as error:
            failed = 1
            print(f"sglang disaggregation, {what}: {error!r}", flush=True)
    other.kill()
    return failed


if __name__ == "__main__":
    sys.exit(main())
