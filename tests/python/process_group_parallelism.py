"""Cases of process_group_rank.py on the CPU: what PyTorch builds on process groups."""

from __future__ import annotations

import copy
import tempfile
from pathlib import Path
from typing import Any, Callable

import torch
import torch.distributed as dist
import torch.distributed._functional_collectives as functional
from torch.distributed.device_mesh import init_device_mesh
from torch.nn.parallel import DistributedDataParallel

Tensor = Any  # torch.Tensor; the type checker does not read PyTorch


def _collectives(tensor: Tensor, size: int, group: Any) -> tuple[Tensor, ...]:
    """Each functional collective, of a tensor of 2 * size rows."""
    gathered = torch.empty(size * tensor.shape[0], *tensor.shape[1:])
    out = torch.ops._c10d_functional
    # A group in C++ alone has the one that writes into a tensor: graphs of FSDP call it.
    gathered = out.all_gather_into_tensor_out(tensor, size, group.group_name, out=gathered)
    scattered = torch.empty(tensor.shape[0] // size, *tensor.shape[1:])
    scattered = out.reduce_scatter_tensor_out(tensor, "sum", size, group.group_name, out=scattered)
    return (
        functional.all_reduce(tensor, "sum", group) + 0,
        functional.all_reduce(tensor, "avg", group) * 2,
        functional.all_gather_tensor(tensor, 0, group) + 0,
        functional.reduce_scatter_tensor(tensor, "sum", 0, group) + 0,
        functional.all_to_all_single(tensor, None, None, group) + 0,
        functional.broadcast(tensor, 1, group) + 0,
        *(one + 0 for one in functional.all_reduce_coalesced([tensor, -tensor], "max", group)),
        *(one + 0 for one in functional.all_gather_into_tensor_coalesced([tensor], group)),
        out.wait_tensor(gathered) + 0,
        out.wait_tensor(scattered) + 0,
    )


def _functional(rank: int, size: int, compilers: list[str]) -> None:
    def of(r: int) -> Tensor:
        return torch.arange(4.0 * size).view(2 * size, 2) + 100 * r

    mine, ranks = of(rank), range(size)
    whole, total = torch.cat([of(r) for r in ranks]), sum(of(r) for r in ranks)
    block = slice(2 * rank, 2 * rank + 2)
    wanted = (
        total,
        total / size * 2,
        whole,
        total[block],
        torch.cat([of(r)[block] for r in ranks]),
        of(1),
        of(size - 1),
        -of(0),
        whole,
        whole,
        total[block],
    )
    for compiler in ("", *compilers):
        call: Any = _collectives
        if compiler:
            torch._dynamo.reset()
            call = torch.compile(call, backend=compiler, fullgraph=True)
        for _ in range(2):
            got = call(mine, size, dist.group.WORLD)
            for one, other in zip(got, wanted):
                assert torch.equal(one, other), (compiler, one, other)


def functional_collectives(rank: int, size: int, device: str) -> None:
    _functional(rank, size, ["eager", "aot_eager"])


def inductor(rank: int, size: int, device: str) -> None:
    _functional(rank, size, ["inductor"])


def compiled_messages(rank: int, size: int, device: str) -> None:
    """In one graph, which PyTorch makes where its setting says so; of groups of others too."""
    import torch._dynamo

    if not hasattr(torch._dynamo.config, "enable_p2p_compilation"):
        return
    peer = 1 - rank
    mine = torch.full((3,), float(rank))
    for group in (dist.group.WORLD, dist.new_group(backend="gloo")):

        def batch(tensor: Tensor, group: Any = group) -> Tensor:
            came = torch.empty_like(tensor)
            both = [dist.P2POp(dist.isend, tensor, peer, group)]
            both.append(dist.P2POp(dist.irecv, came, peer, group))
            for work in dist.batch_isend_irecv(both):
                work.wait()
            return came + 1

        def single(tensor: Tensor, group: Any = group) -> Tensor:
            came = torch.empty_like(tensor)
            works = [dist.isend(tensor, peer, group), dist.irecv(came, peer, group)]
            for work in works:
                work.wait()
            return came + 1

        for function in (batch, single):
            torch._dynamo.reset()
            made: Any = torch.compile(function, backend="aot_eager", fullgraph=True)
            with torch._dynamo.config.patch(enable_p2p_compilation=True):
                assert made(mine).tolist() == [peer + 1.0] * 3


def functional_of_other_groups(rank: int, size: int, device: str) -> None:
    """The kernel that Ropewalk gives PyTorch serves groups of others too."""
    gloo = dist.new_group(backend="gloo")
    gathered = torch.empty(2 * size)
    mine = torch.full((2,), float(rank))
    out = torch.ops._c10d_functional
    gathered = out.all_gather_into_tensor_out(mine, size, gloo.group_name, out=gathered)
    assert out.wait_tensor(gathered).view(size, 2).tolist() == [[float(r)] * 2 for r in range(size)]


def compiled_operations(rank: int, size: int, device: str) -> None:
    """Those of torch.distributed in a function that is compiled, which leaves some as they are."""

    def step(tensor: Tensor, peer: int) -> tuple[Tensor, ...]:
        total = tensor.clone()
        dist.all_reduce(total)
        gathered = tensor.new_empty(size * 4)
        dist.all_gather_into_tensor(gathered, tensor)
        scattered = tensor.new_empty(4)
        dist.reduce_scatter_tensor(scattered, gathered)
        root = tensor.clone()
        dist.broadcast(root, 0)
        came = torch.empty_like(tensor)
        works = [dist.isend(tensor, peer), dist.irecv(came, peer)]
        for work in works:
            work.wait()
        dist.barrier()
        return total + 1, gathered + 1, scattered + 1, root + 1, came + 1

    mine = torch.arange(4.0) + rank
    plain = step(mine, 1 - rank)
    made: Any = torch.compile(step, backend="aot_eager")
    for _ in range(3):
        for one, other in zip(made(mine, 1 - rank), plain):
            assert torch.equal(one, other)


def meshes(rank: int, size: int, device: str) -> None:
    """Tensors over a mesh of two by two, whose groups are of two ranks each."""
    from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "model"))
    assert mesh["model"].size() == 2 and mesh.get_local_rank("data") == rank // 2
    whole = torch.arange(32.0).view(8, 4)
    spread = distribute_tensor(whole, mesh, [Shard(0), Shard(1)])
    assert torch.equal(spread.to_local(), whole[4 * (rank // 2) :][:4, 2 * (rank % 2) :][:, :2])
    turned = spread.redistribute(mesh, [Replicate(), Shard(0)])
    assert torch.equal(turned.to_local(), whole[4 * (rank % 2) :][:4])
    assert torch.equal(spread.full_tensor(), whole)
    product = spread @ distribute_tensor(whole.t().contiguous(), mesh, [Replicate(), Shard(0)])
    assert isinstance(product.placements[1], Partial)
    assert torch.equal(product.full_tensor(), whole @ whole.t())


def sharded(rank: int, size: int, device: str) -> None:
    """FSDP2, compiled too, ends where the same steps without shards do; so does a state loaded."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint import state_dict
    from torch.distributed.fsdp import fully_shard

    torch.manual_seed(1)
    plain = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 4))
    inputs = torch.randn(4, 8)
    model = copy.deepcopy(plain)
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    trained: Any = torch.compile(model, backend="aot_eager")
    for each, run in ((plain, plain), (model, trained)):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1)
        for _ in range(3):
            optimizer.zero_grad()
            run(inputs).square().mean().backward()
            optimizer.step()
    for mine, other in zip(model.parameters(), plain.parameters()):
        parameter: Any = mine
        assert torch.allclose(parameter.full_tensor(), other, atol=1e-6)

    folder: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    for how in ("save", "async_save"):
        place = Path(folder[0]) / how
        saved = getattr(dcp, how)(state_dict.get_model_state_dict(model), checkpoint_id=place)
        if how == "async_save":
            saved.result()
        dist.barrier()
        with torch.no_grad():
            kept = [parameter.clone() for parameter in model.parameters()]
            for parameter in model.parameters():
                parameter.zero_()
        loaded = state_dict.get_model_state_dict(model)
        dcp.load(loaded, checkpoint_id=place)
        state_dict.set_model_state_dict(model, loaded)
        for mine, other in zip(model.parameters(), kept):
            assert torch.equal(mine.to_local(), other.to_local()), how


def pipelines(rank: int, size: int, device: str) -> None:
    from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe

    torch.manual_seed(1)
    layers = [torch.nn.Linear(6, 6) for _ in range(size)]
    inputs, targets = torch.randn(8, 6), torch.randn(8, 6)

    def loss(got: Tensor, wanted: Tensor) -> Tensor:
        return (got - wanted).square().mean()

    plain = torch.nn.Sequential(*(copy.deepcopy(layer) for layer in layers))
    loss(plain(inputs), targets).backward()
    for schedule in (ScheduleGPipe, Schedule1F1B):
        layer = copy.deepcopy(layers[rank])
        stage = PipelineStage(layer, rank, size, torch.device("cpu"))
        steps = schedule(stage, n_microbatches=4, loss_fn=loss)
        if rank == 0:
            steps.step(inputs)
        elif rank == size - 1:
            steps.step(target=targets)
        else:
            steps.step()
        wanted: Any = plain[rank]
        assert torch.allclose(layer.weight.grad, wanted.weight.grad, atol=1e-6), schedule


def compiled_training(rank: int, size: int, device: str) -> None:
    """DDP, made for a graph by its own optimizer; and its reductions traced into the graph."""
    torch.manual_seed(0)
    plain = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 8))
    inputs = torch.full((2, 8), float(rank + 1))
    gradients = []
    for optimizer in ("", "ddp_optimizer", "python_reducer_without_compiled_forward"):
        model: Any = DistributedDataParallel(copy.deepcopy(plain))
        torch._dynamo.reset()
        run = model
        if optimizer:
            with torch._dynamo.config.patch(optimize_ddp=optimizer):
                run = torch.compile(model, backend="aot_eager")
                run(inputs).square().sum().backward()
                model.zero_grad()
        run(inputs).square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    for others in gradients[1:]:
        for mine, other in zip(gradients[0], others):
            assert torch.allclose(mine, other)


CASES: dict[str, Callable[[int, int, str], None]] = {
    case.__name__: case
    for case in (
        functional_collectives,
        inductor,
        functional_of_other_groups,
        compiled_operations,
        compiled_messages,
        compiled_training,
        meshes,
        sharded,
        pipelines,
    )
}
