"""The surface, on one rank; torchcomms' own tests do more, on several."""

from __future__ import annotations

import copy
import json
import os
import pickle
import signal
import subprocess
import sys
import textwrap
from datetime import timedelta

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/torch-cpu makes an environment with it")
torchcomms = pytest.importorskip("torchcomms", reason="compat/torchcomms is not installed")

from towline import _torch_group  # noqa: E402
from torchcomms import ReduceOp, hooks, objcol  # noqa: E402
from torchcomms._comms import AllReducePreHookArgs, OpName, RedOpType, WorkStatus  # noqa: E402

CPU = torch.device("cpu")

in_process_groups = pytest.mark.skipif(
    not _torch_group.TAKES_BACKENDS, reason=f"torch {torch.__version__} takes no backend made in Python: 2.14 does"
)


@pytest.fixture(params=["gloo", "towline"])
def comm(request, monkeypatch):
    monkeypatch.setenv("TORCHCOMM_RANK", "0")
    monkeypatch.setenv("TORCHCOMM_SIZE", "1")
    made = torchcomms.new_comm(request.param, CPU, name="one", timeout=timedelta(seconds=60))
    yield made
    made.finalize()


RANK_VARIABLES = ("TOWLINE_RANK", "TOWLINE_SIZE", "TORCHCOMM_RANK", "TORCHCOMM_SIZE", "RANK", "WORLD_SIZE")


@pytest.mark.parametrize(
    "environment, found",
    [
        ({"TORCHCOMM_RANK": "2", "TORCHCOMM_SIZE": "5", "RANK": "1", "WORLD_SIZE": "4"}, (2, 5)),
        ({"TORCHCOMM_RANK": "2", "RANK": "1", "WORLD_SIZE": "4"}, (1, 4)),
        ({"TORCHCOMM_RANK": "2", "TORCHCOMM_SIZE": "5", "TOWLINE_RANK": "3", "TOWLINE_SIZE": "6"}, (2, 5)),
        ({"TOWLINE_RANK": "3", "TOWLINE_SIZE": "6", "RANK": "1", "WORLD_SIZE": "4"}, (3, 6)),
        (
            {"TORCHCOMM_RANK": "2", "TORCHCOMM_SIZE": "5", "RANK": "1", "WORLD_SIZE": "4"}
            | {"TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD": "torchrun"},
            (2, 5),
        ),
        (
            {"TOWLINE_RANK": "3", "TOWLINE_SIZE": "6", "RANK": "1", "WORLD_SIZE": "4"}
            | {"TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD": "Torchrun"},
            (1, 4),
        ),
        ({"TORCHCOMM_RANK": "5", "TORCHCOMM_SIZE": "5"}, None),
        ({"TORCHCOMM_RANK": "one", "TORCHCOMM_SIZE": "5"}, None),
        ({"TORCHCOMM_BOOTSTRAP_RANKSIZE_QUERY_METHOD": "telepathy"}, None),
    ],
)
def test_rank_and_size_are_read_from_the_environment(environment, found, monkeypatch):
    from torchcomms._ranks import rank_and_size

    for name in RANK_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    if found is not None:
        assert rank_and_size() == found
    else:
        with pytest.raises(RuntimeError):
            rank_and_size()


def test_operations(comm):
    tensor = torch.arange(4.0)
    for async_op in (False, True):
        work = comm.all_reduce(tensor, ReduceOp.SUM, async_op)
        work.wait()
        assert work.is_completed() and work.status is WorkStatus.COMPLETED
    comm.all_reduce(tensor, ReduceOp.PREMUL_SUM(2.0), False)
    assert tensor.tolist() == [0, 2, 4, 6]
    output = torch.zeros(4)
    comm.all_gather([output], tensor, False)
    assert torch.equal(output, tensor)
    comm.reduce_scatter_single(output, tensor * 2, ReduceOp.MAX, False)
    comm.all_to_all_v_single(tensor, output, [4], [4], True).wait()
    comm.gather([output], tensor, 0, False)
    comm.scatter(output, [tensor], 0, False)
    comm.barrier(False)
    assert output.tolist() == [0, 4, 8, 12]
    assert (comm.get_rank(), comm.get_size(), comm.get_name(), comm.get_device()) == (0, 1, "one", CPU)


