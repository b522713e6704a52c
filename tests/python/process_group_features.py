"""Cases of process_group_rank.py on the CPU: what PyTorch's programs use besides operations."""

from __future__ import annotations

import gc
import shutil
import tempfile
import threading
import time
from pathlib import Path
from typing import Any, Callable

import pytest
import ropewalk
import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.distributed.algorithms.join import Join
from torch.nn.parallel import DistributedDataParallel

MACHINES = Path(__file__).resolve().parent.parent / "topologies"


def callbacks_that_wait(rank: int, size: int, device: str) -> None:
    def again(future: torch.futures.Future[Any]) -> Any:
        work = dist.all_reduce(future.value()[0], async_op=True)
        return work.get_future().wait()

    for depth in range(1, 6):
        future = dist.all_reduce(torch.ones(2), async_op=True).get_future()
        for _ in range(depth):
            future = future.then(again)
        assert future.wait()[0].tolist() == [float(size ** (depth + 1))] * 2
    # A callback that waits for a later operation's callback. Where the operation is done already,
    # this thread runs it, which must go on to that later one.
    passed = threading.Event()
    here = threading.current_thread()

    def wait_elsewhere(_future: torch.futures.Future[Any]) -> None:
        if threading.current_thread() is not here:
            passed.wait()

    first = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(wait_elsewhere)
    second = dist.all_reduce(torch.ones(1), async_op=True).get_future().then(lambda _: passed.set())
    first.wait()
    second.wait()
    threads = {thread.name for thread in threading.enumerate() if "futures" in thread.name}
    for _ in range(500):
        dist.all_reduce(torch.ones(1), async_op=True).get_future().wait()
    now = {thread.name for thread in threading.enumerate() if "futures" in thread.name}
    assert len(now) <= len(threads) + 2, (threads, now)


def futures_in_order(rank: int, size: int, device: str) -> None:
    ended: list[int] = []
    futures = []
    for number in range(200):
        future = dist.all_reduce(torch.ones(1), async_op=True).get_future()
        futures.append(future.then(lambda _, number=number: ended.append(number)))
    torch.futures.wait_all(futures)
    # Callbacks of those that were done when they were asked for run at once, before earlier ones.
    late = [number for number, after in zip(ended, ended[1:]) if after < number]
    assert sorted(ended) == list(range(200)) and len(late) < 100, ended


def power_sgd(rank: int, size: int, device: str) -> None:
    """Its hook waits for operations in callbacks of others."""
    torch.manual_seed(rank)
    model = DistributedDataParallel(torch.nn.Linear(64, 64))
    state = powerSGD_hook.PowerSGDState(
        None, matrix_approximation_rank=2, start_powerSGD_iter=2, min_compression_rate=0.5
    )
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    for _ in range(5):
        model(torch.randn(4, 64)).square().mean().backward()
    gradient = model.module.weight.grad.clone()
    dist.broadcast(gradient, 0)
    assert torch.equal(gradient, model.module.weight.grad)


def uneven_inputs(rank: int, size: int, device: str) -> None:
    """Join hands operations to C++ whose Python object nobody else holds."""
    model = DistributedDataParallel(torch.nn.Linear(4, 4))
    with Join([model]):
        for _ in range(2 + rank):
            model.zero_grad()
            model(torch.ones(2, 4)).sum().backward()
            gc.collect()
    # A gradient of 2; a rank without further inputs adds nothing to the average.
    assert model.module.weight.grad.tolist() == [[2.0 / size if rank else 2.0] * 4] * 4


def held_by_cpp_alone(rank: int, size: int, device: str) -> None:
    for wait_first in (False, True):
        value = torch.ones(1)
        work = dist.all_reduce(value, async_op=True)
        if wait_first:
            work.wait()
        boxed = work.boxed()
        del work
        gc.collect()
        again = type(boxed) and torch.distributed.distributed_c10d.Work.unbox(boxed)
        again.wait()
        assert value.item() == size
        del boxed, again
    from ropewalk import torch_work

    dist.all_reduce(torch.ones(1))
    torch_work._let_go()
    assert not torch_work._held_by_cpp


