"""torch.distributed's nccl backend, one process per GPU: every collective, type and operator."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator

import torch
import torch.distributed as dist

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)

TYPES = [
    torch.uint8,
    torch.int8,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
]
FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
LENGTHS = (1, 7, 1023, 65539, 1 << 20)
OPERATORS = {
    dist.ReduceOp.SUM: lambda all_: all_.sum(0),
    dist.ReduceOp.PRODUCT: lambda all_: all_.prod(0),
    dist.ReduceOp.MIN: lambda all_: all_.amin(0),
    dist.ReduceOp.MAX: lambda all_: all_.amax(0),
}
checks = 0


def is_ours() -> bool:
    """Whether the library that was loaded first is Ropewalk's: only its text is this one."""
    first = ctypes.CDLL(None)
    first.ncclGetErrorString.restype = ctypes.c_char_p
    return bool(first.ncclGetErrorString(6).startswith(b"another rank ended"))


def of_rank(which: int, length: int, kind: torch.dtype, salt: int = 0) -> torch.Tensor:
    """Small whole numbers, so that sums are exact in every type."""
    index = torch.arange(length, device=device)
    return ((index * 5 + which * 3 + salt + index // 257) % 4).to(torch.float32).to(kind)


def equal(got: torch.Tensor, right: torch.Tensor, what: str) -> None:
    global checks
    checks += 1
    if not torch.equal(got.to(torch.float64), right.to(torch.float64)):
        wrong = (got.to(torch.float64) != right.to(torch.float64)).nonzero().flatten()[:5].tolist()
        sys.exit(f"rank {rank}: {what}: wrong at {wrong}: {got.flatten()[wrong[:1]]}")


def together(length: int, kind: torch.dtype, salt: int = 0) -> torch.Tensor:
    """All ranks' inputs as rows, in float64."""
    rows = [of_rank(r, length, kind, salt).to(torch.float64) for r in range(size)]
    return torch.stack(rows)


def cases() -> Iterator[tuple[torch.dtype, int]]:
    for kind in TYPES:
        for length in LENGTHS:
            yield kind, length


def reductions() -> None:
    for kind, length in cases():
        all_ = together(length, kind)
        for op, reference in OPERATORS.items():
            what = f"{op} {kind} {length}"
            if kind in FLOAT8 and op in (dist.ReduceOp.PRODUCT,) and size > 4:
                continue  # the product leaves the type's exact range
            tensor = of_rank(rank, length, kind)
            dist.all_reduce(tensor, op)
            equal(tensor, reference(all_), f"all_reduce {what}")
            tensor = of_rank(rank, length, kind)
            dist.reduce(tensor, size - 1, op)
            if rank == size - 1:
                equal(tensor, reference(all_), f"reduce {what}")
            wide = together(length * size, kind)
            part = torch.empty(length, dtype=kind, device=device)
            dist.reduce_scatter_tensor(part, of_rank(rank, length * size, kind), op)
            right = reference(wide)[rank * length : (rank + 1) * length]
            equal(part, right, f"reduce_scatter {what}")
        if kind.is_floating_point and kind not in FLOAT8:
            tensor = of_rank(rank, length, kind) * size
            dist.all_reduce(tensor, dist.ReduceOp.AVG)
            equal(tensor, all_.sum(0), f"all_reduce avg {kind} {length}")
            tensor = of_rank(rank, length, kind)
            dist.all_reduce(tensor, dist._make_nccl_premul_sum(0.5))
            equal(tensor, all_.sum(0) * 0.5, f"all_reduce premul {kind} {length}")
            if kind in (torch.float32, torch.float64):
                tensor = of_rank(rank, length, kind)
                factor = torch.full((1,), 2.0, dtype=kind, device=device)
                dist.all_reduce(tensor, dist._make_nccl_premul_sum(factor))
                equal(tensor, all_.sum(0) * 2, f"all_reduce premul on device {kind} {length}")


def movements() -> None:
    for kind, length in cases():
        what = f"{kind} {length}"
        own = of_rank(rank, length, kind)
        for root in range(size):
            tensor = own.clone()
            dist.broadcast(tensor, root)
            equal(tensor, of_rank(root, length, kind), f"broadcast {what}")
        out = torch.empty(length * size, dtype=kind, device=device)
        dist.all_gather_into_tensor(out, own)
        equal(out, together(length, kind).flatten(), f"all_gather {what}")
        parts = [torch.empty_like(own) for _ in range(size)]
        dist.all_gather(parts, own)
        for r, part in enumerate(parts):
            equal(part, of_rank(r, length, kind), f"all_gather list {what}")
        wide = of_rank(rank, length * size, kind)
        out = torch.empty_like(wide)
        dist.all_to_all_single(out, wide)
        right = together(length * size, kind)[:, rank * length : (rank + 1) * length]
        equal(out, right.flatten(), f"all_to_all {what}")
        parts = [torch.empty_like(own) for _ in range(size)] if rank == 0 else None
        dist.gather(own, parts, 0)
        for r, part in enumerate(parts or []):
            equal(part, of_rank(r, length, kind), f"gather {what}")
        part = torch.empty_like(own)
        dist.scatter(part, list(wide.chunk(size)) if rank == 0 else None, 0)
        equal(
            part,
            of_rank(0, length * size, kind)[rank * length : (rank + 1) * length],
            f"scatter {what}",
        )
        received = torch.empty_like(own)
        for work in dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, own, (rank + 1) % size),
                dist.P2POp(dist.irecv, received, (rank - 1) % size),
            ]
        ):
            work.wait()
        equal(received, of_rank((rank - 1) % size, length, kind), f"isend irecv {what}")
    # Uneven parts: rank r sends r + d + 1 elements to rank d.
    sent = [rank + d + 1 for d in range(size)]
    got = [r + rank + 1 for r in range(size)]
    out = torch.empty(sum(got), device=device)
    dist.all_to_all_single(out, torch.full((sum(sent),), rank, device=device) * 1.0, got, sent)
    equal(
        out, torch.cat([torch.full((got[r],), float(r)) for r in range(size)]).to(device), "uneven"
    )