def test_a_timeout_of_nothing_is_the_communicators(comm):
    tensor = torch.zeros(2)
    work = comm.recv(tensor, 0, True, timeout=timedelta(0))
    comm.send(torch.ones(2), 0, False, timeout=timedelta(0))
    work.wait()
    assert tensor.tolist() == [1, 1]
    batch = comm.batch_op_create()
    batch.send(torch.full((2,), 2.0), 0)
    batch.recv(tensor, 0)
    work = batch.issue(True, torchcomms.BatchP2POptions())
    assert work.get_timeout() == timedelta(seconds=work._native.timeout) == timedelta(seconds=60)
    work.wait()
    assert tensor.tolist() == [2, 2]
    window = comm.new_window(tensor)
    late = window.wait_signal(0, True, timeout=timedelta(0))
    window.signal(0, False)
    late.wait()


def test_what_is_wrong_raises_runtime_errors(comm):
    with pytest.raises(RuntimeError, match="contiguous"):
        comm.all_reduce(torch.zeros(4, 4)[:, 0], ReduceOp.SUM, False)
    for view in (torch.ones(2, dtype=torch.complex64).conj(), torch._neg_view(torch.ones(2))):
        with pytest.raises(RuntimeError, match=r"conjugates; pass its resolve_neg\(\) or resolve_conj\(\)"):
            comm.broadcast(view, 0, False)
    with pytest.raises(RuntimeError, match="elements"):
        comm.all_gather_single(torch.zeros(3), torch.zeros(2), False)
    with pytest.raises(RuntimeError, match="waitBlocking not implemented"):
        comm.barrier(True).wait_blocking()
    with pytest.raises(ModuleNotFoundError, match="failed to find backend"):
        torchcomms.new_comm("nothing", CPU)
    with pytest.raises(RuntimeError, match="expected rank or any"):
        torchcomms.new_comm("towline", CPU, name="ordered", hints={"order": "fastest"})


def test_hooks(comm):
    told = []
    handles = [
        comm.register_pre_hook(lambda name, op_id, args: told.append((name, op_id, args))),
        comm.register_post_hook(lambda op_id, args: told.append(op_id)),
    ]
    tensor = torch.ones(2)
    comm.all_reduce(tensor, ReduceOp.SUM, False)
    (name, op_id, args), after = told
    assert (name, after) == (OpName.all_reduce, op_id)
    assert isinstance(args, AllReducePreHookArgs) and args.tensor is tensor and args.async_op is False
    for handle in handles:
        handle.remove()
    comm.barrier(False)
    assert len(told) == 2
    checker = hooks.NanCheckHook()
    checker.register_with_comm(comm)
    with pytest.raises(RuntimeError, match="NaN"):
        comm.broadcast(torch.tensor([float("nan")]), 0, False)


def test_flight_recorder(comm, tmp_path, monkeypatch):
    recorder = hooks.FlightRecorderHook(max_entries=2)
    assert not recorder.is_enabled()
    recorder.register_with_comm(comm)
    comm.barrier(False)
    comm.all_reduce(torch.ones(2, 3), ReduceOp.SUM, False)
    child = comm.split([0], "child")  # is followed, too
    child.broadcast(torch.ones(4, dtype=torch.int64), 0, False)
    dump = json.loads(recorder.dump_json())
    assert recorder.size() == 2 and dump["version"] == "2.10" and set(dump["pg_config"]) == {"one", "child"}
    last = dump["entries"][-1]
    assert last["profiling_name"] == f"{comm.get_backend()}:broadcast" and last["process_group"][0] == "child"
    assert (last["input_sizes"], last["input_dtypes"], last["state"]) == ([[4]], ["Long"], "completed")
    assert json.loads(recorder.dump_json(include_completed=False))["entries"] == []
    monkeypatch.setenv("TORCHCOMM_FR_DUMP_TEMP_FILE", str(tmp_path / "trace_"))
    with open(recorder.dump_file(0), "rb") as file:
        assert pickle.load(file)["entries"] == dump["entries"]
    child.finalize()
    recorder.reset()
    assert recorder.size() == 0
    recorder.unregister()