def many_tags(rank: int, size: int, device: str) -> None:
    """They cost neither threads nor open files; and the last ones may be received first."""

    def cost() -> int:
        return len(list(Path("/proc/self/fd").iterdir())) + len(
            list(Path("/proc/self/task").iterdir())
        )

    tags = 2000
    value = torch.zeros(1)
    if rank == 0:
        dist.send(value, 1, tag=0)
        dist.recv(value, 1, tag=0)
    else:
        dist.recv(value, 0, tag=0)
        dist.send(value, 0, tag=0)
    before = cost()
    if rank == 0:
        works = [dist.isend(torch.full((2,), float(tag)), 1, tag=tag) for tag in range(1, tags)]
        for work in works:
            work.wait()
    else:
        for tag in reversed(range(1, tags)):
            got = torch.zeros(2)
            dist.recv(got, 0, tag=tag)
            assert got.tolist() == [float(tag)] * 2
    dist.barrier()
    assert cost() <= before + 2, (before, cost())


def messages_of_tags(rank: int, size: int, device: str) -> None:
    long = 3 << 20  # longer than what is under way without a receiver
    if rank == 0:
        works = [
            dist.isend(torch.full((long,), 1.0), 1, tag=1),
            dist.isend(torch.full((3,), 2.0), 1, tag=2),
            dist.isend(torch.full((3,), 3.0), 1, tag=2),
            dist.isend(torch.empty(0), 1, tag=3),
            dist.isend(torch.full((2, 3), 4.0).t(), 1, tag=4),
            dist.isend(torch.ones(5), 1, tag=5),
        ]
        for work in works:
            work.wait()
    elif rank == 1:
        # The long message must not delay the others.
        first, second = torch.zeros(3), torch.zeros(3)
        works = [dist.irecv(first, 0, tag=2), dist.irecv(second, 0, tag=2)]
        for work in works:
            work.wait()
        assert first.tolist() == [2.0] * 3 and second.tolist() == [3.0] * 3
        dist.recv(torch.empty(0), 0, tag=3)
        got = torch.zeros(long)
        dist.recv(got, 0, tag=1)
        assert got.min() == got.max() == 1.0
        turned = torch.zeros(6, 4)[::2, ::2]
        dist.recv(turned, 0, tag=4)
        assert turned.tolist() == [[4.0, 4.0]] * 3
        with pytest.raises(ropewalk.UsageError, match="recv of 8 bytes: rank 0 sent 20"):
            dist.recv(torch.zeros(2), 0, tag=5)


def from_any_source(rank: int, size: int, device: str) -> None:
    if rank == 0:
        got = torch.zeros(1)
        sources = [dist.recv(got) for _ in range(2 * (size - 1))]
        assert sorted(sources) == sorted(2 * list(range(1, size)))
    else:
        for _ in range(2):
            dist.send(torch.full((1,), float(rank)), 0)
    dist.barrier()
    if rank == 0:  # what nobody takes from any source is there for others
        for source in range(1, size):
            dist.recv(got, source, tag=7)
            assert got.item() == source
    else:
        dist.send(torch.full((1,), float(rank)), 0, tag=7)


def bits(rank: int, size: int, device: str) -> None:
    ops = dist.ReduceOp
    for dtype in (torch.uint8, torch.int32, torch.int64):
        mine = torch.tensor([1 << rank, 255, rank, 6, 7], dtype=dtype)
        every = [torch.tensor([1 << r, 255, r, 6, 7], dtype=dtype) for r in range(size)]
        for op, function in (
            (ops.BAND, torch.bitwise_and),
            (ops.BOR, torch.bitwise_or),
            (ops.BXOR, torch.bitwise_xor),
        ):
            wanted = every[0]
            for other in every[1:]:
                wanted = function(wanted, other)
            got = mine.clone()
            dist.all_reduce(got, op)
            assert torch.equal(got, wanted), (op, got, wanted)
            got = mine.clone()
            dist.reduce(got, 1, op)
            assert torch.equal(got, wanted if rank == 1 else mine), op
            blocks = [mine + 0 for _ in range(size)]
            got = torch.zeros_like(mine)
            dist.reduce_scatter(got, blocks, op)
            assert torch.equal(got, wanted), op
    with pytest.raises(ropewalk.ArgumentError, match="bits of integers"):
        dist.all_reduce(torch.ones(2), ops.BAND)


def sparse(rank: int, size: int, device: str) -> None:
    """Ranks have different elements, and one has none."""
    places = torch.tensor([[0, rank], [1, rank]])[:, : 2 if rank else 0]
    values = torch.full((places.shape[1], 3), float(rank))
    tensor = torch.sparse_coo_tensor(places, values, (size + 1, size + 1, 3))
    wanted = torch.zeros(size + 1, size + 1, 3)
    for r in range(1, size):
        wanted[0, 1] += r
        wanted[r, r] += r
    dist.all_reduce(tensor)
    assert torch.equal(tensor.to_dense(), wanted)
    with pytest.raises(ropewalk.ArgumentError, match="only SUM"):
        dist.all_reduce(tensor, dist.ReduceOp.MAX)


