"""Times one collective of Gloo as PyTorch offers it, with the loop of mpi_bench.c.

    gloo_bench.py --ranks N --cpus 0,1 OPERATION SIZE:WARMUP:ITERATIONS...

The loop is Python's, so its overhead is part of the times: it is what users of Gloo through PyTorch
see. Gloo has no shared memory; ranks talk over TCP on the loopback interface. all_reduce, reduce
and broadcast exist in place only. Prints JSON lines as mpi_bench does.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.distributed as dist

ROOT = 0
# PyTorch 2.13 renames both and warns about the names that older versions have.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Job(NamedTuple):
    """One operation on buffers of one size: what to run and what must stand where afterwards."""

    run: Callable[[], object]
    sent: torch.Tensor
    received: torch.Tensor
    expected: Callable[[], torch.Tensor | None]  # None: this rank receives nothing


def inputs_of(rank: int, elements: int) -> torch.Tensor:
    """Small integers: every order of summing gives the same bits."""
    index = torch.arange(elements, dtype=torch.int64)
    return ((index * 7 + rank * 3 + index // 1000) % 11).to(torch.float32)


def sum_of_inputs(ranks: int, elements: int) -> torch.Tensor:
    return torch.stack([inputs_of(r, elements) for r in range(ranks)]).sum(0)


def make_job(operation: str, size: int, rank: int, ranks: int) -> Job:
    whole = size // 4
    block = whole // ranks
    mine = slice(rank * block, (rank + 1) * block)
    next_rank, previous = (rank + 1) % ranks, (rank - 1) % ranks

    def zeros(elements: int) -> torch.Tensor:
        return torch.zeros(elements, dtype=torch.float32)

    def at_root(value: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor | None]:
        return lambda: value() if rank == ROOT else None

    if operation == "all_reduce":
        data = zeros(whole)
        return Job(lambda: dist.all_reduce(data), data, data, lambda: sum_of_inputs(ranks, whole))
    if operation == "broadcast":
        data = zeros(whole)
        return Job(lambda: dist.broadcast(data, ROOT), data, data, lambda: inputs_of(ROOT, whole))
    if operation == "reduce":
        data = zeros(whole)
        return Job(
            lambda: dist.reduce(data, ROOT),
            data,
            data,
            at_root(lambda: sum_of_inputs(ranks, whole)),
        )
    if operation == "all_gather":
        part, full = zeros(block), zeros(whole)
        return Job(
            lambda: all_gather(full, part),
            part,
            full,
            lambda: torch.cat([inputs_of(r, block) for r in range(ranks)]),
        )
    if operation == "reduce_scatter":
        full, part = zeros(whole), zeros(block)
        return Job(
            lambda: reduce_scatter(part, full),
            full,
            part,
            lambda: sum_of_inputs(ranks, whole)[mine],
        )
    if operation == "all_to_all":
        full, received = zeros(whole), zeros(whole)
        return Job(
            lambda: dist.all_to_all_single(received, full),
            full,
            received,
            lambda: torch.cat([inputs_of(r, whole)[mine] for r in range(ranks)]),
        )
    if operation == "gather":
        part, full = zeros(block), zeros(whole)
        parts = list(torch.split(full, block)) if rank == ROOT else None
        return Job(
            lambda: dist.gather(part, parts, ROOT),
            part,
            full,
            at_root(lambda: torch.cat([inputs_of(r, block) for r in range(ranks)])),
        )
    if operation == "scatter":
        full, part = zeros(whole), zeros(block)
        parts = list(torch.split(full, block)) if rank == ROOT else None
        return Job(
            lambda: dist.scatter(part, parts, ROOT),
            full,
            part,
            lambda: inputs_of(ROOT, whole)[mine],
        )
    if operation == "sendrecv":
        sent, received = zeros(whole), zeros(whole)

        def exchange() -> None:
            request = dist.isend(sent, next_rank)
            dist.recv(received, previous)
            assert request is not None
            request.wait()

        return Job(exchange, sent, received, lambda: inputs_of(previous, whole))
    sys.exit(f"gloo_bench: unknown operation {operation}")


def time_loop(job: Job, iterations: int, blocking: bool) -> float:
    """Mean microseconds of one run."""
    dist.barrier()
    start = time.perf_counter()
    for _ in range(iterations):
        job.run()
        if blocking:
            dist.barrier()
    return (time.perf_counter() - start) * 1e6 / iterations


def warm_up(job: Job, warmup: int, blocking: bool, limit_us: float) -> float:
    """Runs batches, each twice the one before, until `warmup` runs or the time are spent; the mean
    of the last batch. Rank 0's clock decides, for all alike."""
    start = time.perf_counter()
    one_us, batch = 0.0, 1
    done = torch.tensor([0])
    while int(done.item()) < warmup:
        one_us = time_loop(job, batch, blocking)
        late = (time.perf_counter() - start) * 1e6 > limit_us
        done.fill_(warmup if late else int(done.item()) + batch)
        dist.broadcast(done, 0)
        batch *= 2
    return one_us