def test_clog(comm, tmp_path):
    log = tmp_path / "log"
    hook = hooks.clog(output=str(log), events=["ALL"], verbose=["buffers"])
    hook.register_with_comm(comm)
    with pytest.raises(RuntimeError, match="already registered"):
        hook.register_with_comm(comm)
    tensor, parts = torch.ones(4), [torch.ones(4)]
    for async_op in (False, False, True):
        comm.all_reduce(tensor, ReduceOp.PRODUCT, async_op).wait()
    comm.reduce_scatter(tensor, parts, ReduceOp.SUM, False)
    comm.all_to_all_v_single(tensor, parts[0], [4], [4], False)
    comm.barrier(False)
    child = comm.split([0], "child")  # is followed, too
    child.scatter(tensor.half(), [tensor.half()], 0, False)
    child.finalize()
    comm.finalize()
    lines = log.read_text().splitlines()
    assert lines[0].startswith("V|1|base_timestamp=") and lines[1] == "new_comm|comm=one|rank=0|world_size=1"
    address = f"{tensor.data_ptr():#x}"
    signature = f"sig|all_reduce|in_count=4|out_count=4|dtype=f32|red_op=prod|async_op=f|buf={address}|comm=one"
    assert lines.count(f"C1|{signature}") == 1  # of two of the same kind
    assert sum(line.startswith("C1|Q|work_id=") for line in lines) == 2
    for event in "QSEW":
        assert sum(line.startswith(f"C2|{event}|") for line in lines) == 1, event
    text = log.read_text()
    assert "sig|reduce_scatter|in_counts=4|out_count=4|dtype=f32|red_op=sum|async_op=f" in text
    assert "sig|all_to_all_v_single|in_splits=4|out_splits=4|dtype=f32|async_op=f" in text
    assert "sig|barrier|async_op=f|comm=one" in text and "split|parent=one|child=child|ranks=0" in text
    assert "sig|scatter|in_counts=4|out_count=4|dtype=f16|root=0|async_op=f" in text and "WARN" not in text
    with pytest.raises(ValueError, match="clog knows the events"):
        hooks.clog(output=str(log), events=["SOME"])


def test_a_persistent_all_gather(comm):
    output, part = torch.zeros(2, 3), torch.arange(6.0)
    handle = comm.all_gather_p_init(output)
    for _ in range(2):
        part += 1
        comm.all_gather_p_exec(handle, part, async_op=True).wait()
        assert torch.equal(output.view(-1), part)
    comm.all_gather_p_free(handle)
    with pytest.raises(RuntimeError, match="freed"):
        comm.all_gather_p_exec(handle, part, async_op=False)
    with pytest.raises(RuntimeError, match="contiguous"):
        comm.all_gather_p_init(output.t())


@in_process_groups
def test_a_process_group_keeps_sends_and_receives_for_one_batch(comm):
    wrapper = torchcomms._comms._BackendWrapper(comm)
    wide = torch.zeros(2, 3)
    given, taken = torch.ones(2), wide[:, 1]
    assert wrapper.supports_coalescing
    wrapper.start_coalescing()
    wrapper.recv([taken], 0).wait()  # has not begun
    wrapper.send([given], 0).wait()
    assert taken.tolist() == [0, 0]
    with pytest.raises(RuntimeError, match="open already"):
        wrapper.start_coalescing()
    wrapper.end_coalescing().wait()
    assert taken.tolist() == [1, 1] and wide.sum() == 2
    wrapper.start_coalescing()
    wrapper.end_coalescing().wait()  # of nothing
    with pytest.raises(RuntimeError, match="without start_coalescing"):
        wrapper.end_coalescing()


@in_process_groups
def test_a_process_group_sends_copies_of_what_has_holes(comm):
    wrapper = torchcomms._comms._BackendWrapper(comm)
    told = []
    hook = comm.register_pre_hook(lambda name, *_: told.append(name))
    column, numbers = torch.zeros(3, 2)[:, 0], torch.ones(2, dtype=torch.complex64)
    wrapper.allgather([[column]], [torch.arange(6.0).view(3, 2)[:, 1]]).wait()
    wrapper.allreduce([numbers]).wait()
    hook.remove()
    assert column.tolist() == [1, 3, 5] and numbers.tolist() == [1, 1]
    assert told == [torchcomms.OpName.all_gather, torchcomms.OpName.all_reduce]


@in_process_groups
def test_a_process_groups_messages_have_tags(comm):
    wrapper = torchcomms._comms._BackendWrapper(comm)
    first, second = torch.zeros(2), torch.zeros(2)
    works = [wrapper.send([torch.full((2,), float(tag))], 0, tag) for tag in (1, 2)]
    works += [wrapper.recv([second], 0, 2), wrapper.recv([first], 0, 1)]
    for work in works:
        work.wait()
    assert (first == 1).all() and (second == 2).all()


