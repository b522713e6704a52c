"""PyTorch's symmetric memory with its backend NCCL: a rank of device_api_gpu_test.py.

Each part prints "ok: NAME", or why this PyTorch has not got it: what it offers depends on its
version, and on that of the NCCL that it was compiled with.
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symm_mem

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
first = ctypes.CDLL(None)
if "LD_PRELOAD" in os.environ:
    first.ncclGetErrorString.restype = ctypes.c_char_p
    assert first.ncclGetErrorString(6).startswith(b"another rank ended")
if sys.argv[1] == "set_backend":
    symm_mem.set_backend("NCCL")
print(f"PyTorch {torch.__version__}, NCCL {torch.cuda.nccl.version()} by its own word")
assert symm_mem.get_backend(device) == "NCCL"

dist.init_process_group("nccl", rank=rank, world_size=size, device_id=device)
dist.all_reduce(torch.ones(1, device=device))
world = dist.group.WORLD
assert world is not None
name = world.group_name
following, preceding = (rank + 1) % size, (rank - 1) % size
COUNT = 1 << 20
# What PyTorch itself says of parts that it was not compiled with.
ABSENT = ("NYI", "Requires NCCL", "not supported", "has no attribute", "not implemented")


def part(title: str, body: Callable[[], None]) -> None:
    try:
        body()
    except (RuntimeError, AttributeError, NotImplementedError, ValueError) as error:
        said = str(error).strip().splitlines()[0]
        if not any(words in str(error) for words in ABSENT):
            raise
        print(f"not in this PyTorch: {title}: {said}")
    else:
        torch.cuda.synchronize()
        print(f"ok: {title}")
    dist.barrier()


def values(of: int, turn: int = 0) -> torch.Tensor:
    """Different for each rank, element and turn; sums of them are exact."""
    return torch.arange(COUNT, device=device).remainder(1009).float() + 1024 * (of + 1) + turn


def expected_sum(turn: int = 0) -> torch.Tensor:
    total = torch.zeros(COUNT, device=device)
    for of in range(size):
        total += values(of, turn)
    return total


memory = symm_mem.empty(COUNT, dtype=torch.float32, device=device)
handle = symm_mem.rendezvous(memory, name)
assert handle is not None
assert (handle.rank, handle.world_size) == (rank, size)
assert handle.buffer_size >= 4 * COUNT
print("ok: rendezvous")


def get_buffer() -> None:
    memory.copy_(values(rank))
    torch.cuda.synchronize()
    dist.barrier()
    for peer in range(size):
        seen = handle.get_buffer(peer, (COUNT,), torch.float32)
        assert torch.equal(seen, values(peer)), peer
    torch.cuda.synchronize()
    dist.barrier()
    handle.get_buffer(following, (COUNT,), torch.float32).copy_(values(rank, 5))
    torch.cuda.synchronize()
    dist.barrier()
    assert torch.equal(memory, values(preceding, 5))


def one_shot() -> None:
    for turn in range(5):
        memory.copy_(values(rank, turn))
        summed = torch.ops.symm_mem.one_shot_all_reduce(memory, "sum", name)
        assert torch.equal(summed, expected_sum(turn)), turn


def two_shot() -> None:
    for turn in range(5):
        memory.copy_(values(rank, turn))
        torch.ops.symm_mem.two_shot_all_reduce_(memory, "sum", name)
        assert torch.equal(memory, expected_sum(turn)), turn


def second_tensor() -> None:
    """Windows that come later, at another place of an allocation, and collectives on them."""
    other = symm_mem.empty(2 * COUNT, dtype=torch.bfloat16, device=device)
    symm_mem.rendezvous(other, name)
    other.fill_(rank + 1)
    summed = torch.ops.symm_mem.one_shot_all_reduce(other, "sum", name)
    assert bool((summed == size * (size + 1) // 2).all())
    dist.all_reduce(other)
    assert bool((other == size * (size + 1) // 2).all())


def subgroup() -> None:
    """A group with a communicator of its own."""
    group = dist.new_group(list(range(size)), use_local_synchronization=False)
    dist.all_reduce(torch.ones(1, device=device), group=group)
    other = symm_mem.empty(COUNT, dtype=torch.float32, device=device)
    symm_mem.rendezvous(other, group.group_name)
    other.copy_(values(rank, 9))
    summed = torch.ops.symm_mem.one_shot_all_reduce(other, "sum", group.group_name)
    assert torch.equal(summed, expected_sum(9))


def host_barrier() -> None:
    handle.barrier(0)


def host_signal() -> None:
    handle.put_signal(following, 0)
    handle.wait_signal(preceding, 0)


def put_signal() -> None:
    memory.zero_()
    torch.cuda.synchronize()
    dist.barrier()
    source = symm_mem.empty(COUNT, dtype=torch.float32, device=device)
    symm_mem.rendezvous(source, name)
    source.copy_(values(rank, 3))
    symm_mem.put_signal(source, handle, following)
    symm_mem.wait_signal(handle, preceding)
    torch.cuda.synchronize()
    assert torch.equal(memory, values(preceding, 3))


def put_and_get() -> None:
    """Each writes its own part of the tensor to the same place of a peer's."""
    memory.copy_(values(rank, 1))
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 1:
        torch.ops.symm_mem.nccl_put(memory, 0)
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 0:
        assert torch.equal(memory, values(1, 1))
        memory.copy_(values(0, 2))
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 1:
        torch.ops.symm_mem.nccl_get(memory, 0)
        torch.cuda.synchronize()
        assert torch.equal(memory, values(0, 2))


def put_with_signal() -> None:
    memory.copy_(values(rank, 4))
    torch.cuda.synchronize()
    dist.barrier()
    if rank == 1:
        torch.ops.symm_mem.nccl_put_with_signal(memory, 5, 0)
    if rank == 0:
        torch.ops.symm_mem.nccl_wait_for_signal(memory, 5)
        torch.cuda.synchronize()
        assert torch.equal(memory, values(1, 4))


def reduce_scatter_offset() -> None:
    """Of later versions: NVIDIA's reduction over the team, with a device communicator."""
    rows, columns = 64, 256 * size
    matrix = symm_mem.empty(rows, columns, dtype=torch.float32, device=device)
    symm_mem.rendezvous(matrix, name)
    matrix.fill_(rank + 1)
    out = [torch.empty(rows, 256, device=device)]
    torch.ops.symm_mem.nccl_reduce_scatter_offset(matrix, out, name, 1)
    assert bool((out[0] == size * (size + 1) / 2).all())


part("get_buffer", get_buffer)
part("one_shot_all_reduce", one_shot)
part("two_shot_all_reduce_", two_shot)
part("a second tensor", second_tensor)
part("a second group", subgroup)
part("handle.barrier", host_barrier)
part("handle.put_signal and wait_signal", host_signal)
part("put_signal and wait_signal", put_signal)
part("nccl_put and nccl_get", put_and_get)
part("nccl_reduce_scatter_offset", reduce_scatter_offset)
# Leaves a number in the signal pad.
part("nccl_put_with_signal and nccl_wait_for_signal", put_with_signal)
torch.cuda.synchronize()
dist.barrier()
dist.destroy_process_group()
print("all done")
