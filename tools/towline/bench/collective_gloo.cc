#include "bench/collective_peer.h"

namespace tool::bench {

const char* const kGlooPeer = R"python(
import json, os, socket, sys, time

folder, rank, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
import torch
import torch.distributed as dist

torch.set_num_threads(1)
channel = socket.socket(socket.AF_UNIX)
channel.connect(f"{folder}/gloo-{rank}")
lines = channel.makefile("rw")
dist.init_process_group("gloo", init_method=f"file://{folder}/gloo-store", rank=rank, world_size=size)


def say(message):
    print(json.dumps(message), file=lines, flush=True)


def operation(op, count, sends, receives):
    if op == "barrier":
        return dist.barrier
    whole = op in ("all_reduce", "reduce", "broadcast", "send_recv")
    given = torch.ones(sum(sends) or (count if whole else count * size))
    taken = torch.empty(sum(receives) or given.numel())
    part = given[:count]
    if op == "all_reduce":
        return lambda: dist.all_reduce(given)
    if op == "reduce":
        return lambda: dist.reduce(given, 0)
    if op == "broadcast":
        return lambda: dist.broadcast(given, 0)
    if op == "all_gather":
        return lambda: dist.all_gather_into_tensor(taken, part)
    if op == "reduce_scatter":
        return lambda: dist.reduce_scatter_tensor(part, taken)
    if op == "gather":
        parts = list(taken.chunk(size)) if rank == 0 else None
        return lambda: dist.gather(part, parts, 0)
    if op == "scatter":
        parts = list(given.chunk(size)) if rank == 0 else None
        return lambda: dist.scatter(taken[:count], parts, 0)
    if op == "all_to_all":
        return lambda: dist.all_to_all_single(taken, given)
    if op == "all_to_all_v":
        return lambda: dist.all_to_all_single(taken, given, receives, sends)
    if op == "send_recv":
        to, source = (rank + 1) % size, (rank - 1) % size

        def exchange():
            pair = [dist.P2POp(dist.isend, given, to), dist.P2POp(dist.irecv, taken, source)]
            for work in dist.batch_isend_irecv(pair):
                work.wait()

        return exchange
    return None  # all_gather_v, reduce_scatter_v: gloo supports parts of equal size only


say({"version": f"torch {torch.__version__}"})
for line in lines:
    job = json.loads(line)
    call = operation(job["op"], job["count"], job["sends"], job["receives"])
    if call is None:
        say({"missing": True})
        continue
    dist.barrier()
    call()
    times = []
    for _ in range(job["samples"]):
        begin = time.perf_counter()
        for _ in range(job["batch"]):
            call()
        times.append((time.perf_counter() - begin) / job["batch"])
    del call
    say({"times": times})
os._exit(0)
)python";

}  // namespace tool::bench