@in_process_groups
def test_the_end_of_a_coalesced_block_waits_for_its_collectives(comm):
    wrapper = torchcomms._comms._BackendWrapper(comm)
    first = [torch.ones(1 << 20) for _ in range(4)]
    given, taken = torch.ones(2), torch.zeros(2)
    wrapper.start_coalescing()
    works = [wrapper.allreduce([tensor]) for tensor in first]
    wrapper.send([given], 0)
    wrapper.recv([taken], 0)
    last = wrapper.end_coalescing()
    last.wait()
    assert all(work.is_completed() for work in works) and taken.tolist() == [1, 1]
    assert last.is_completed() and wrapper._together is None


@in_process_groups
def test_a_process_groups_timeout_is_its_communicators(comm):
    torchcomms._comms._BackendWrapper(comm).set_timeout(timedelta(seconds=7))
    assert comm.get_options().timeout == timedelta(seconds=7) and comm._implementation.use().timeout == 7


def test_what_is_not_here_says_so(comm):
    from torchcomms import functional

    window = comm.new_window(torch.zeros(1))
    for call in (
        comm.get_mem_allocator,
        lambda: torchcomms.get_mem_allocator("gloo"),
        comm.get_device_transport,
        window.get_device_window,
        lambda: window.register_local_buffer(torch.zeros(1)),
    ):
        with pytest.raises(RuntimeError, match="not implemented|no side for kernels|for device windows"):
            call()
    assert not functional.is_torch_compile_supported_and_enabled()
    assert not functional.is_torch_compile_supported_and_enabled(min_version="2.12", _current_version="2.15")
    with pytest.raises(NotImplementedError, match="TORCHCOMMS_PATCH_FOR_COMPILE"):
        functional.collectives
    window.tensor_deregister()


def test_a_version_of_torch_that_is_named_is_judged_by_torchcomms_rule(monkeypatch):
    from torchcomms.functional import is_torch_compile_supported, is_torch_compile_supported_and_enabled

    for version in ("2.10.0", "2.11.0"):
        assert not is_torch_compile_supported(_current_version=version), version
    for version in ("2.12.0.dev20240101", "2.12.0+cu118", "3.0"):
        assert is_torch_compile_supported(_current_version=version), version
    assert is_torch_compile_supported(min_version="2.10", _current_version="2.11")
    assert is_torch_compile_supported() and not is_torch_compile_supported(min_version="99.0")
    with pytest.raises(ValueError, match="'new' does not begin"):
        is_torch_compile_supported(_current_version="new")
    assert not is_torch_compile_supported_and_enabled(_current_version="3.0")
    monkeypatch.setenv("TORCHCOMMS_PATCH_FOR_COMPILE", "1")
    assert is_torch_compile_supported_and_enabled(_current_version="3.0")
    monkeypatch.setenv("TORCHCOMMS_COMPILE_IGNORE_PYTORCH_VERSION_REQUIREMENT", "1")
    assert is_torch_compile_supported_and_enabled(_current_version="2.10.0")


def test_tensors_of_other_devices_are_refused(comm):
    here, there = torch.zeros(2), torch.zeros(2, device="meta")
    for call in (
        lambda: comm.all_reduce(there, ReduceOp.SUM, False),
        lambda: comm.all_gather([there], here, False),
        lambda: comm.scatter(here, [there], 0, True),
        lambda: comm.new_window(there),
    ):
        with pytest.raises(RuntimeError, match="is on meta|memory, not on meta"):
            call()
    with pytest.raises(RuntimeError, match="works on the CPU; the device is cuda:0; for GPUs use"):
        torchcomms.new_comm("gloo", torch.device("cuda", 0))
    with pytest.raises(RuntimeError, match="nccl works on GPUs; the device is cpu; for the CPU use"):
        torchcomms.new_comm("nccl", CPU)
    if not torch.cuda.is_available():
        with pytest.raises(RuntimeError, match="libcuda|no backend"):
            torchcomms.new_comm("towline", torch.device("cuda", 0))
    comm.all_reduce(here, ReduceOp.SUM, False)  # nothing is broken


