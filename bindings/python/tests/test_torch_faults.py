"""torch.distributed on a bad day: ranks that are killed, late or leave, interrupts, restarts, debugging."""

from __future__ import annotations

import faulthandler
import os
import signal
import subprocess
import sys
import textwrap
import time
from datetime import timedelta

import pytest

import forked

torch = pytest.importorskip("torch", reason="torch is not installed: scripts/torch-cpu makes an environment with it")
dist = torch.distributed

LIMIT = 300.0  # of a whole job

# DistributedDataParallel imports torch._dynamo, which takes as long as torch itself.
forked.context.set_forkserver_preload(["torch.distributed", "torch._dynamo"])


class Rank:
    """The arguments of a job's program, as names of its own."""

    def __init__(self, rank: int, size: int, folder: str) -> None:
        from towline import _torch_group

        self.rank, self.size, self.folder = rank, size, folder
        self.whole_group = not _torch_group.TAKES_BACKENDS  # torch before 2.14, or as if it were

    def start(self, backend: str = "towline") -> None:
        dist.init_process_group(
            backend,
            init_method=f"file://{self.folder}/store",
            rank=self.rank,
            world_size=self.size,
            timeout=timedelta(seconds=100),
        )

    def limit(self, seconds: float) -> None:
        """The time limit of operations, once all are there: forming takes its time where processors are few."""
        dist.barrier()
        dist.group.WORLD._get_backend(torch.device("cpu")).communicator.timeout = seconds

    def mark(self, name: str) -> None:
        open(f"{self.folder}/{name}", "w").close()

    def wait_for(self, name: str) -> None:
        end = time.monotonic() + LIMIT
        while not os.path.exists(f"{self.folder}/{name}"):
            assert time.monotonic() < end, name
            os.sched_yield()

    @staticmethod
    def expect_error(operation, *parts: str) -> None:
        try:
            operation()
        except RuntimeError as error:
            for part in parts:
                assert part in str(error), str(error)
            return
        raise AssertionError("nothing was raised")


def _run_rank(program: str, rank: int, size: int, folder: str, environment: dict[str, str]) -> None:
    from towline import _torch_group, torch_distributed

    os.dup2(os.open(f"{folder}/errors{rank}", os.O_WRONLY | os.O_CREAT, 0o600), 2)
    faulthandler.enable(2)
    os.environ.update(environment)
    dist.set_debug_level_from_env()
    torch.set_num_threads(1)
    torch_distributed.register()
    if os.environ.get("TOWLINE_TEST_PROCESS_GROUP") == "1":
        _torch_group.TAKES_BACKENDS = False
    me = Rank(rank, size, folder)
    given = {name: getattr(me, name) for name in dir(me) if not name.startswith("_")}
    exec(program, {**given, "os": os, "signal": signal, "sys": sys, "torch": torch, "dist": dist})


class Job:
    def __init__(self, tmp_path, size: int, program: str, **environment: str) -> None:
        self.folder = tmp_path
        environment = {"GLOO_SOCKET_IFNAME": "lo", **environment}
        self.ranks = [
            forked.process(_run_rank, textwrap.dedent(program), rank, size, str(tmp_path), environment)
            for rank in range(size)
        ]
        for rank in self.ranks:
            rank.start()

    def wait_for(self, name: str) -> None:
        Rank(-1, 0, str(self.folder)).wait_for(name)

    def ends(self, expected: dict[int, int] | None = None) -> None:
        for rank in self.ranks:
            rank.join(LIMIT)
        ended = [rank.exitcode for rank in self.ranks]
        for rank in self.ranks:
            if rank.is_alive():
                rank.kill()
        wanted = [(expected or {}).get(rank, 0) for rank in range(len(self.ranks))]
        told = [(self.folder / f"errors{rank}").read_text()[-3000:] for rank in range(len(self.ranks))]
        assert ended == wanted, "\n".join(told)


_TRAIN = """
from torch.nn.parallel import DistributedDataParallel

model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(8)]), bucket_cap_mb=0.05)


def step():
    model(torch.ones(4, 64)).sum().backward()


step()
"""


@pytest.mark.parametrize("how", ["killed", "late", "leaves"])
def test_ddp_raises_on_every_rank_that_is_left(tmp_path, how):
    job = Job(
        tmp_path,
        3,
        f"""
        start()
        {textwrap.indent(_TRAIN, " " * 8).strip()}
        mark(f"ready{{rank}}")
        for other in range(size):
            wait_for(f"ready{{other}}")
        limit({2 if how == "late" else 60})
        if rank == 2:
            if "{how}" == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            if "{how}" == "leaves":
                dist.destroy_process_group()
                sys.exit(0)
            wait_for("told0")
            wait_for("told1")
            os._exit(0)
        expect_error(step, "rank 2")
        mark(f"told{{rank}}")
        os._exit(0)
        """,
    )
    job.ends({2: -signal.SIGKILL} if how == "killed" else None)


