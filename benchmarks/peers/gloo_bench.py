"""Times one collective of Gloo as PyTorch offers it, with the loop of mpi_bench.c.

    gloo_bench.py --ranks N --cpus 0,1 OPERATION SIZE:WARMUP:ITERATIONS...

The loop is Python's, so its overhead is part of the times: users of Gloo through PyTorch see the
same. All tensors of a run are allocated before it. Gloo has no shared memory; ranks talk over TCP
on the loopback interface. all_reduce, reduce and broadcast exist in place only. Prints JSON lines
as mpi_bench does.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable

import torch
import torch.distributed as dist

ROOT = 0
# PyTorch 2.13 renames both and warns about the names that older versions have.
all_gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


class Job:
    """One operation on buffers of one size: the call, and the expected contents afterwards."""

    def __init__(
        self,
        runs: list[Callable[[], object]],
        sent: torch.Tensor,
        received: torch.Tensor,
        expected: Callable[[], torch.Tensor | None],
    ) -> None:
        """`runs`: one for each set of buffers; `sent` and `received` are those of the first."""
        self.first = runs[0]
        self.in_turn = itertools.cycle(runs)
        self.sent = sent
        self.received = received
        self.expected = expected  # None: this rank receives nothing


def inputs_of(rank: int, elements: int) -> torch.Tensor:
    """Small integers: every order of summing gives the same bits."""
    index = torch.arange(elements, dtype=torch.int64)
    return ((index * 7 + rank * 3 + index // 1000) % 11).to(torch.float32)


def sum_of_inputs(ranks: int, elements: int) -> torch.Tensor:
    return torch.stack([inputs_of(r, elements) for r in range(ranks)]).sum(0)


class Places:
    """Buffers that change with each run: tensors of one shape, used cyclically."""

    LINE = 64 // 4  # elements of a cache line

    def __init__(self, whole: int, region: int, most: int) -> None:
        """As many tensors as fit into `region` bytes, at most `most`."""
        self._stride = -(-whole // self.LINE) * self.LINE
        fit = max(1, region // 4 // self._stride)
        self._count = min(fit, most)
        self._elements = fit * self._stride  # all written, so that the first are in no cache

    def zeros(self, elements: int) -> list[torch.Tensor]:
        whole = torch.empty(self._elements, dtype=torch.float32).fill_(0)
        return [whole.narrow(0, i * self._stride, elements) for i in range(self._count)]


def make_job(operation: str, size: int, rank: int, ranks: int, region: int, most: int) -> Job:
    """`most`: the largest number of runs."""
    whole = size // 4
    block = whole // ranks
    mine = slice(rank * block, (rank + 1) * block)
    next_rank, previous = (rank + 1) % ranks, (rank - 1) % ranks
    zeros = Places(whole, region, most).zeros

    def job(
        run: Callable[[torch.Tensor, torch.Tensor], object],
        sent: list[torch.Tensor],
        received: list[torch.Tensor],
        expected: Callable[[], torch.Tensor],
        receives: bool = True,
    ) -> Job:
        runs = [functools.partial(run, *pair) for pair in zip(sent, received, strict=True)]
        return Job(runs, sent[0], received[0], lambda: expected() if receives else None)

    def parts(of: torch.Tensor) -> list[torch.Tensor] | None:
        return list(torch.split(of, block)) if rank == ROOT else None

    def all_gathered() -> torch.Tensor:
        return torch.cat([inputs_of(r, block) for r in range(ranks)])

    if operation == "all_reduce":
        data = zeros(whole)
        return job(
            lambda _, to: dist.all_reduce(to), data, data, lambda: sum_of_inputs(ranks, whole)
        )
    if operation == "broadcast":
        data = zeros(whole)
        return job(
            lambda _, to: dist.broadcast(to, ROOT), data, data, lambda: inputs_of(ROOT, whole)
        )
    if operation == "reduce":
        data = zeros(whole)
        return job(
            lambda _, to: dist.reduce(to, ROOT),
            data,
            data,
            lambda: sum_of_inputs(ranks, whole),
            rank == ROOT,
        )
    if operation == "all_gather":
        return job(lambda sent, to: all_gather(to, sent), zeros(block), zeros(whole), all_gathered)
    if operation == "reduce_scatter":
        return job(
            lambda sent, to: reduce_scatter(to, sent),
            zeros(whole),
            zeros(block),
            lambda: sum_of_inputs(ranks, whole)[mine],
        )
    if operation == "all_to_all":
        return job(
            lambda sent, to: dist.all_to_all_single(to, sent),
            zeros(whole),
            zeros(whole),
            lambda: torch.cat([inputs_of(r, whole)[mine] for r in range(ranks)]),
        )
    if operation == "gather":
        return job(
            lambda sent, to: dist.gather(sent, parts(to), ROOT),
            zeros(block),
            zeros(whole),
            all_gathered,
            rank == ROOT,
        )
    if operation == "scatter":
        return job(
            lambda sent, to: dist.scatter(to, parts(sent), ROOT),
            zeros(whole),
            zeros(block),
            lambda: inputs_of(ROOT, whole)[mine],
        )
    if operation == "sendrecv":

        def exchange(sent: torch.Tensor, to: torch.Tensor) -> None:
            request = dist.isend(sent, next_rank)
            dist.recv(to, previous)
            assert request is not None
            request.wait()

        return job(exchange, zeros(whole), zeros(whole), lambda: inputs_of(previous, whole))
    sys.exit(f"gloo_bench: unknown operation {operation}")


def time_loop(job: Job, iterations: int, blocking: bool) -> float:
    """Mean microseconds of one run."""
    dist.barrier()
    runs = itertools.islice(job.in_turn, iterations)
    start = time.perf_counter()
    for run in runs:
        run()
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
    job.first()
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
        runs = 3 * (warmup + iterations)  # the last batch of the warm-up may be twice the rest
        job = make_job(arguments.operation, size, rank, ranks, arguments.region, runs)
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
    parser.add_argument(
        "--region",
        type=int,
        default=64 << 20,
        help="bytes of input, and of output, through which the runs move; 0: all use the same",
    )
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
