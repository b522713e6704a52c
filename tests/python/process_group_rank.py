"""One rank of torch_backend_test.py: CASE STORE_FILE RANK RANKS [DEVICE]. Raises what is wrong."""

from __future__ import annotations

import copy
import os
import sys
from typing import Any, Callable

import process_group_faults
import process_group_features
import process_group_parallelism
import ropewalk
import ropewalk.torch_backend
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

Tensor = Any  # torch.Tensor; the type checker does not read PyTorch


def equal(got: Tensor, wanted: Any) -> None:
    wanted = torch.as_tensor(wanted, dtype=got.dtype, device=got.device)
    assert torch.equal(got, wanted.expand_as(got)), (got, wanted)


def operations(rank: int, size: int, device: str) -> None:
    def full(value: float, *shape: int, dtype: Any = torch.float32) -> Tensor:
        return torch.full(shape or (5,), value, dtype=dtype, device=device)

    ranks = list(range(size))
    for dtype in (torch.float32, torch.bfloat16, torch.float16, torch.int64, torch.uint8):
        tensor = full(rank + 1, dtype=dtype)
        dist.all_reduce(tensor)
        equal(tensor, sum(r + 1 for r in ranks))
    for op, wanted in (
        (dist.ReduceOp.MAX, size),
        (dist.ReduceOp.MIN, 1),
        (dist.ReduceOp.AVG, (size + 1) / 2),
        (dist.ReduceOp.PRODUCT, torch.arange(1, size + 1).prod().item()),
    ):
        tensor = full(rank + 1)
        dist.all_reduce(tensor, op)
        equal(tensor, wanted)
    flags = torch.tensor([rank == 0, True, False], device=device)
    dist.all_reduce(flags, dist.ReduceOp.MAX)
    equal(flags, [True, True, False])
    wave = torch.full((3,), complex(rank, 1), dtype=torch.complex64, device=device)
    dist.all_reduce(wave)
    equal(wave, complex(sum(ranks), size))

    # Columns do not lie one behind the other.
    columns = full(0, 4, 3)
    columns[:, 1] = rank + 1
    dist.all_reduce(columns[:, 1])
    equal(columns[:, 1], sum(r + 1 for r in ranks))
    equal(columns[:, 0], 0)

    tensor = full(rank, dtype=torch.int16)  # only moved: any type
    dist.broadcast(tensor, src=size - 1)
    equal(tensor, size - 1)
    tensor = full(rank + 1)
    dist.reduce(tensor, dst=0)
    equal(tensor, sum(r + 1 for r in ranks) if rank == 0 else rank + 1)

    gathered = [full(-1) for _ in ranks]
    dist.all_gather(gathered, full(rank))
    for r in ranks:
        equal(gathered[r], r)
    uneven = [full(-1, r + 1) for r in ranks]
    dist.all_gather(uneven, full(rank, rank + 1))
    for r in ranks:
        equal(uneven[r], r)
    whole = full(-1, size, 3)
    dist.all_gather_into_tensor(whole, full(rank, 3))
    equal(whole, torch.arange(size).view(-1, 1))

    blocks = [full(r * 10 + rank, 3) for r in ranks]
    out = full(-1, 3)
    dist.reduce_scatter(out, blocks)
    equal(out, rank * 10 * size + sum(ranks))
    out = full(-1, 3)
    dist.reduce_scatter_tensor(out, torch.cat(blocks))
    equal(out, rank * 10 * size + sum(ranks))

    received = [full(-1) for _ in ranks] if rank == 0 else None
    dist.gather(full(rank), received, dst=0)
    for r, block in enumerate(received or []):
        equal(block, r)
    out = full(-1)
    dist.scatter(out, [full(r) for r in ranks] if rank == 0 else None, src=0)
    equal(out, rank)

    out = full(-1, size, 2)
    dist.all_to_all_single(out, torch.stack([full(rank * 10 + r, 2) for r in ranks]))
    equal(out, torch.tensor([r * 10 + rank for r in ranks]).view(-1, 1))
    # Rank r gets r + 1 rows from everybody.
    out = full(-1, size * (rank + 1), 2)
    sent = torch.cat([full(rank * 10 + r, r + 1, 2) for r in ranks])
    dist.all_to_all_single(out, sent, [rank + 1] * size, [r + 1 for r in ranks])
    for r in ranks:
        equal(out[r * (rank + 1) : (r + 1) * (rank + 1)], r * 10 + rank)
    outs = [full(-1, rank + 1) for _ in ranks]
    dist.all_to_all(outs, [full(rank * 10 + r, r + 1) for r in ranks])
    for r in ranks:
        equal(outs[r], r * 10 + rank)

    works = [dist.all_reduce(full(rank), async_op=True) for _ in range(10)]
    for work in works:
        work.wait()
        assert work.is_completed()
    equal(works[-1].get_future().wait()[0], sum(ranks))
    objects: list[Any] = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    assert [one["rank"] for one in objects] == ranks
    dist.barrier()
    half = dist.new_group([0])
    if rank == 0:
        tensor = full(3)
        dist.all_reduce(tensor, group=half)
        equal(tensor, 3)


