"""One rank of registered_gpu_test.py, in a process of its own: PART.

$ROPEWALK_DEBUG_FILE, of this process alone, tells what went by address.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import numpy as np
import pytest
import ropewalk
import torch
from ropewalk.communicator import Communicator

FORCED = os.environ.get("ROPEWALK_DIRECT_BUFFERS") == "on"
ROOTED = ("broadcast", "reduce", "gather", "scatter")
OTHERS = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "sendrecv", "send")
COUNTS = (5, 70001, 1 << 20, (1 << 22) + 3)
LARGEST = COUNTS[-1]


class Log:
    """What this process has logged since it was asked last."""

    def __init__(self) -> None:
        self._path = Path(os.environ["ROPEWALK_DEBUG_FILE"].replace("%p", str(os.getpid())))
        self._seen = 0

    def direct(self) -> bool:
        """Whether another process might read a buffer of this rank; told once for each buffer."""
        text = self._path.read_text() if self._path.exists() else ""
        new, self._seen = text[self._seen :], len(text)
        return "of other processes may read" in new or "of another process, may read" in new


log = Log()


def values(rank: int, count: int, seed: int) -> torch.Tensor:
    """Small integers: sums are the same in any order."""
    kind = torch.arange(count, device="cuda", dtype=torch.int64)
    return ((kind * 7 + rank * 13 + seed) % 101).float()


def memory(elements: int) -> torch.Tensor:
    """An allocation of its own: PyTorch shares those under 20 MiB."""
    return torch.zeros(max(elements, 6 << 20), device="cuda")


class Case:
    """One operation on given places, with the right result."""

    def __init__(self, comm: Communicator, operation: str, count: int, in_place: bool) -> None:
        self.comm, self.operation, self.count, self.in_place = comm, operation, count, in_place
        n = comm.size
        many_in = operation in ("reduce_scatter", "scatter", "all_to_all")
        many_out = operation in ("all_gather", "gather", "all_to_all")
        self.inputs = count * n if many_in else count
        self.outputs = count * n if many_out else count

    @property
    def elements(self) -> int:
        """Of input and output together."""
        return max(self.inputs, self.outputs) if self.in_place else self.inputs + self.outputs

    def run(self, at: torch.Tensor, seed: int, root: int) -> None:
        """In the first elements of `at`."""
        comm, name, count = self.comm, self.operation, self.count
        n, rank = comm.size, comm.rank
        given = [values(r, self.inputs, seed) for r in range(n)]
        mine = slice(rank * count, (rank + 1) * count)
        at[: self.elements] = -1
        whole = at[: max(self.inputs, self.outputs)]
        send = at[: self.inputs]
        out = None if self.in_place else at[self.inputs : self.inputs + self.outputs]
        send = whole[mine] if self.in_place and name in ("all_gather", "gather") else send
        send.copy_(given[rank])
        wanted: Any
        if name == "broadcast":
            got, wanted = comm.broadcast(send, root, out=out), given[root]
        elif name == "reduce":
            got = comm.reduce(send, root=root, out=out if rank == root else None)
            wanted = sum(given) if rank == root else given[rank]
        elif name == "gather":
            wanted = torch.cat(given) if rank == root else given[rank]
            if rank != root:
                got = comm.gather(send, root)
            else:
                got = comm.gather(whole if self.in_place else send, root, out=out)
        elif name == "scatter":
            wanted = given[root][mine]
            if not self.in_place:
                got = comm.scatter(send, root, out=out)
            else:
                got = comm.scatter(send if rank == root else send[:count], root)
                got = got[mine] if rank == root else got
        elif name == "all_reduce":
            got, wanted = comm.all_reduce(send, out=out), sum(given)
        elif name == "all_gather":
            got, wanted = comm.all_gather(whole if self.in_place else send, out=out), None
            wanted = torch.cat(given)
        elif name == "reduce_scatter":
            got, wanted = comm.reduce_scatter(send, out=out), sum(given)[mine]
            got = got[mine] if self.in_place else got
        elif name == "all_to_all":
            got, wanted = comm.all_to_all(send, out), torch.cat([one[mine] for one in given])
        elif name == "sendrecv":
            got, wanted = comm.sendrecv(send, out), given[(rank - 1) % n]
        else:
            with comm.group():
                comm.send(send, (rank + 1) % n)
                got = comm.recv(out, (rank - 1) % n)
            wanted = given[(rank - 1) % n]
        torch.cuda.synchronize()
        comm.check()
        what = (name, count, self.in_place, seed, root)
        assert torch.equal(got, wanted), (what, got[:8], wanted[:8])


def cases(comm: Communicator) -> Iterator[Case]:
    for operation in ROOTED + OTHERS:
        for count in COUNTS:
            yield Case(comm, operation, count, False)
            if operation not in ("all_to_all", "sendrecv", "send"):
                yield Case(comm, operation, count, True)


def long_broadcast(comm: Communicator, at: torch.Tensor, seed: int) -> bool:
    """Rank 0's, in place. @return whether rank 0 gave addresses; the same everywhere."""
    log.direct()
    Case(comm, "broadcast", 1 << 20, True).run(at, seed, 0)
    told = np.array([log.direct() if comm.rank == 0 else False], np.uint8)
    comm.broadcast(told, 0)
    return bool(told[0])


