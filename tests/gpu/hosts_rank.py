"""One rank of hosts_gpu_test.py: WHAT UNIQUE_ID RANK RANKS HOSTS, each rank on a host of its own
as far as Ropewalk knows (the setting HOST_ID)."""

from __future__ import annotations

import faulthandler
import os
import sys
import time
from collections.abc import Callable

WHAT, MADE, RANK, RANKS, HOSTS = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
os.environ["ROPEWALK_HOST_ID"] = f"host{RANK * HOSTS // RANKS}"
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")

# Where a rank stands that does not end.
faulthandler.dump_traceback_later(100)

import ropewalk  # noqa: E402
import torch  # noqa: E402
from ropewalk.communicator import Communicator  # noqa: E402

COUNTS = [1, 3, 1000, 65_537, 3_000_001]


def value(rank: int, count: int, device: int, turn: int) -> torch.Tensor:
    """Small whole numbers, so that sums are exact in any order."""
    numbers = torch.arange(count, device=f"cuda:{device}", dtype=torch.int64)
    return ((numbers * (rank + 1) + turn) % 17).to(torch.float32)


def collectives(comm: Communicator) -> int:
    """Each operation in some sizes, checked. Returns how many calls."""
    device = comm.device
    assert device is not None
    n = comm.size
    calls = 0
    for turn, count in enumerate(COUNTS):
        every = [value(rank, count, device, turn) for rank in range(n)]
        own = every[comm.rank]
        total = torch.stack(every).sum(0)

        def same(got: torch.Tensor, expected: torch.Tensor, name: str, count: int = count) -> None:
            nonlocal calls
            torch.cuda.synchronize()
            comm.check()
            assert torch.equal(got, expected), f"{name} of {count}: rank {comm.rank} differs"
            calls += 1

        tensor = own.clone()
        comm.all_reduce(tensor)
        same(tensor, total, "all_reduce")
        gathered = torch.empty(n * count, device=own.device)
        comm.all_gather(own, out=gathered)
        same(gathered, torch.cat(every), "all_gather")
        part = torch.empty(count, device=own.device)
        pieces = [torch.cat([each + k for k in range(n)]) for each in every]
        comm.reduce_scatter(pieces[comm.rank], out=part)
        same(part, total + n * comm.rank, "reduce_scatter")
        swapped = torch.empty(n * count, device=own.device)
        comm.all_to_all(pieces[comm.rank], out=swapped)
        same(swapped, torch.cat([each + comm.rank for each in every]), "all_to_all")
        for root in range(n):
            tensor = own.clone()
            comm.broadcast(tensor, root=root)
            same(tensor, every[root], "broadcast")
            tensor = own.clone()
            comm.reduce(tensor, root=root)
            if comm.rank == root:
                same(tensor, total, "reduce")
        received = torch.empty(count, device=own.device)
        with ropewalk.group():
            comm.send(own, (comm.rank + 1) % n)
            comm.recv(received, (comm.rank - 1) % n)
        same(received, every[(comm.rank - 1) % n], "send and recv")
    return calls


def graph(comm: Communicator) -> int:
    """Operations captured once and replayed, with the links asleep in between."""
    data = torch.ones(200_000, device=f"cuda:{comm.device}")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        comm.all_reduce(data)  # what a first call makes is no part of the graph
        stream.synchronize()
        data.fill_(1)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=stream):
            comm.all_reduce(data)
            comm.all_reduce(data)
        for turn in range(5):
            data.fill_(1)
            if turn == 3:
                time.sleep(0.3)
            captured.replay()
            stream.synchronize()
            comm.check()
            assert bool((data == comm.size**2).all()), f"replay {turn}"
    return 5


def speed(comm: Communicator) -> int:
    """Prints microseconds and GB/s (algorithm bandwidth) of all-reduces, for the log."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for count in (2, 1 << 10, 1 << 16, 1 << 20, 1 << 24):
            data = torch.zeros(count, device=f"cuda:{comm.device}")
            turns = 200 if count <= 1 << 16 else 20
            for _ in range(5):
                comm.all_reduce(data)
            stream.synchronize()
            begin = time.perf_counter()
            for _ in range(turns):
                comm.all_reduce(data)
            stream.synchronize()
            seconds = (time.perf_counter() - begin) / turns
            if comm.rank == 0:
                name = comm.explain("all_reduce", 4 * count)["chosen"]
                print(
                    f"{4 * count} bytes: {seconds * 1e6:.1f} us, "
                    f"{4 * count / seconds / 1e9:.2f} GB/s, {name}",
                    flush=True,
                )
    return 1


def until_error(comm: Communicator) -> int:
    """Operations one after another until one fails. What ended well is right."""
    device = comm.device
    assert device is not None
    n = comm.size
    for call in range(1000):
        count = COUNTS[call % (len(COUNTS) - 1)]
        every = [value(rank, count, device, call) for rank in range(n)]
        total = torch.stack(every).sum(0)
        try:
            if call % 2 == 0:
                tensor = every[comm.rank].clone()
                comm.all_reduce(tensor)
                expected = total
            else:
                tensor = torch.empty(n * count, device=total.device)
                comm.all_gather(every[comm.rank], out=tensor)
                expected = torch.cat(every)
            torch.cuda.synchronize()
            comm.check()
        except (ropewalk.PeerLostError, ropewalk.TimeoutError) as error:
            kind = type(error).__name__
            print(f"{kind} after {call} calls at {time.time():.3f}: {error}", flush=True)
            comm.abort()
            return call
        assert torch.equal(tensor, expected), f"call {call} ended well and is wrong"
    return 1000


def prices(comm: Communicator) -> int:
    """Prints what a long all-reduce is predicted to take, by algorithm, and runs one."""
    found = comm.explain("all_reduce", 128 << 20)
    for candidate in found["candidates"]:
        print(f"{candidate['algorithm']} {candidate['predicted_us']:.1f} us", flush=True)
    print(f"chosen {found['chosen']}", flush=True)
    data = torch.ones(32 << 20, device=f"cuda:{comm.device}")
    comm.all_reduce(data)
    torch.cuda.synchronize()
    comm.check()
    assert bool((data == comm.size).all())
    return 1


def lost(comm: Communicator) -> int:
    """Rank 0 waits in a kernel for a rank that is killed."""
    data = torch.ones(1 << 20, device=f"cuda:{comm.device}")
    comm.all_reduce(data)
    torch.cuda.synchronize()
    print("waiting", flush=True)
    if comm.rank != 0:
        time.sleep(60)
        return 0
    try:
        comm.all_reduce(data)
        torch.cuda.synchronize()
        comm.check()
        print("no error", flush=True)
    except ropewalk.PeerLostError as error:
        print(f"PeerLostError at {time.time():.3f}: {error}", flush=True)
        comm.abort()
    return 0


def main() -> None:
    device = RANK % ropewalk.device_count()
    torch.cuda.set_device(device)
    comm = ropewalk.init(unique_id=bytes.fromhex(MADE), rank=RANK, size=RANKS, device=device)
    body: Callable[[Communicator], int] = globals()[WHAT]
    calls = body(comm)
    if WHAT == "until_error":
        print(f"rank {RANK}: {calls} calls were right", flush=True)
    elif WHAT != "lost":
        comm.finalize()
        print(f"rank {RANK}: {calls} calls, all right", flush=True)


if __name__ == "__main__":
    main()