def backends(rank: int, size: int, device: str) -> None:
    """What PyTorch asks a group's backend."""
    group = dist.group.WORLD
    assert group._get_backend(torch.device("cpu")).name() == "ropewalk"
    assert group._device_types[0] == torch.device("cpu")
    with pytest.raises(ropewalk.UsageError, match="no backend for meta"):
        group._get_backend(torch.device("meta"))
    outputs = [[torch.zeros(2), torch.zeros(3)] for _ in range(size)]
    dist.all_gather_coalesced(outputs, [torch.full((2,), float(rank)), torch.full((3,), 5.0)])
    for r, (first, second) in enumerate(outputs):
        assert first.tolist() == [float(r)] * 2 and second.tolist() == [5.0] * 3
    with dist._coalescing_manager(async_ops=True) as manager:
        tensors = [torch.ones(2), torch.ones(3)]
        for tensor in tensors:
            dist.all_reduce(tensor)
    manager.wait()
    assert all(tensor[0].item() == size for tensor in tensors)


def plans_of_a_machine(rank: int, size: int, device: str) -> None:
    """With the setting TOPOLOGY plans for that machine run unasked, with right results."""
    folder: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder, src=0)
    ropewalk.settings.set("TUNING_FILE", str(Path(folder[0]) / "tuning.json"))
    machine = str(MACHINES / "dgx1v.json")
    ropewalk.settings.set("TOPOLOGY", machine)
    group = dist.new_group()
    comm = group._get_backend(torch.device("cpu"))._on_host
    assert comm.topology.name == ropewalk.topology.load(machine).name

    count = 250_007  # prime, so that shares are uneven
    whole = torch.arange(count * size, dtype=torch.int64)
    root = size - 1
    total = sum(range(1, size + 1))

    def all_reduce() -> None:
        found = whole * (rank + 1)
        dist.all_reduce(found, group=group)
        assert torch.equal(found, whole * total)

    def all_gather() -> None:
        found = torch.zeros_like(whole)
        dist.all_gather_into_tensor(found, whole[rank * count :][:count] * 3, group=group)
        assert torch.equal(found, whole * 3)

    def reduce_scatter() -> None:
        found = torch.zeros(count, dtype=torch.int64)
        dist.reduce_scatter_tensor(found, whole * (rank + 1), group=group)
        assert torch.equal(found, whole[rank * count :][:count] * total)

    def broadcast() -> None:
        found = whole * 5 if rank == root else torch.zeros_like(whole)
        dist.broadcast(found, root, group=group)
        assert torch.equal(found, whole * 5)

    for operation in (all_reduce, all_gather, reduce_scatter, broadcast):
        until = time.monotonic() + 25  # long plans are made in the background, beside calls
        ran = ""
        while not ran.startswith("plan-") and time.monotonic() < until:
            operation()
            record = comm.call_records()["records"][-1]
            assert record["operation"] == operation.__name__
            ran = record["algorithm"]  # of all ranks, which therefore leave the loop together
        assert ran.startswith("plan-"), (operation.__name__, ran)
        told = comm.explain(operation.__name__, 8 * count * size, root * (operation is broadcast))
        kinds = {each["algorithm"]: each["kind"] for each in told["candidates"]}
        assert kinds[told["chosen"]] == "plan", told["chosen"]
    dist.barrier()
    if rank == 0:
        shutil.rmtree(folder[0])


def saved_asynchronously(rank: int, size: int, device: str) -> None:
    import torch.distributed.checkpoint as dcp

    folder: list[Any] = [tempfile.mkdtemp() if rank == 0 else None]
    dist.broadcast_object_list(folder)
    state = {"weight": torch.full((4,), float(rank)), "mine": rank}
    dcp.async_save(state, checkpoint_id=folder[0]).result()
    dist.barrier()
    assert list(Path(folder[0]).iterdir())


def compiled(rank: int, size: int, device: str) -> None:
    """Dynamo traces the module with its group; the compiler that it needs is not PyTorch's."""
    torch.manual_seed(0)
    plain = DistributedDataParallel(torch.nn.Linear(8, 8))
    made: Any = torch.compile(plain, backend="aot_eager")
    for _ in range(3):
        plain.zero_grad()
        made(torch.full((2, 8), float(rank + 1))).sum().backward()
    gradient = plain.module.weight.grad
    assert torch.allclose(gradient, torch.full_like(gradient, 2 * (size + 1) / 2))