def operations(comm: Communicator) -> None:
    """Everything is right wherever the buffers lie; long data goes by address where it should."""
    whole = memory(2 * comm.size * LARGEST + 4096)
    windows = {
        "all of it": whole,
        "an odd part, which holds them": whole[1001:],
        "ends within the input": whole[: 2048 + 3000],
        "begins within them": whole[2048 + 3000 :],
        "on one rank elsewhere": whole if comm.rank == 0 else memory(64),
    }
    for seed, (where, window) in enumerate(windows.items()):
        with comm.register(window):
            for case in cases(comm):
                for offset in (2048, 2049):
                    log.direct()
                    case.run(whole[offset:], seed, seed % comm.size)
                    if case.count < 1 << 20:
                        continue
                    inside = where in ("all of it", "an odd part, which holds them")
                    direct = inside and (FORCED or case.operation in ROOTED)
                    # Others than the root may use one of the two buffers only.
                    uses_both = case.operation in OTHERS or comm.rank == seed % comm.size
                    if uses_both and where != "on one rank elsewhere":
                        told = log.direct()
                        assert told == direct, (where, case.operation, case.count, told)
    # Input and output in windows of their own.
    first, second = memory(LARGEST), memory(LARGEST)
    log.direct()  # what the last cases said
    with comm.register(first):
        comm.broadcast(first, out=second)
        assert not log.direct()
        with comm.register(second):
            first.copy_(values(comm.rank, first.numel(), 1))
            comm.broadcast(first, out=second)
            assert log.direct()
            assert torch.equal(second, values(0, first.numel(), 1))


def lifetimes(comm: Communicator) -> None:
    at = memory(1 << 22)
    assert not long_broadcast(comm, at, 0)
    for seed in range(1, 4):
        made = comm.register(at)
        assert not made.closed
        assert long_broadcast(comm, at, seed)
        assert long_broadcast(comm, at[1:], seed + 10)
        made.close()
        made.close()
        assert made.closed
        assert not long_broadcast(comm, at, seed + 20)
    # Two windows of one allocation, which is opened once.
    half = at.numel() // 2
    first, second = comm.register(at[:half]), comm.register(at[half:])
    assert long_broadcast(comm, at[:half], 30)
    assert long_broadcast(comm, at[half:], 31)
    assert not long_broadcast(comm, at[half - 100 :], 32)  # across both
    first.close()
    assert not long_broadcast(comm, at[:half], 33)
    assert long_broadcast(comm, at[half:], 34)
    again = comm.register(at)
    assert long_broadcast(comm, at, 35)
    second.close()
    assert long_broadcast(comm, at[half:], 36)
    again.close()
    assert not long_broadcast(comm, at, 37)
    # The same by two communicators.
    other = comm.split(0)
    assert other is not None
    with comm.register(at), other.register(at):
        assert long_broadcast(comm, at, 40)
        assert long_broadcast(other, at, 41)
    other.finalize()
    # Memory that is freed and taken again, at the same address or another one.
    del at
    for seed in range(30):
        at = memory(8 << 20)
        with comm.register(at):
            assert long_broadcast(comm, at, seed)
        del at
        gc.collect()
        torch.cuda.empty_cache()
    # One rank ends its part alone, frees it, and the others go on.
    at = memory(8 << 20)
    made = comm.register(at)
    if comm.rank == comm.size - 1:
        made.close()
        del at
        torch.cuda.empty_cache()
        at = memory(8 << 20)
    assert long_broadcast(comm, at, 50)
    made.close()
    assert not long_broadcast(comm, at, 51)


