"""Interpreters end cleanly, whatever is still open; forked children are told; importing is light."""

from __future__ import annotations

import signal

import pytest

import towline
from conftest import TIMEOUT, Server, run_script

MAKE_AGENT = """
import threading, towline
agent = towline.Agent("leaver", listen="127.0.0.1:0")
memory = bytearray(1 << 20)
region = agent.register(memory, access="rw")
blocks = agent.block_list((region.address, 4096))
move = agent.transfer(blocks, blocks)
move.wait()
"""

# A Cache that its owner has given up, and that a reader, which makes no progress, may reach still.
KEEP_WHAT_IS_READ = """
owner = towline.Agent("owner", listen="127.0.0.1:0", backends="shm")
reader = towline.Agent("reader", listen="127.0.0.1:0", backends="shm", progress="caller")
region = owner.register(Cache(1 << 20), access="read")
kept = reader.register(bytearray(4096))
theirs = reader.connect(owner.address).block_list([(region.address, 4096)])
reader.copy(theirs, reader.block_list([(kept.address, 4096)])).result(timeout=20)
del region
"""


def assert_clean(done) -> None:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""


@pytest.mark.parametrize(
    "end",
    [
        "",
        "agent.close()",
        "import sys; sys.exit(0)",
        "del agent",
        "agent.self = agent",
        "with agent: pass",
        "peer = agent.add_peer(agent.metadata())",
        "copy = [agent, region, move]; copy.append(copy)",
    ],
)
def test_interpreter_ends_with_agents_open(end):
    assert_clean(run_script(MAKE_AGENT + end))


@pytest.mark.parametrize("wait", ["agent.receive()", "agent.counter().wait(1)"])
def test_interpreter_ends_while_a_daemon_thread_waits(wait):
    done = run_script(
        MAKE_AGENT
        + f"""
started = threading.Event()
def work():
    started.set()
    try:
        {wait}
    except towline.Closed:
        pass
threading.Thread(target=work, daemon=True).start()
started.wait()
"""
    )
    assert_clean(done)


def test_interpreter_ends_while_a_thread_waits_for_the_gil():
    # The thread spends its life in calls without the GIL, and wants it back while the last atexit function holds it. It gets
    # there only when __del__ lets go of it, within the interpreter's end.
    done = run_script(
        """
import atexit, colorsys, select, sys, threading
class Late:
    def __del__(self, wait=select.select): wait([], [], [], 0.2)
colorsys.late = Late()  # of a module that ends with the interpreter; the thread's frame keeps those of this one
@atexit.register
def end():
    sys.setswitchinterval(100)
    sum(range(5_000_000))
"""
        + MAKE_AGENT
        + """
from towline import _core
started = threading.Event()
def work(allocate=_core._allocate, agent=agent):
    while True:
        allocate(agent, 4096, False)
        started.set()
threading.Thread(target=work, daemon=True).start()
started.wait()
"""
    )
    assert_clean(done)


def test_interpreter_ends_with_an_event_loop_unfinished():
    done = run_script(
        MAKE_AGENT
        + """
import asyncio
async def main():
    asyncio.ensure_future(anext(agent.notices()))
    await asyncio.sleep(0)
    await agent.copy(blocks, blocks)
asyncio.run(main())
"""
    )
    assert_clean(done)


@pytest.mark.parametrize(
    "wait",
    [
        "agent.receive()",
        "agent.notices(tag=7).receive()",
        "agent.counter().wait(1)",
        "agent.connect('%s:%d' % silent.getsockname(), timeout=25)",
        "agent.group().wait()",
        "held.result()",
        "held.wait_fenced()",
    ],
)
def test_signals_interrupt_waits(wait):
    done = run_script(
        MAKE_AGENT
        + f"""
import signal, socket, time
silent = socket.create_server(("127.0.0.1", 0))
stopped = towline.Agent("stopped", listen="127.0.0.1:0", backends="tcp", progress="caller")
theirs = bytearray(4096)
their_region = stopped.register(theirs, access="rw")
peer = agent.add_peer(stopped.metadata())
driving = True
def drive():
    while driving: stopped.progress()
thread = threading.Thread(target=drive)
thread.start()
plan = agent.plan(agent.block_list((region.address, 4096)), peer.block_list((their_region.address, 4096)), timeout=25)
plan.post().wait()
driving = False
thread.join()
held = plan.post()  # nobody drives its target
class Interrupted(BaseException): pass
def interrupt(*_): raise Interrupted
signal.signal(signal.SIGALRM, interrupt)
signal.setitimer(signal.ITIMER_REAL, 0.05)
started = time.monotonic()
try:
    {wait}
except Interrupted:
    print("interrupted", time.monotonic() - started < 20)
held.cancel()
stopped.close()
"""
    )
    assert_clean(done)
    assert done.stdout == "interrupted True\n"


