"""A decode worker pulls the pages of a request from a prefill worker in another process, layer by layer, as asyncio tasks do.

Run it: it starts the prefill worker itself. With GPUs, the caches are torch tensors on them, and copies come after what was
launched on torch's current stream when they are given `stream=torch.cuda.current_stream()`.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys

import numpy as np

import towline

LAYERS, PAGES, PAGE_ITEMS = 8, 64, 4096
PRODUCED = [5, 9, 41]  # pages of the request


async def prefill() -> None:
    """Computes a request's pages, tells the worker that said hello, and stays until they have been taken."""
    async with towline.Agent("prefill-0") as agent:
        cache = np.zeros((LAYERS, PAGES, PAGE_ITEMS), np.float16)
        region = agent.register(cache, access="read", name="kv", page_dim=1)
        print(agent.address, flush=True)
        async for notice in agent.notices():
            if notice.data != b"hello":
                break
            for page in PRODUCED:  # stands for the model's kernels
                cache[:, page] = page
            ready = {"request": "req-17", "pages": PRODUCED}
            await notice.peer.send_async(json.dumps(ready).encode())
        await region.deregister_async()


async def decode(address: str) -> None:
    """Pulls what is ready into free pages: one outcome and one notice for all layers."""
    async with towline.Agent("decode-0") as agent:
        cache = np.zeros((LAYERS, PAGES, PAGE_ITEMS), np.float16)
        kv = agent.register(cache, name="kv", page_dim=1)  # no access: it is filled by this agent's own copies
        free = list(range(PAGES))
        await (await agent.connect_async(address)).send_async(b"hello")
        async for notice in agent.notices():
            ready = json.loads(notice.data)
            there = notice.peer["kv"]
            mine = [free.pop() for _ in ready["pages"]]
            async with agent.group(notice=ready["request"].encode(), timeout=30) as pull:  # waits for outcome and fence,
                for layer in range(LAYERS):  # also when it is cancelled
                    pull.copy(there[layer, ready["pages"]], kv[layer, mine])
            for page, produced in zip(mine, ready["pages"]):
                assert (cache[:, page] == produced).all()
            print(f"{ready['request']}: {len(mine)} pages of {LAYERS} layers, {pull.result.nbytes} bytes")
            break


def main() -> None:
    if sys.argv[1:] == ["prefill"]:
        return asyncio.run(prefill())
    with subprocess.Popen([sys.executable, __file__, "prefill"], stdout=subprocess.PIPE, text=True) as worker:
        assert worker.stdout is not None
        asyncio.run(decode(worker.stdout.readline().strip()))
    sys.exit(worker.returncode)


if __name__ == "__main__":
    main()