def left_open(comm: Communicator) -> None:
    """A communicator ends with what is registered; another one registers it again."""
    at = memory(1 << 22)
    for seed in range(3):
        smaller = comm.split(0)
        assert smaller is not None
        made = smaller.register(at)
        assert long_broadcast(smaller, at, seed)
        smaller.finalize()
        assert made.closed
        made.close()
    comm.register(at)
    assert long_broadcast(comm, at, 9)


def graphs(comm: Communicator) -> None:
    count = 1 << 22
    at, out = memory(count), memory(count)
    with comm.register(at), comm.register(out):
        stream = torch.cuda.Stream()
        comm.broadcast(at[:count], out=out[:count], stream=stream)  # prepared
        comm.reduce(out[:count], out=at[:count], stream=stream)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        log.direct()
        with torch.cuda.graph(graph, stream=stream):
            comm.broadcast(at[1:count], out=out[1:count], stream=stream)
            comm.reduce(out[1:count], out=at[1:count], stream=stream)
        assert log.direct()
        for seed in range(5):
            at[:count] = values(comm.rank, count, seed)
            torch.cuda.synchronize()
            graph.replay()
            torch.cuda.synchronize()
            comm.check()
            wanted = values(0, count, seed)[1:]
            assert torch.equal(out[1:count], wanted)
            if comm.rank == 0:
                assert torch.equal(at[1:count], wanted * comm.size)
        del graph


def symmetric(comm: Communicator) -> None:
    """Copy engines write outputs there, and leave others to kernels (setting COPY_ENGINES)."""
    moved = ("all_gather", "all_to_all", "broadcast")
    at = memory(2 * comm.size * LARGEST + 4096)
    calls = 0
    with comm.register(at, symmetric=True):
        for seed, case in enumerate(cases(comm)):
            case.run(at[2048:], seed, seed % comm.size)
            calls += case.operation in moved
    by_engines = [
        one["operation"]
        for one in comm.call_records()["records"]
        if one["algorithm"] == "copy_engines"
    ]
    assert len(by_engines) == calls, (len(by_engines), calls)
    assert set(by_engines) == set(moved)
    assert comm.explain("all_gather", 1 << 20)["copy_engines"]
    assert not comm.explain("all_reduce", 1 << 20)["copy_engines"]


def refused(comm: Communicator) -> None:
    """A bad buffer of rank 1 is everybody's error, and then all goes on."""
    at = memory(1 << 22)
    host = np.ones(1 << 20, np.float32)
    other = torch.zeros(1 << 20, device=f"cuda:{(comm.rank + 1) % comm.size}")
    for bad, words in (
        (host, "rank 1: .*not in GPU memory"),
        (at[:0], "rank 1: .*(NULL|0 bytes)"),
        (other, "rank 1: .*is on GPU"),
    ):
        with pytest.raises(ropewalk.ArgumentError, match=words):
            comm.register(bad if comm.rank == 1 else at)
        assert not long_broadcast(comm, at, 1)
    with comm.register(at):
        assert long_broadcast(comm, at, 2)


def staged(comm: Communicator) -> None:
    """Memory that cannot be shared, or settings that say so: accepted, and right."""
    at = memory(1 << 22)
    with comm.register(at):
        for seed in range(3):
            assert not long_broadcast(comm, at, seed)
            Case(comm, "all_reduce", 1 << 20, True).run(at, seed, 0)


def unregistered_peer(comm: Communicator) -> None:
    """A rank that does not come is a timeout that names it, and the communicator is broken."""
    at = memory(64)
    comm.all_reduce(at)
    if comm.rank == 0:
        with pytest.raises(ropewalk.TimeoutError, match="rank 1"):
            comm.register(at)
        with pytest.raises(ropewalk.Error):
            comm.all_reduce(at)
    else:
        with pytest.raises(ropewalk.Error):
            while True:
                comm.check()
    comm.abort()


PARTS: dict[str, Callable[[Communicator], None]] = {
    function.__name__: function
    for function in (
        operations,
        lifetimes,
        left_open,
        graphs,
        symmetric,
        refused,
        staged,
        unregistered_peer,
    )
}


def main() -> None:
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    with ropewalk.init(device="cuda") as comm:
        PARTS[sys.argv[1]](comm)
    print("all done")


if __name__ == "__main__":
    main()