@pytest.mark.parametrize("place", ["bootstrap='file:' + folder", "bootstrap='tcp://127.0.0.1:1'", "store=Store()", "store=Met()"])
def test_signals_end_the_wait_for_ranks_that_do_not_come(place, tmp_path):
    done = run_script(
        f"""
import signal, threading, time, towline
from towline.collectives import Communicator
folder = {str(tmp_path)!r}
nobody_came = threading.Event()
class Store:
    def set(self, key, value): pass
    def get(self, key, timeout):
        nobody_came.wait(timeout)
        raise TimeoutError(key)
class Met(Store):  # the other rank came and has said nothing since then
    def set(self, key, value):
        if "/word/" in key: self.word = value
    def get(self, key, timeout):
        if key.endswith("/number"): return b"1" * 32
        return self.word if key.endswith("/answer") else super().get(key, timeout)
class Interrupted(BaseException): pass
def interrupt(*_): raise Interrupted
signal.signal(signal.SIGALRM, interrupt)
started = time.monotonic()
try:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    Communicator(rank=1, size=2, timeout=25, {place})
except Interrupted:
    print("interrupted", time.monotonic() - started < 20)
"""
    )
    assert_clean(done)
    assert done.stdout == "interrupted True\n"


def test_forked_child_is_told_and_disturbs_nothing():
    done = run_script(
        MAKE_AGENT
        + """
import os, sys
child = os.fork()
if child == 0:
    for call in (move.post, agent.info, lambda: agent.receive(0), lambda: agent.register(bytearray(8), access="rw")):
        try:
            call()
            os._exit(1)
        except towline.Forked:
            pass
    agent.close()
    with towline.Agent("child", listen="none") as own:
        own.register(bytearray(4096), access="rw").deregister()
    del move, region, blocks, agent
    sys.exit(0)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert move.post() == 0
print(agent.name)
"""
    )
    assert_clean(done)
    assert done.stdout == "leaver\n"


def test_interpreter_ends_while_memory_of_an_agent_is_finalized():
    done = run_script(
        """
import threading, towline
runs = threading.Event()
class Cache(bytearray):
    def __del__(self):  # on a thread of the agent's own, and for good
        threading.Thread(target=owner.close, daemon=True).start()
        while True:
            if owner.closed:
                runs.set()
"""
        + KEEP_WHAT_IS_READ
        + """
reader.close()
assert runs.wait(20)
"""
    )
    assert_clean(done)


def test_forked_child_waits_for_no_thread_that_closes_the_agent():
    done = run_script(
        """
import os, signal, threading, towline
freed, forked = threading.Event(), threading.Event()
class Cache(bytearray):
    def __del__(self):
        freed.set()
        forked.wait()
"""
        + KEEP_WHAT_IS_READ
        + """
thread = threading.Thread(target=owner.close)
thread.start()
assert freed.wait(20) and owner.closed
if (child := os.fork()) == 0:
    signal.alarm(20)
    owner.close()
    os._exit(0)
forked.set()
thread.join()
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    )
    assert_clean(done)
    assert done.stdout == "0\n"


def test_killed_peer_is_noticed(make_agent):
    server = Server(pages=4)
    agent = make_agent("survivor")
    peer = agent.add_peer(server.blob)
    memory = agent.allocate(4096)
    region = agent.register(memory, access="rw")
    move = agent.transfer(peer.block_list(server.blocks)[[0]], agent.block_list((region.address, 4096)), backend="tcp")
    assert move.wait(TIMEOUT) == towline.Status.OK
    server.process.kill()
    server.process.join(TIMEOUT)
    assert server.process.exitcode == -signal.SIGKILL
    with pytest.raises(towline.Error) as raised:
        while True:  # until the loss has come through
            move.post()
            move.wait(TIMEOUT)
    assert raised.value.status in (
        towline.Status.PEER_LOST,
        towline.Status.UNREACHABLE,
        towline.Status.TIMED_OUT,
    )


def test_import_is_light():
    done = run_script(
        """
import sys
import towline
heavy = {"numpy", "torch", "asyncio", "json", "ctypes", "socket", "typing", "concurrent.futures", "inspect"}
print(sorted(heavy & set(sys.modules)))
"""
    )
    assert_clean(done)
    assert done.stdout == "[]\n"


def test_stubs_are_shipped_and_complete():
    """Every public name of the extension's classes is in the stub, and the other way round."""
    import ast
    import pathlib

    from towline import _core

    folder = pathlib.Path(towline.__file__).parent
    assert (folder / "py.typed").exists()
    classes = [node for node in ast.parse((folder / "_core.pyi").read_text()).body if isinstance(node, ast.ClassDef)]
    assert {node.name for node in classes} == {name for name, value in vars(_core).items() if isinstance(value, type) and name.lstrip("_")[0].isupper()}
    for node in classes:
        stubbed = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
        real = {name for name in vars(getattr(_core, node.name)) if not name.startswith("_")}
        assert {name for name in stubbed if not name.startswith("_")} == real, node.name
    assert set(towline.__all__) <= set(vars(towline))