def profiled(rank: int, size: int, device: str) -> None:
    dist.all_reduce(torch.ones(1))  # the thread is there
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        dist.all_reduce(torch.ones(1 << 16))
        work = dist.broadcast(torch.ones(4), 0, async_op=True)
        work.wait()
        if rank == 0:
            dist.send(torch.ones(1), 1)
        elif rank == 1:
            dist.recv(torch.ones(1), 0)
    events = {event.name: event for event in profile.events() if "ropewalk:" in event.name}
    wanted = {"ropewalk:all_reduce", "ropewalk:broadcast"}
    wanted |= {0: {"ropewalk:send"}, 1: {"ropewalk:recv"}}.get(rank, set())
    assert set(events) == wanted, set(events)
    assert all(event.is_async and event.cpu_time > 0 for event in events.values())


def profiled_as_gloos(rank: int, size: int, device: str) -> None:
    """Events have the shapes that those of Gloo have, where both do the same."""
    gloo = dist.new_group(backend="gloo")
    shapes: dict[str, list[tuple[str, Any]]] = {}
    for backend, group in (("ropewalk", dist.group.WORLD), ("gloo", gloo)):
        activities = [torch.profiler.ProfilerActivity.CPU]
        with torch.profiler.profile(activities=activities, record_shapes=True) as profile:
            _every_operation(rank, size, group)
        names = [event for event in profile.events() if event.name.startswith(f"{backend}:")]
        shapes[backend] = [(event.name.split(":")[1], event.input_shapes) for event in names]
    # Gloo has no operation that scatters sums: it is made of all_reduce there.
    ours = [event for event in shapes["ropewalk"] if event[0] != "reduce_scatter"]
    scattered = [event for event in shapes["ropewalk"] if event[0] == "reduce_scatter"]
    assert sorted(ours) == sorted(shapes["gloo"]), (ours, shapes["gloo"])
    assert sorted(scattered) == [("reduce_scatter", [[2, 3]] * size)], scattered


def _every_operation(rank: int, size: int, group: Any) -> None:
    def ones(*shape: int) -> Any:
        return torch.ones(shape)

    dist.all_reduce(ones(4, 3), group=group)
    work = dist.broadcast(ones(5), 0, group=group, async_op=True)
    work.wait()
    dist.all_gather([ones(2, 2) for _ in range(size)], ones(2, 2), group=group)
    dist.all_gather_into_tensor(ones(4 * size), ones(4), group=group)
    dist.all_to_all_single(ones(size, 4), ones(size, 4), group=group)
    dist.reduce(ones(7), 0, group=group)
    dist.gather(ones(3), [ones(3) for _ in range(size)] if rank == 0 else None, 0, group=group)
    dist.scatter(ones(3), [ones(3) for _ in range(size)] if rank == 0 else None, 0, group=group)
    dist.barrier(group=group)
    if rank == 0:
        dist.send(ones(6, 1), 1, group=group)
        dist.recv(ones(6, 2), 1, group=group)
    elif rank == 1:
        dist.recv(ones(6, 1), group=group)
        dist.send(ones(6, 2), 0, group=group)
    if dist.get_backend(group) == "ropewalk":
        dist.reduce_scatter(ones(2, 3), [ones(2, 3) for _ in range(size)], group=group)


def again_and_again(rank: int, size: int, device: str) -> None:
    """Groups that come and go over one store."""
    store = dist.distributed_c10d._get_default_store()
    for number in range(5):
        dist.destroy_process_group()
        dist.init_process_group("ropewalk", store=store, rank=rank, world_size=size)
        value = torch.full((1,), float(number))
        dist.all_reduce(value)
        assert value.item() == number * size
        other = dist.new_group()
        if rank == 0:
            dist.send(value, 1, group=other)
        elif rank == 1:
            dist.recv(value, 0, group=other)


CASES: dict[str, Callable[[int, int, str], None]] = {
    case.__name__: case
    for case in (
        callbacks_that_wait,
        futures_in_order,
        power_sgd,
        uneven_inputs,
        held_by_cpp_alone,
        many_tags,
        messages_of_tags,
        from_any_source,
        bits,
        sparse,
        backends,
        plans_of_a_machine,
        saved_asynchronously,
        compiled,
        profiled,
        profiled_as_gloos,
        again_and_again,
    )
}
