"""ncclPutSignal, ncclSignal and ncclWaitSignal, two processes: rings, contexts, groups, graphs.

Every byte is compared. Processes share a GPU where there is one.
"""

from __future__ import annotations

import ctypes
import os
from typing import Any, Callable

import nccl
import torch
import torch.distributed as dist
from nccl import FLOAT32, SUM, Comm, LaterConfig, Nccl, UniqueId

UINT8 = 1
NBYTES = 1 << 20
SIZES = (1, 8, 1000, 65_536, NBYTES - 3)
CONTEXTS = SIGNALS = 2
TURNS = 20


class Wait(ctypes.Structure):
    """ncclWaitSignalDesc_t."""

    _fields_ = [(name, ctypes.c_int) for name in ("count", "peer", "index", "context")]


library = nccl.load()
POINTER, SIZE, INT, FLAGS = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_uint
library.ncclPutSignal.argtypes = [
    *(POINTER, SIZE, INT, INT, POINTER, SIZE, INT, INT, FLAGS),
    *(Comm, POINTER),
]
library.ncclSignal.argtypes = [INT, INT, INT, FLAGS, Comm, POINTER]
library.ncclWaitSignal.argtypes = [INT, POINTER, Comm, POINTER]
api = Nccl(library)
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
peer = (rank + 1) % size
source_rank = (rank - 1) % size
torch.cuda.set_device(rank % torch.cuda.device_count())
store = dist.TCPStore("127.0.0.1", int(os.environ["MASTER_PORT"]), size, rank == 0)
stream = torch.cuda.Stream()
waits_kept: list[Any] = []


def meet(name: str) -> None:
    """Returns when all ranks have called; no stream is needed for it."""
    store.set(f"{name} {rank}", "here")
    store.wait([f"{name} {each}" for each in range(size)])