def point_to_point(rank: int, size: int, device: str) -> None:
    right, left = (rank + 1) % size, (rank - 1) % size
    for elements in (3, 1 << 20):  # the second is longer than any buffer on the way
        got = torch.zeros(elements, device=device)
        mine = torch.full((elements,), float(rank), device=device)
        # Everybody sends first, and one by one: no pair waits for another.
        works = [dist.isend(mine, right), dist.irecv(got, left)]
        for work in works:
            work.wait()
        equal(got, left)
        got.zero_()
        operations_ = [dist.P2POp(dist.irecv, got, left), dist.P2POp(dist.isend, mine, right)]
        for work in dist.batch_isend_irecv(operations_):
            work.wait()
        equal(got, left)
    # Messages of two tags pass each other.
    if rank == 0:
        sent = [dist.isend(torch.tensor([float(tag)], device=device), 1, tag=tag) for tag in (1, 2)]
        for work in sent:
            work.wait()
    elif rank == 1:
        second, first = torch.zeros(1, device=device), torch.zeros(1, device=device)
        dist.recv(second, 0, tag=2)
        dist.recv(first, 0, tag=1)
        equal(torch.cat([first, second]), [1, 2])


def streams(rank: int, size: int, device: str) -> None:
    """Operations that are waited for at once, on two streams, between others: each uses what the
    one before has made, and the host waits for none."""
    one, two = torch.cuda.Stream(device), torch.cuda.Stream(device)
    made = torch.ones(100_000, device=device)
    wanted = 1.0
    torch.cuda.synchronize()
    for turn in range(40):
        with torch.cuda.stream(one if turn % 2 == 0 else two):
            made = made.clone()
            made.record_stream(one)
            made.record_stream(two)
            work = dist.all_reduce(made, async_op=turn % 3 == 0)
            if work is not None:
                work.wait()
            made.div_(size).add_(rank).sub_(rank - 1)
            done = torch.cuda.current_stream().record_event()
        wanted += 1
        for stream in (one, two):
            stream.wait_event(done)
    torch.cuda.synchronize()
    equal(made, wanted)


def _model(device: str) -> torch.nn.Module:
    torch.manual_seed(5)
    return torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.BatchNorm1d(32), torch.nn.ReLU(), torch.nn.Linear(32, 4)
    ).to(device)


def _train(model: torch.nn.Module, inputs: Tensor, steps: int = 3) -> list[Tensor]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    return [parameter.detach().clone() for parameter in model.parameters()]


def training(rank: int, size: int, device: str) -> None:
    """A model trained under DDP ends as under Gloo, and the same on all ranks."""
    torch.manual_seed(100 + rank)
    inputs = torch.randn(8, 16, device=device)
    start = _model(device)
    reference = dist.new_group(backend="nccl" if device.startswith("cuda") else "gloo")
    theirs = _train(DistributedDataParallel(copy.deepcopy(start), process_group=reference), inputs)
    # Several times on a GPU, where an optimizer that did not wait for the sums may still find them.
    for _ in range(5 if device.startswith("cuda") else 1):
        ours = _train(DistributedDataParallel(copy.deepcopy(start)), inputs)
        for mine, other in zip(ours, theirs):
            # Sums of two numbers have one rounding, in whatever order.
            assert torch.equal(mine, other) if size == 2 else torch.allclose(mine, other)
            root = mine.clone()
            dist.broadcast(root, 0)
            equal(mine, root)
    _sharded(start, inputs, ours if size == 2 else None)


def _sharded(start: torch.nn.Module, inputs: Tensor, _whole: Any) -> None:
    """FSDP steps, against the same steps without sharding (same inputs on all ranks)."""
    from torch.distributed.fsdp import fully_shard

    dist.broadcast(inputs, 0)
    plain = torch.nn.Sequential(*(copy.deepcopy(start[i]) for i in (0, 2, 3)))
    wanted = _train(copy.deepcopy(plain), inputs)
    mesh = dist.device_mesh.init_device_mesh(inputs.device.type, (dist.get_world_size(),))
    model = fully_shard(copy.deepcopy(plain), mesh=mesh)
    _train(model, inputs)
    for parameter, other in zip(model.parameters(), wanted):
        full: Any = parameter
        assert torch.allclose(full.full_tensor(), other, atol=1e-6)


def errors(rank: int, size: int, device: str) -> None:
    try:
        dist.all_reduce(torch.ones(3, dtype=torch.int16, device=device))
    except ropewalk.ArgumentError as error:
        assert "int16" in str(error)
    else:
        raise AssertionError("int16 was reduced")
    tensor = torch.ones(2, device=device)
    dist.all_reduce(tensor)  # the group stays whole
    equal(tensor, size)


CASES: dict[str, Callable[[int, int, str], None]] = {
    "operations": operations,
    "point_to_point": point_to_point,
    "streams": streams,
    "training": training,
    "errors": errors,
    **process_group_faults.CASES,
    **process_group_features.CASES,
    **process_group_parallelism.CASES,
}


def run(case: str, store: str, rank: int, size: int, device: str) -> None:
    if device == "cuda":
        # NCCL is the reference there. Some machines cannot take its use of NVLink multicast.
        os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
        device = f"cuda:{rank}"
        torch.cuda.set_device(rank)
    torch.set_num_threads(1)
    dist.init_process_group("ropewalk", init_method=f"file://{store}", rank=rank, world_size=size)
    try:
        CASES[case](rank, size, device)
        if case not in process_group_faults.CASES:
            dist.barrier()
    finally:
        dist.destroy_process_group()


def main() -> None:
    case, store, rank, size = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    run(case, store, rank, size, sys.argv[5] if len(sys.argv) > 5 else "cpu")


if __name__ == "__main__":
    main()