def test_objects(comm):
    gathered = [None]
    objcol.all_gather_object(comm, gathered, {"a": [1, "two"]})
    assert gathered == [{"a": [1, "two"]}]
    objcol.gather_object(comm, "text", 0, gathered)
    objects, given = [1, None, "three"], [None]
    objcol.broadcast_object_list(comm, objects, 0)
    objcol.scatter_object_list(comm, 0, given, ["mine"])
    assert (gathered, objects, given) == (["text"], [1, None, "three"], ["mine"])
    with pytest.raises(ValueError):
        objcol.all_gather_object(comm, [], 1)


def test_windows(comm):
    tensor = torch.arange(8.0)
    window = comm.new_window(tensor)
    window.put(torch.tensor([5.0]), 0, 3, False)
    window.signal(0, False)
    window.wait_signal(0, False, timeout=timedelta(seconds=60))
    assert tensor[3] == 5 and window.map_remote_tensor(0)[3] == 5
    late = window.wait_signal(0, True, timeout=timedelta(seconds=60))  # which holds nobody up
    assert late.status == WorkStatus.INPROGRESS
    window.signal(0, False)
    late.wait()
    assert late.status == WorkStatus.COMPLETED
    work = window.wait_signal(0, True, timeout=timedelta(milliseconds=20))
    with pytest.raises(RuntimeError, match="no signal of rank . came within "):
        work.wait()
    with pytest.raises(RuntimeError, match="put: the offset -1 is negative"):
        window.put(torch.tensor([5.0]), 0, -1, False)
    with pytest.raises(RuntimeError, match="put: windows know no hint 'order'"):
        window.put(torch.tensor([5.0]), 0, 3, False, hints={"order": "none"})
    assert (window.shape, window.dtype, window.get_size()) == ([8], torch.float32, 32)


def test_tensors_outlive_the_window_that_they_were_in(comm):
    tensor = torch.arange(1024.0)
    window = comm.new_window(tensor)
    mapped, view = window.map_remote_tensor(0), tensor[2:4]
    with pytest.raises(RuntimeError, match="arrays still use the window's memory: delete the views"):
        window.tensor_deregister()
    window.put(torch.tensor([6.0]), 0, 2, False)  # nothing has changed
    assert tensor[2] == 6 and mapped[2] == 6 and view[0] == 6
    del view
    window.tensor_deregister()
    assert tensor[2] == 6 and mapped[1023] == 1023
    window.tensor_register(tensor)
    assert window.map_remote_tensor(0)[2] == 6
    view = tensor[:1]
    with pytest.raises(RuntimeError, match="delete the views"):
        window.tensor_deregister()
    window.put(torch.tensor([8.0]), 0, 2, False)
    assert tensor[2] == 8 and mapped[2] == 6  # which is of the window before
    del view
    window.tensor_deregister()
    assert tensor[2] == 8 and mapped[2] == 6


def put_late(rank: int, folder: str) -> None:
    """One rank deregisters while the other still puts."""
    os.environ.update(TORCHCOMM_RANK=str(rank), TORCHCOMM_SIZE="2")
    store = torch.distributed.FileStore(f"{folder}/store", 2)
    late = timedelta(seconds=60)
    comm = torchcomms.new_comm("gloo", CPU, name="late", store=store, timeout=late)
    tensor = torch.zeros(8)
    window = comm.new_window(tensor)
    mapped = window.map_remote_tensor(1 - rank)
    if rank == 0:
        store.set("deregisters", "")
    else:
        store.wait(["deregisters"], late)
        window.put(torch.tensor([7.0]), 0, 3, False)
    window.tensor_deregister()
    assert tensor.tolist() == ([0, 0, 0, 7, 0, 0, 0, 0] if rank == 0 else [0] * 8)
    assert mapped[3] == (0 if rank == 0 else 7)
    comm.finalize()


def test_what_is_put_until_all_deregister_is_kept(tmp_path):
    import multiprocessing

    context = multiprocessing.get_context("spawn")
    ranks = [context.Process(target=put_late, args=(rank, str(tmp_path)), daemon=True) for rank in range(2)]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join(120)
    assert [rank.exitcode for rank in ranks] == [0, 0]


def test_reconfigure(comm):
    if comm.get_backend() != "gloo":
        with pytest.raises(RuntimeError, match="reconfigure not implemented"):
            comm.reconfigure(0, ["handle"])
        return
    dynamic = torchcomms.new_comm("gloo", CPU, name="dynamic", enable_reconfigure=True)
    for uuid in (1, 2):
        dynamic.reconfigure(uuid, [dynamic.get_init_handle()], timedelta(seconds=60)).wait()
        dynamic.barrier(False)
    assert dynamic.get_size() == 1
    dynamic.finalize()