def test_callbacks_of_futures_are_told_of_failures(tmp_path):
    Job(
        tmp_path,
        2,
        """
        start()
        limit(1)
        if rank == 0:
            tensor = torch.ones(4)
            future = dist.all_reduce(tensor, async_op=True).get_future()
            seen = []

            def look(one):
                try:
                    return one.value()[0] * 2
                except RuntimeError as error:
                    seen.append(str(error))
                    raise

            after = future.then(look).then(lambda one: one.value())
            expect_error(after.wait, "timed out in all_reduce", "no sign of rank 1")
            expect_error(future.wait, "no sign of rank 1")
            expect_error(future.value, "no sign of rank 1")
            assert "no sign of rank 1" in seen[0]
            mark("told")
        wait_for("told")
        """,
    ).ends()


def test_callbacks_of_futures_may_use_the_group(tmp_path):
    Job(
        tmp_path,
        2,
        """
        start()
        limit(20)
        orders = []
        for waits in (False, True):
            for _ in range(20):
                first, behind = torch.ones(100), torch.ones(200)

                def more(future):
                    second = torch.ones(10)
                    dist.all_reduce(second)
                    third = torch.ones(20)
                    return second[0] + dist.all_reduce(third, async_op=True).get_future().wait()[0][0]

                work = dist.all_reduce(first, async_op=True)
                after = work.get_future().then(more)
                if waits:
                    work.wait()
                other = dist.all_reduce(behind, async_op=True)
                assert after.wait() == 4.0
                other.wait()
        """,
    ).ends()


def test_the_power_sgd_hook_trains(tmp_path):
    Job(
        tmp_path,
        2,
        f"""
        start()
        {textwrap.indent(_TRAIN, " " * 8).strip().removesuffix("step()").strip()}
        from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook

        state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        for _ in range(5):
            step()
        """,
    ).ends()


def test_detail_debugging_works_and_names_who_differs(tmp_path):
    Job(
        tmp_path,
        2,
        f"""
        start()
        {textwrap.indent(_TRAIN, " " * 8).strip()}
        tensor = torch.ones(2)
        dist.all_reduce(tensor)
        assert tensor[0] == size and dist.get_backend() == "towline"
        work = dist.all_reduce(tensor, async_op=True)
        work.wait()
        assert work.is_completed()
        parts = [torch.zeros(1) for _ in range(size)]
        dist.all_gather(parts, torch.full((1,), float(rank)))
        assert [one.item() for one in parts] == [0.0, 1.0]
        expect_error(lambda: dist.all_reduce(torch.ones(2 + rank)), "ranks disagree" if whole_group else "mismatch")
        dist.destroy_process_group()
        """,
        TORCH_DISTRIBUTED_DEBUG="DETAIL",
    ).ends()


def test_an_interrupt_ends_an_operation_that_waits(tmp_path):
    job = Job(
        tmp_path,
        2,
        """
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores it
        start()
        if rank == 1:
            mark("here")
            wait_for("told")
            sys.exit(0)
        wait_for("here")
        mark("waits")
        try:
            dist.all_reduce(torch.ones(1))
        except KeyboardInterrupt:
            mark("told")
            sys.exit(0)
        """,
    )
    job.wait_for("waits")
    began = time.monotonic()
    while job.ranks[0].is_alive() and not (tmp_path / "told").exists():
        os.kill(job.ranks[0].pid, signal.SIGINT)
        job.ranks[0].join(2)
        assert time.monotonic() - began < 60
    job.ends()


def test_gpus_are_refused_in_a_sentence(tmp_path):
    Job(
        tmp_path,
        1,
        """
        if whole_group:
            sys.exit(0)
        for backend in ("cpu:towline,cuda:towline", "cuda:towline"):
            expect_error(lambda: start(backend), "torch sees no GPU", "cuda")
        """,
    ).ends()


_RESTARTED = """
import os, sys
import torch, torch.distributed as dist
from towline import _torch_group, collectives
if not _torch_group.TAKES_BACKENDS:
    import towline.torch_distributed  # torch before 2.14 does not look for it
attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])
dist.init_process_group("towline")
world = collectives.Communicator(timeout=60)  # meets in the agent's store as well, by itself
tensor = torch.ones(2)
dist.all_reduce(tensor)
world.all_reduce(tensor)
assert tensor[0] == 4
if attempt == 0 and rank == 1:
    os._exit(3)
if attempt == 0:
    dist.barrier()
world.close()
dist.destroy_process_group()
open(os.path.join(sys.argv[1], f"done{attempt}-{rank}"), "w").close()
"""


def test_torchrun_restarts_a_job(tmp_path):
    program = tmp_path / "job.py"
    program.write_text(_RESTARTED)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--max-restarts=1"]
    done = subprocess.run([*command, str(program), str(tmp_path)], capture_output=True, text=True, timeout=LIMIT)
    assert done.returncode == 0, done.stderr[-4000:]
    assert sorted(one.name for one in tmp_path.glob("done*")) == ["done1-0", "done1-1"]
