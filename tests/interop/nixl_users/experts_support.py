"""For programs that exchange experts' tokens by nixl_ep: GPUs of host memory, whose kernels are the models of the project's own tests, and
ranks as processes. What such a program asks of torch's GPUs is answered for host tensors."""

from __future__ import annotations

import multiprocessing
import os
import pathlib
import socket
import sys
import traceback

ROOT = pathlib.Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "compat/nixl/python/tests"))

import experts_model  # noqa: E402


def require_model() -> None:
    """Ends the program as skipped where there is no model of the kernels."""
    if experts_model.find() is None:
        print("skipped: no library of GPU models: build the target gpu_model of the preset ci, or name it in TOWLINE_GPU_MODEL")
        sys.exit(77)


def put_model_in_place() -> None:
    """nixl_ep.Buffer over the model. Host tensors know no streams: a call ends when the model's kernels have."""
    import nixl_ep.buffer
    import nixl_ep.utils
    import torch
    from nixl_ep import _library
    from torch.overrides import TorchFunctionMode

    gpu = experts_model.ModelGpu()
    nixl_ep.buffer._make_gpu = experts_model.ModelGpu
    _library.load = gpu.table
    issue = _library.Member.issue

    def issue_and_wait(member, call, stream: int) -> None:
        issue(member, call, stream)
        gpu.drain(stream)

    _library.Member.issue = issue_and_wait
    nixl_ep.utils.EventHandle.current_stream_wait = lambda event: event._event.wait()
    torch.accelerator.synchronize = lambda *_: None

    class OnHost(TorchFunctionMode):
        """torch.zeros(.., device="cuda") and the like."""

        def __torch_function__(self, function, types, args=(), kwargs=None):
            kwargs = dict(kwargs or {})
            if str(kwargs.get("device", "")).startswith("cuda"):
                kwargs["device"] = "cpu"
            return function(*args, **kwargs)

    OnHost().__enter__()


def tokens(seed: int, rank: int, count: int, hidden: int, experts: int, topk: int):
    """x, topk_ids and topk_weights of a rank, known to all."""
    import torch

    generator = torch.Generator().manual_seed(1000 * seed + rank)
    x = torch.randn((count, hidden), generator=generator).to(torch.bfloat16)
    ids = torch.stack([torch.randperm(experts, generator=generator)[:topk] for _ in range(count)])
    return x, ids, torch.rand((count, topk), generator=generator)


def expected_tokens(expert: int, all_tokens):
    """What an expert gets: by rank, then as at the source."""
    import torch

    return torch.cat([x[(ids == expert).any(dim=1)] for x, ids, _ in all_tokens])


def result_of(x, expert: int):
    """An expert's result, in x's type."""
    return x * (expert + 1)


def expected_sums(x, ids, weights, there):
    """there: the experts that take part."""
    import torch

    sums = torch.zeros(x.shape)
    for k in range(ids.shape[1]):
        for token in range(x.shape[0]):
            expert = int(ids[token, k])
            if expert in there:
                sums[token] += result_of(x[token], expert).to(torch.float32) * weights[token, k]
    return sums.to(torch.bfloat16)


def _rank(body, number: int, ranks: int, port: int) -> None:
    try:
        import torch.distributed as dist

        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(number), WORLD_SIZE=str(ranks))
        dist.init_process_group("gloo")
        body(number)
        dist.barrier()
        dist.destroy_process_group()
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def run_ranks(body, ranks: int, seconds: float = 600.0) -> bool:
    """The body as each rank of a gloo world, in a process of its own. True if none failed; else all others are ended. Says which ranks
    failed, and which had not ended in time."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_rank, args=(body, number, ranks, port), daemon=True) for number in range(ranks)]
    for process in processes:
        process.start()
    waiting = list(processes)
    left = seconds
    while waiting and left > 0:
        waiting[0].join(0.5)
        left -= 0.5
        if any(process.exitcode not in (None, 0) for process in processes):
            break
        waiting = [process for process in waiting if process.exitcode is None]
    failed = [number for number, process in enumerate(processes) if process.exitcode not in (None, 0)]
    running = [number for number, process in enumerate(processes) if process.exitcode is None]
    if failed:
        print(f"FAILED: ranks {failed}; ranks {running} were still running", flush=True)
    elif running:
        print(f"FAILED: ranks {running} were still running after {seconds:.0f} s", flush=True)
    for process in waiting:
        process.kill()
    return not failed and not running