@pytest.mark.parametrize("more, said", [(["elsewhere"], "'elsewhere' is no handle"), (None, "is there 2 times")])
def test_reconfigure_takes_handles_only(more, said):
    comm = torchcomms.new_comm("gloo", CPU, name="handles", enable_reconfigure=True)
    own = comm.get_init_handle()
    with pytest.raises(RuntimeError, match=said):
        comm.reconfigure(0, [own, *(more or [own])])


def test_abort_hooks_stay_when_a_communicator_is_reconfigured():
    comm = torchcomms.new_comm("gloo", CPU, name="hooked", enable_reconfigure=True)
    told: list[str] = []
    comm.register_abort_hook(lambda: told.append("registered before it was configured"))
    for uuid in range(2):
        comm.reconfigure(uuid, [comm.get_init_handle()]).wait()
        comm.abort()
        assert len(told) == uuid + 1
    comm.finalize()


def test_a_library_for_torchcomms_own_interface_is_named(monkeypatch):
    monkeypatch.setenv("TORCHCOMMS_BACKEND_LIB_PATH_FOREIGN", torch._C.__file__)  # a library without Towline's table
    with pytest.raises(RuntimeError, match=r"create_dynamic_loader_foreign\) can't be loaded: towline/plugin/collective.h"):
        torchcomms.new_comm("foreign", CPU)


_LOST = """
    import os, signal, sys, torch, torchcomms
    from torchcomms import ReduceOp
    from torchcomms.device_mesh import _create_torchcomm_process_group

    rank = int(sys.argv[1])
    os.environ.update(TORCHCOMM_RANK=str(rank), TORCHCOMM_SIZE="2")
    store = torch.distributed.FileStore(sys.argv[2], 2)
    comm = torchcomms.new_comm("gloo", torch.device("cpu"), store=store)  # whose failures are raised, as in torchcomms
    group = _create_torchcomm_process_group(comm, "main")
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    tensor = torch.ones(4)
    future = group.allreduce([tensor]).get_future()
    for wait in (
        future.then(lambda one: one.value()[0] * 2).wait,
        comm.all_reduce(tensor, ReduceOp.SUM, True).wait if not comm.is_aborted() else future.wait,
        lambda: comm.all_reduce(tensor, ReduceOp.SUM, False),
    ):
        try:
            wait()
        except RuntimeError as error:
            assert "rank 1 (process" in str(error), error
        else:
            raise AssertionError("nothing was raised")
"""


@in_process_groups
def test_a_lost_rank_is_a_runtime_error_in_futures_too(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(_LOST)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stderr=subprocess.PIPE, text=True) for rank in range(2)
    ]
    told = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, -signal.SIGKILL], told


_ON_A_HOST = """
    import os, sys, time, torch, torchcomms
    from datetime import timedelta

    me, folder = int(sys.argv[1]), sys.argv[2]
    comm = torchcomms.new_comm("gloo", torch.device("cpu"), name="dynamic", enable_reconfigure=True)
    with open(f"{folder}/draft{me}", "w") as file:
        file.write(comm.get_init_handle())
    os.rename(f"{folder}/draft{me}", f"{folder}/handle{me}")
    handles = []
    for one in range(2):
        limit = time.monotonic() + 60
        while not os.path.exists(f"{folder}/handle{one}"):
            assert time.monotonic() < limit
            os.sched_yield()
        handles.append(open(f"{folder}/handle{one}").read())
    comm.reconfigure(1, handles, timedelta(seconds=60)).wait()
    tensor = torch.ones(1)
    comm.all_reduce(tensor, torchcomms.ReduceOp.SUM, False)
    assert (tensor.item(), comm.get_rank(), comm.get_size()) == (2.0, me, 2)
    comm.finalize()
"""

# Two network namespaces joined by a pair of interfaces; the first is that of this shell.
_TWO_HOSTS = """
    set -e
    ip link set lo up
    unshare --net sleep 600 &
    trap "kill $!" EXIT
    until [ "$(readlink /proc/$!/ns/net)" != "$(readlink /proc/self/ns/net)" ]; do :; done
    ip link add tl0 type veth peer name tl1 netns $!
    ip addr add 10.79.0.1/24 dev tl0 && ip link set tl0 up && ip route add default via 10.79.0.2
    there="nsenter --target $! --net"
    $there ip link set lo up
    $there ip addr add 10.79.0.2/24 dev tl1
    $there ip link set tl1 up
    $there ip route add default via 10.79.0.1
    $there "$@" 1 "$FOLDER" & second=$!
    "$@" 0 "$FOLDER"
    wait $second
"""