def groups() -> None:
    for ranks in ([0], list(range(size))[::-1], list(range(size))):
        group = dist.new_group(sorted(ranks))
        if rank in ranks:
            tensor = torch.full((100,), rank + 1.0, device=device)
            dist.all_reduce(tensor, group=group)
            equal(tensor, torch.full((100,), sum(r + 1.0 for r in ranks)).to(device), "new_group")
    works = [dist.all_reduce(torch.ones(1000, device=device), async_op=True) for _ in range(20)]
    for work in works:
        work.wait()
    dist.barrier()
    tensors = [torch.full((50,), float(rank), device=device) for _ in range(10)]
    with dist._coalescing_manager(device=device):
        for tensor in tensors:
            dist.all_reduce(tensor)
    for tensor in tensors:
        equal(tensor, torch.full((50,), sum(range(size)) * 1.0).to(device), "coalesced")


def graph() -> None:
    data = torch.zeros(5000, device=device)
    out = torch.empty(5000 * size, device=device)
    dist.all_reduce(data)
    torch.cuda.synchronize()
    captured = torch.cuda.CUDAGraph()
    with torch.cuda.graph(captured):
        for _ in range(5):
            dist.all_reduce(data)
        dist.all_gather_into_tensor(out, data)
    for turn in range(20):
        data.copy_(of_rank(rank, 5000, torch.float32, turn))
        captured.replay()
        right = together(5000, torch.float32, turn).sum(0) * size**4
        equal(data, right, f"graph {turn}")
        equal(out, right.repeat(size), f"graph {turn}")
    torch.cuda.synchronize()
    del captured


def storm(number: int) -> None:
    """Back-to-back small operations of mixed kind and size, verified on the GPU without waiting."""
    chance = torch.Generator().manual_seed(7)
    wrong = torch.zeros((), dtype=torch.int64, device=device)
    longest = 4096
    inputs = [of_rank(r, longest * size, torch.float32) for r in range(size)]
    total = torch.stack(inputs).sum(0)
    for _ in range(number):
        kind = int(torch.randint(6, (), generator=chance))
        length = int(torch.randint(1, longest, (), generator=chance))
        root = int(torch.randint(size, (), generator=chance))
        if kind == 0:
            tensor = inputs[rank][:length].clone()
            dist.all_reduce(tensor)
            wrong += (tensor != total[:length]).sum()
        elif kind == 1:
            tensor = inputs[rank][:length].clone()
            dist.broadcast(tensor, root)
            wrong += (tensor != inputs[root][:length]).sum()
        elif kind == 2:
            out = torch.empty(length * size, device=device)
            dist.all_gather_into_tensor(out, inputs[rank][:length].contiguous())
            for r in range(size):
                wrong += (out[r * length : (r + 1) * length] != inputs[r][:length]).sum()
        elif kind == 3:
            part = torch.empty(length, device=device)
            dist.reduce_scatter_tensor(part, inputs[rank][: length * size].contiguous())
            wrong += (part != total[rank * length : (rank + 1) * length]).sum()
        elif kind == 4:
            tensor = inputs[rank][:length].clone()
            dist.reduce(tensor, root)
            if rank == root:
                wrong += (tensor != total[:length]).sum()
        else:
            wide = inputs[rank][: length * size].contiguous()
            out = torch.empty_like(wide)
            dist.all_to_all_single(out, wide)
            for r in range(size):
                right = inputs[r][rank * length : (rank + 1) * length]
                wrong += (out[r * length : (r + 1) * length] != right).sum()
    if int(wrong) != 0:
        sys.exit(f"rank {rank}: {int(wrong)} wrong elements in {number} operations")


def main() -> None:
    if not is_ours():
        sys.exit("this is not Ropewalk's libnccl.so.2")
    bound = {"device_id": device} if "eager" in sys.argv else {}
    dist.init_process_group("nccl", rank=rank, world_size=size, **bound)
    for part in sys.argv[1:]:
        if part == "eager":
            continue
        if part.startswith("storm"):
            storm(int(part.partition("=")[2] or 10000))
        else:
            {"reductions": reductions, "movements": movements, "groups": groups, "graph": graph}[
                part
            ]()
        torch.cuda.synchronize()
        print(f"{part}: ok")
    dist.destroy_process_group()
    print(f"all done: {checks} checks, NCCL {torch.cuda.nccl.version()}")


main()
