"""The Python of docs/tutorial.md: scripts/tutorial copies the parts between "[name]" and "[end]" to the page."""

from __future__ import annotations

import asyncio
import multiprocessing
import pathlib
import tempfile
import threading

import numpy as np

import towline
from towline import collectives

PAGES, PAGE = 64, 4096


def owner(pipe) -> None:
    # [own]
    with towline.Agent("owner") as agent:
        cache = agent.allocate(PAGES * PAGE)  # memory that peers can map; arrays and tensors work as well
        cache.numpy("uint8", (PAGES, PAGE))[:] = 7
        region = agent.register(cache, access="read")
        pipe.send(agent.address)  # "127.0.0.1:43121": send it to the peer by any means
        # [end]
        # [notice]
        notice = agent.receive(timeout=30)
        assert notice is not None and notice.data == b"thanks"  # every byte was read: the pages may be reused
        # [end]
        region.deregister(timeout=30)


def reader(address: str) -> None:
    # [move]
    agent = towline.Agent("reader")
    mine = np.zeros((PAGES, PAGE), np.uint8)
    region = agent.register(mine)
    peer = agent.connect(address)
    here = agent.block_list(mine)  # a block for each row
    there = peer.block_list(towline.Blocks(peer.regions()[0].address, PAGE, (PAGES, PAGE)))
    # [end]
    # [plan]
    plan = agent.plan(there, here)  # once for each peer and pair of lists
    plan.post([40, 7], [0, 1]).wait(timeout=30)  # for each request; raises unless it is done
    # [end]
    assert (mine[:2] == 7).all() and (mine[2:] == 0).all()

    # [wait]
    async def pull() -> None:
        posts = [plan.post([page], [page]) for page in range(3)]  # all of them at once
        await asyncio.gather(*posts)  # or, without asyncio: post.wait(timeout=30)

    asyncio.run(pull())
    # [end]
    peer.send(b"thanks")
    with tempfile.TemporaryDirectory() as folder:
        # [store]
        path = pathlib.Path(folder) / "kv.bin"
        file = agent.register_storage(path, create=True, nbytes=PAGES * PAGE)
        stored = agent.block_list(file.blocks(0, PAGE, (PAGES, PAGE)))
        agent.copy(here, stored).wait(timeout=30)
        file.commit()  # durable
        # [end]
        assert path.stat().st_size == PAGES * PAGE
        file.deregister(timeout=30)
    region.deregister(timeout=30)
    agent.close()


def rank_of(rank: int, folder: str) -> None:
    # [collect]
    # Without arguments: rank, size and meeting point from torchrun, MPI or Slurm.
    with collectives.Communicator(rank=rank, size=2, bootstrap=f"file:{folder}") as world:
        values = np.full(4, rank + 1.0)
        world.all_reduce(values)  # 3.0 everywhere, on both ranks
    # [end]
    assert (values == 3).all()


def main() -> None:
    processes = multiprocessing.get_context("spawn")  # agents do not cross a fork
    pipe, theirs = processes.Pipe()
    other = processes.Process(target=owner, args=(theirs,))
    other.start()
    reader(pipe.recv())
    other.join()
    assert other.exitcode == 0
    with tempfile.TemporaryDirectory() as folder:
        rank = threading.Thread(target=rank_of, args=(1, folder))
        rank.start()
        rank_of(0, folder)
        rank.join()


if __name__ == "__main__":
    main()