def test_reconfigure_joins_hosts(tmp_path):
    probe = ["unshare", "--net", "ip", "link", "add", "tl0", "type", "veth", "peer", "name", "tl1"]
    if subprocess.run(probe, capture_output=True).returncode != 0:
        pytest.skip("network namespaces can't be made here")
    environment = {name: value for name, value in os.environ.items() if name != "MASTER_ADDR"}
    done = subprocess.run(
        ["unshare", "--net", "sh", "-c", textwrap.dedent(_TWO_HOSTS), "sh", sys.executable, "-c", textwrap.dedent(_ON_A_HOST)],
        env={**environment, "FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert [(tmp_path / f"handle{one}").read_text().split(":")[3] for one in range(2)] == ["10.79.0.1", "10.79.0.2"]


def test_data():
    assert copy.deepcopy(ReduceOp.AVG).type is RedOpType.AVG and ReduceOp.AVG == copy.copy(ReduceOp.AVG)
    assert torchcomms.CommOptions().timeout == timedelta(seconds=600)
    assert {"gloo", "towline"} <= set(torchcomms.built_backends())


def test_a_timeout_that_is_no_number_is_named(monkeypatch):
    monkeypatch.setenv("TORCHCOMM_TIMEOUT_SECONDS", "soon")
    with pytest.raises(RuntimeError, match="TORCHCOMM_TIMEOUT_SECONDS=soon: expected seconds"):
        torchcomms.new_comm("fake", CPU)


def run_alone(program: str) -> None:
    """In a process of its own: what it does to torch.distributed stays there."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("first", ["torchcomms", "torch", "torchcomms.distwrap"])
def test_torch_finds_the_package_whichever_is_imported_first(first):
    run_alone(f"""
        import {first}
        from torch.distributed import distributed_c10d

        assert getattr(distributed_c10d, "_TORCHCOMM_AVAILABLE", True)
    """)


_AS_GLOO_DOES = """
    import os, sys, torch, torchcomms
    from torchcomms import ReduceOp

    rank = int(sys.argv[1])
    os.environ.update(TORCHCOMM_RANK=str(rank), TORCHCOMM_SIZE="2", GLOO_SOCKET_IFNAME="lo")
    store = torch.distributed.FileStore(sys.argv[2], 2)
    results = []
    for name in ("torch_gloo", "gloo"):
        comm = torchcomms.new_comm(name, torch.device("cpu"), name=name, store=store)
        one, two = torch.arange(4.0) + rank, torch.zeros(4)
        pair, parts = torch.zeros(8), [torch.zeros(4), torch.zeros(4)]
        uneven = [torch.zeros(1), torch.zeros(2)]
        comm.all_reduce(one, ReduceOp.SUM, True).wait()
        comm.broadcast(one, 1, False)
        comm.all_gather(parts, one + rank, False)
        comm.all_gather_single(pair, one * (rank + 1), False)
        comm.all_gather_v(uneven, torch.full((rank + 1,), 7.0), False)
        comm.reduce_scatter(two, [one, one + 1], ReduceOp.MAX, False)
        half = torch.zeros(4)
        comm.reduce_scatter_single(half, pair, ReduceOp.SUM, False)
        swapped, lists = torch.zeros(4), [torch.zeros(2), torch.zeros(2)]
        comm.all_to_all_single(swapped, one + 10 * rank, False)
        comm.all_to_all(lists, [one[:2] + rank, one[2:] - rank], False)
        split = torch.zeros(2 if rank else 4)
        comm.all_to_all_v_single(split, torch.arange(3.0) + rank, [1, 1] if rank else [2, 2], [2, 1], False)
        mine, gathered, single = torch.zeros(2), [torch.zeros(2), torch.zeros(2)], torch.zeros(4)
        comm.scatter(mine, [one[:2], one[2:]] if rank == 0 else [], 0, False)
        comm.gather(gathered if rank else [], mine, 1, False)
        comm.gather_single(single, mine + 1, 0, False)
        reduced = one.clone()
        comm.reduce(reduced, 0, ReduceOp.PRODUCT, False)
        received = torch.zeros(3)
        (comm.send if rank else comm.recv)(torch.ones(3) if rank else received, 1 - rank, False)
        comm.barrier(True).wait()
        child = comm.split([0, 1], "child")
        child.all_reduce(half, ReduceOp.MIN, False)
        child.finalize()
        if rank:
            reduced.zero_()
        results.append([one, two, pair, *parts, *uneven, half, swapped, *lists, split, mine, *gathered, single, reduced, received])
        comm.finalize()
    for theirs, ours in zip(*results):
        assert torch.equal(theirs, ours), (rank, theirs, ours)
"""


def test_torchs_own_gloo_has_a_name_and_gives_the_same(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(_AS_GLOO_DOES)]
    ranks = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stderr=subprocess.PIPE, text=True) for rank in range(2)
    ]
    told = [rank.communicate(timeout=300)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], told


def test_distwrap_goes_through_communicators():
    run_alone("""
        import torch, torch.distributed as real
        from torchcomms import distwrap as dist

        dist.init_process_group("gloo", rank=0, world_size=1, store=real.HashStore(), use_torchcomms=True)
        tensor = torch.ones(4)
        dist.all_reduce(tensor)
        work = dist.all_reduce(tensor, op=dist.ReduceOp.AVG, async_op=True)
        work.wait()
        parts = [torch.zeros(4)]
        dist.all_gather(parts, tensor)
        assert parts[0].tolist() == [1.0] * 4
        dist.broadcast(tensor, group_src=0)
        for wrong in ({}, {"src": 0, "group_src": 0}, {"src": 7}):
            try:
                dist.broadcast(tensor, **wrong)
            except ValueError:
                continue
            raise AssertionError(wrong)
        try:
            real.all_reduce(tensor)
        except NotImplementedError as error:
            assert "distwrap.all_reduce" in str(error)
        else:
            raise AssertionError("torch.distributed is still there")
        half = dist.split_group(split_ranks=[[0]], group_desc="half")
        objects = [None]
        dist.all_gather_object(objects, {"rank": dist.get_rank(half)}, group=half)
        assert objects == [{"rank": 0}]
        window = dist.new_window(half)
        window.tensor_register(torch.zeros(4))
        window.tensor_deregister()
        dist.destroy_process_group(half)
        dist.destroy_process_group()
    """)


_TRAINED = """
    import torch, torch.distributed as dist

    dist.init_process_group("gloo", init_method="file://" + __import__("sys").argv[1], rank=0, world_size=1)
    assert "torchcomms" in type(dist.group.WORLD._get_backend(torch.device("cpu"))).__module__
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(3, 3))
    model(torch.ones(2, 3)).sum().backward()
    assert "gloo_num_threads" not in model._get_ddp_logging_data(), "read from memory that is not the backend's"
    dist.destroy_process_group()
"""


@in_process_groups
def test_torchs_logger_does_not_take_the_wrapper_for_its_own_gloo(tmp_path):
    command = [sys.executable, "-c", textwrap.dedent(_TRAINED), str(tmp_path / "store")]
    subprocess.run(command, env={**os.environ, "TORCH_DISTRIBUTED_USE_TORCHCOMMS": "1"}, check=True, timeout=120)


@in_process_groups
def test_device_mesh_over_a_communicator():
    run_alone("""
        import os
        import torch, torch.distributed as dist, torchcomms
        from torchcomms.device_mesh import init_device_mesh

        os.environ.update(TORCHCOMM_RANK="0", TORCHCOMM_SIZE="1")
        comm = torchcomms.new_comm("gloo", torch.device("cpu"), name="whole")
        mesh = init_device_mesh((comm,), ("main",))
        assert mesh.get_group("main").group_name == "main" and mesh.size() == 1
        tensor = torch.ones(3)
        dist.all_reduce(tensor, group=mesh.get_group())
        assert tensor.tolist() == [1.0] * 3
        try:
            init_device_mesh((comm, comm), ("a", "b"))
        except RuntimeError as error:
            assert "_global_comm" in str(error)
        else:
            raise AssertionError("two dimensions without the whole")
        comm.finalize()
    """)


@pytest.mark.skipif(_torch_group.TAKES_BACKENDS, reason="torch takes backends made in Python")
def test_torch_that_takes_no_such_backend_is_named(comm):
    with pytest.raises(RuntimeError, match="from torch 2.14 on"):
        torchcomms._comms._BackendWrapper(comm)