def values(of_rank: int, nbytes: int, turn: int) -> torch.Tensor:
    kind = torch.arange(nbytes, device="cuda", dtype=torch.int64)
    return ((kind * 7 + kind // 251 + of_rank * 13 + turn * 29) % 251).to(torch.uint8)


def put_signal(source: torch.Tensor, index: int, context: int, offset: int = 0) -> None:
    api.PutSignal(
        *(source.data_ptr(), source.numel(), UINT8, peer, window, offset, index, context, 0),
        *(comm, stream.cuda_stream),
    )


def signal(to: int, index: int, context: int) -> int:
    return api.result("Signal", to, index, context, 0, comm, stream.cuda_stream)


def wait(*waits: tuple[int, int, int, int]) -> None:
    """Of counts, peers, indices and contexts."""
    descriptors = (Wait * len(waits))(*(Wait(*each) for each in waits))
    api.WaitSignal(len(waits), descriptors, comm, stream.cuda_stream)


def ring() -> None:
    """Data and a signal to the next one, a signal back that it may be overwritten."""
    turns = [(turn, nbytes) for turn in range(TURNS) for nbytes in SIZES]
    sources = [values(rank, nbytes, turn) for turn, nbytes in turns]
    seen = [torch.zeros_like(source) for source in sources]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for source, got in zip(sources, seen):
            offset = NBYTES - source.numel()
            put_signal(source, 0, 0, offset)
            wait((1, source_rank, 0, 0))
            got.copy_(mine[offset:])
            assert signal(source_rank, 1, 0) == nccl.SUCCESS
            wait((1, peer, 1, 0))
    stream.synchronize()
    for (turn, nbytes), got in zip(turns, seen):
        assert torch.equal(got, values(source_rank, nbytes, turn)), (turn, nbytes)


def contexts() -> None:
    """Each context and index has a count of its own, and a wait takes as many as it says."""
    for context in range(CONTEXTS):
        for index in range(SIGNALS):
            for _ in range(1 + context + 2 * index):
                assert signal(peer, index, context) == nccl.SUCCESS
    wait(
        *(
            (1 + context + 2 * index, source_rank, index, context)
            for context in range(CONTEXTS)
            for index in range(SIGNALS)
        )
    )
    stream.synchronize()
    # Two more: one comes now, the other when this rank was seen to wait.
    assert signal(peer, 1, 1) == nccl.SUCCESS
    stream.synchronize()
    meet("one has come")
    wait((2, source_rank, 1, 1))
    meet("all wait")
    assert not stream.query()
    meet("all have looked")
    other = torch.cuda.Stream()
    api.Signal(peer, 1, 1, 0, comm, other.cuda_stream)
    stream.synchronize()
    other.synchronize()


def groups() -> None:
    """A wait of a group holds back no put of it; a collective goes between the two."""
    sources = [values(rank, NBYTES // 2, turn) for turn in range(TURNS)]
    seen = [torch.zeros_like(source) for source in sources]
    sums = [torch.full((1000,), float(rank + turn), device="cuda") for turn in range(TURNS)]
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        for source, got, total in zip(sources, seen, sums):
            api.GroupStart()
            wait((2, source_rank, 0, 1))
            half = source.numel() // 2
            put_signal(source[:half], 0, 1)
            put_signal(source[half:], 0, 1, half)
            place = total.data_ptr()
            api.AllReduce(place, place, 1000, FLOAT32, SUM, comm, stream.cuda_stream)
            api.GroupEnd()
            got.copy_(mine[: source.numel()])
            assert signal(source_rank, 1, 1) == nccl.SUCCESS
            wait((1, peer, 1, 1))
    stream.synchronize()
    for turn, (got, total) in enumerate(zip(seen, sums)):
        assert torch.equal(got, values(source_rank, NBYTES // 2, turn)), turn
        assert (total == sum(each + turn for each in range(size))).all(), turn


def graphs() -> None:
    """Captured once, launched again with other data; what a graph counts calls do not."""
    source = torch.zeros(NBYTES, dtype=torch.uint8, device="cuda")
    got = torch.zeros_like(source)
    data = [values(rank, NBYTES, turn) for turn in range(TURNS)]
    expected = [values(source_rank, NBYTES, turn) for turn in range(TURNS)]
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin(capture_error_mode="thread_local")
        put_signal(source, 0, 1)
        wait((1, source_rank, 0, 1))
        got.copy_(mine)
        assert signal(source_rank, 1, 1) == nccl.SUCCESS
        wait((1, peer, 1, 1))
        graph.capture_end()
        same = torch.zeros(TURNS, dtype=torch.bool, device="cuda")
        for turn in range(TURNS):
            source.copy_(data[turn])
            graph.replay()
            same[turn] = (got == expected[turn]).all()
    stream.synchronize()
    assert bool(same.all()), same
    assert signal(peer, 0, 1) == nccl.USAGE
    assert b"kernels count these" in api.library.ncclGetLastError(comm)
    assert signal(peer, 0, 0) == nccl.SUCCESS
    wait((1, source_rank, 0, 0))
    stream.synchronize()


class View:
    """Memory as PyTorch takes it."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (NBYTES,), "typestr": "|u1", "data": (address, False), "version": 3,
        }  # fmt: skip


unique = UniqueId()
if rank == 0:
    api.GetUniqueId(ctypes.byref(unique))
    store.set("id", bytes(unique))
unique = UniqueId.from_buffer_copy(store.get("id"))
comm = Comm()
config = LaterConfig(contexts=CONTEXTS, signals=SIGNALS)
api.CommInitRankConfig(ctypes.byref(comm), size, unique, rank, ctypes.byref(config))
memory, window = ctypes.c_void_p(), ctypes.c_void_p()
api.MemAlloc(ctypes.byref(memory), NBYTES)
assert memory.value
api.CommWindowRegister(comm, memory, NBYTES, ctypes.byref(window), 1)
mine = torch.as_tensor(View(memory.value), device="cuda")
# Kernels are loaded before a stream waits.
for _ in range(2):
    (values(0, 1000, 1).clone() == values(0, 1000, 1)).all().cpu()
warm = torch.ones(1000, device="cuda")
torch.cuda.synchronize()
api.AllReduce(warm.data_ptr(), warm.data_ptr(), 1000, FLOAT32, SUM, comm, stream.cuda_stream)
stream.synchronize()
assert (warm == size).all()
parts: tuple[Callable[[], None], ...] = (ring, contexts, groups, graphs)
for part in parts:
    part()
    assert api.async_error(comm) == nccl.SUCCESS
    meet(part.__name__)
    print(f"{part.__name__}: ok", flush=True)
api.CommWindowDeregister(comm, window)
api.CommDestroy(comm)
api.MemFree(memory)
print("all done", flush=True)
os._exit(0)  # without TCPStore's own complaints