def that_fit(wanted: int, one_us: float, limit_us: float) -> int:
    """How many of `wanted` runs of `one_us` fit; at least 2. Rank 0 decides."""
    fit = torch.tensor([min(wanted, max(2, int(limit_us / one_us)))])
    dist.broadcast(fit, 0)
    return int(fit.item())


def measure(
    job: Job, warmup: int, iterations: int, blocking: bool, limit_us: float
) -> dict[str, float]:
    one_us = warm_up(job, warmup, blocking, limit_us / 4)
    iterations = that_fit(iterations, one_us, limit_us)
    mean = torch.tensor([time_loop(job, iterations, blocking)], dtype=torch.float64)
    means = [torch.zeros_like(mean) for _ in range(dist.get_world_size())]
    dist.all_gather(means, mean)

    job.received.fill_(-1)
    job.sent.copy_(inputs_of(dist.get_rank(), job.sent.numel()))
    job.run()
    expected = job.expected()
    wrong = torch.tensor([0 if expected is None else int((job.received != expected).sum())])
    dist.all_reduce(wrong)
    ranks_us = [float(m) for m in means]
    return {
        "iterations": iterations,
        "avg_us": sum(ranks_us) / len(ranks_us),
        "min_us": min(ranks_us),
        "max_us": max(ranks_us),
        "wrong": int(wrong.item()),
    }


def run_rank(rank: int, arguments: argparse.Namespace, store: str) -> None:
    if arguments.cpus:
        cpus = [int(cpu) for cpu in arguments.cpus.split(",")]
        os.sched_setaffinity(0, {cpus[rank % len(cpus)]})
    torch.set_num_threads(1)
    ranks: int = arguments.ranks
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=ranks)
    if rank == 0:
        print(json.dumps({"library": f"Gloo of PyTorch {torch.__version__}"}), flush=True)
    for plan in arguments.plans:
        size, warmup, iterations = (int(part) for part in plan.split(":"))
        job = make_job(arguments.operation, size, rank, ranks)
        row = {"size": size} | measure(
            job, warmup, iterations, arguments.blocking, arguments.limit_s * 1e6
        )
        if rank == 0:
            print(json.dumps(row), flush=True)
    dist.destroy_process_group()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--cpus", default="", help="rank r is bound to entry r modulo the length")
    parser.add_argument("--blocking", action="store_true", help="a barrier after each iteration")
    parser.add_argument("--limit-s", type=float, default=1.0, help="most seconds per size")
    parser.add_argument("operation")
    parser.add_argument("plans", nargs="+", metavar="SIZE:WARMUP:ITERATIONS")
    arguments = parser.parse_args()
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        store = os.path.join(folder, "store")
        children = []
        for rank in range(arguments.ranks):
            # Forked before Gloo starts a thread: importing torch takes longer than the measuring.
            pid = os.fork()
            if pid == 0:
                try:
                    run_rank(rank, arguments, store)
                except BaseException as error:  # noqa: BLE001 - the child must not fall through
                    print(f"gloo_bench: rank {rank}: {error}", file=sys.stderr, flush=True)
                    os._exit(1)
                os._exit(0)
            children.append(pid)
        return max(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0 for pid in children)


if __name__ == "__main__":
    sys.exit(main())
