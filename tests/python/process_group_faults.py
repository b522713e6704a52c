"""Cases of process_group_rank.py on the CPU in which something goes wrong."""

from __future__ import annotations

import os
import signal
import time
import warnings
from datetime import timedelta
from typing import Any, Callable

import pytest
import ropewalk
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

SHORT = timedelta(seconds=1)
# Well under PyTorch's and our own timeouts, which are minutes; a busy machine takes its time.
SOON_SECONDS = 30.0


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _lost_in_training(model: torch.nn.Module, inputs: Any, rank: int) -> None:
    trained = DistributedDataParallel(model)
    trained(inputs).sum().backward()
    if rank == 1:
        die()
    # Not an operation of its own but what DDP does in C++, where the error must be one too.
    with pytest.raises(RuntimeError, match="rank 1"):
        for _ in range(3):
            trained(inputs).sum().backward()


def lost_in_backward(rank: int, size: int, device: str) -> None:
    _lost_in_training(torch.nn.Linear(8, 8), torch.ones(2, 8), rank)


def lost_in_sparse_backward(rank: int, size: int, device: str) -> None:
    """Gradients that are sparse are reduced by operations of their own."""
    _lost_in_training(torch.nn.Embedding(16, 4, sparse=True), torch.arange(4), rank)


def lost_in_hook(rank: int, size: int, device: str) -> None:
    """A hook's futures, made of the futures of operations."""
    model = DistributedDataParallel(torch.nn.Linear(8, 8))

    def hook(_state, bucket):  # type: ignore[no-untyped-def]  # DDP reads annotations
        work = dist.all_reduce(bucket.buffer(), async_op=True)
        return work.get_future().then(lambda future: future.value()[0].div_(size))

    model.register_comm_hook(None, hook)
    model(torch.ones(2, 8)).sum().backward()
    if rank == 1:
        die()
    with pytest.raises(RuntimeError, match="rank 1"):
        for _ in range(3):
            model(torch.ones(2, 8)).sum().backward()


def lost_by_future(rank: int, size: int, device: str) -> None:
    dist.all_reduce(torch.ones(1))
    if rank == 1:
        die()
    work = dist.all_reduce(torch.ones(1), async_op=True)
    with pytest.raises(RuntimeError, match="rank 1"):
        work.get_future().wait()
    with pytest.raises(RuntimeError, match="rank 1"):
        work.get_future().then(lambda future: future.value()).wait()
    with pytest.raises(ropewalk.PeerLostError, match="rank 1"):
        work.wait()
    assert work.is_completed() and not work.is_success()
    assert isinstance(work.exception(), ropewalk.PeerLostError)


def lost_in_group(rank: int, size: int, device: str) -> None:
    """Errors of a group name ranks of the whole job."""
    group = dist.new_group([1, 2])
    if rank == 0:
        return
    dist.all_reduce(torch.ones(1), group=group)
    if rank == 2:
        dist.recv(torch.ones(1), 1, group=group)
        die()
    dist.send(torch.ones(1), 2, group=group)
    with pytest.raises(ropewalk.PeerLostError, match="rank 2 was lost"):
        dist.all_reduce(torch.ones(1), group=group)
    with pytest.raises(ropewalk.PeerLostError, match="rank 2 was lost"):
        dist.recv(torch.ones(1), 2, group=group)


def lost_before_first_message(rank: int, size: int, device: str) -> None:
    """Nobody joins the connection, which the group knows."""
    if rank == 1:
        die()
    began = time.monotonic()
    with pytest.raises(ropewalk.PeerLostError, match="rank 1 was lost"):
        dist.recv(torch.ones(1), 1)
    with pytest.raises(ropewalk.PeerLostError, match="rank 1 was lost"):
        dist.send(torch.ones(1), 1)
    with pytest.raises(ropewalk.PeerLostError, match="rank 1 was lost"):
        dist.recv(torch.ones(1))
    assert time.monotonic() - began < SOON_SECONDS


def timeouts(rank: int, size: int, device: str) -> None:
    short = dist.new_group(timeout=SHORT)
    whole = dist.new_group()
    dist.barrier(short)
    if rank == 1:
        dist.recv(torch.ones(1), 0, group=whole)
        dist.all_reduce(torch.ones(1), group=whole)
        return
    began = time.monotonic()
    for group, call in (
        (short, lambda: dist.recv(torch.ones(1), 1, group=short)),
        (short, lambda: dist.all_reduce(torch.ones(1), group=short)),
    ):
        with pytest.raises(ropewalk.TimeoutError, match="timeout"):
            call()  # type: ignore[no-untyped-call]
        assert time.monotonic() - began >= SHORT.total_seconds(), group
    # A wait has a timeout of its own, after which the operation goes on.
    value = torch.ones(1)
    work = dist.all_reduce(value, group=whole, async_op=True)
    with pytest.raises(ropewalk.TimeoutError, match="all_reduce: not done after the timeout"):
        work.wait(timedelta(milliseconds=50))
    dist.send(torch.ones(1), 1, group=whole)
    work.wait(timedelta(seconds=SOON_SECONDS))
    assert value.item() == size
    assert time.monotonic() - began < SOON_SECONDS


def timeouts_set_later(rank: int, size: int, device: str) -> None:
    """Longer and shorter; also for existing connections, and only for operations that start
    later."""
    from torch.distributed.distributed_c10d import _set_pg_timeout

    with warnings.catch_warnings():
        warnings.simplefilter("error")  # "only supported for either nccl or gloo"
        for function in (lambda timeout, group: group.set_timeout(timeout), _set_pg_timeout):
            _set_later(function, rank)


def _set_later(set_timeout: Callable[[timedelta, Any], None], rank: int) -> None:
    group = dist.new_group()
    whole = torch.ones(1 << 22)  # longer than what is under way without a receiver
    if rank == 1:
        dist.recv(whole, 0, group=group)
        dist.send(torch.ones(1), 0, group=group)
        set_timeout(SHORT, group)
        dist.recv(torch.ones(1), 0)  # comes late
        dist.send(torch.ones(1), 0, group=group, tag=1)
        return
    dist.send(whole, 1, group=group)
    early = dist.irecv(torch.ones(1), 1, group=group, tag=1)
    set_timeout(SHORT, group)
    for call in (
        lambda: dist.recv(torch.ones(1), 1, group=group, tag=2),
        lambda: dist.send(whole, 1, group=group),
        lambda: dist.all_reduce(torch.ones(1), group=group),
    ):
        began = time.monotonic()
        with pytest.raises(ropewalk.TimeoutError, match=r"timeout|nothing moved for 1 s"):
            call()  # type: ignore[no-untyped-call]
        assert SHORT.total_seconds() <= time.monotonic() - began < SOON_SECONDS
    assert not early.is_completed()
    dist.send(torch.ones(1), 1)
    early.wait()


def the_settings_timeout(rank: int, size: int, device: str) -> None:
    """The shorter one counts, which may be ours."""
    ropewalk.settings.set("TIMEOUT", "1s")
    group = dist.new_group(timeout=timedelta(hours=1))
    if rank == 0:
        with pytest.raises(ropewalk.TimeoutError, match="the timeout is 1 s"):
            dist.all_reduce(torch.ones(1), group=group)
        with pytest.raises(ropewalk.TimeoutError, match="rank 1"):
            dist.recv(torch.ones(1), 1, group=group)
        dist.send(torch.ones(1), 1)
    else:
        for _ in range(30):  # each wait is shorter than the setting, which rules it too
            try:
                dist.recv(torch.ones(1), 0)
                return
            except ropewalk.TimeoutError:
                continue


def joining_late(rank: int, size: int, device: str) -> None:
    """A rank that does not come to a new group is named."""
    if rank == 0:
        with pytest.raises(ropewalk.TimeoutError, match="rank 1 did not come"):
            dist.new_group(timeout=SHORT)
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)


def monitored_barriers(rank: int, size: int, device: str) -> None:
    dist.monitored_barrier(timeout=timedelta(seconds=SOON_SECONDS))
    if rank == 0:
        with pytest.raises(RuntimeError, match=r"Rank 1 failed to pass monitoredBarrier in 1 s"):
            dist.monitored_barrier(timeout=SHORT, wait_all_ranks=True)
        dist.send(torch.ones(1), 1)
    else:
        dist.recv(torch.ones(1), 0)


CASES: dict[str, Callable[[int, int, str], None]] = {
    case.__name__: case
    for case in (
        lost_in_backward,
        lost_in_sparse_backward,
        lost_in_hook,
        lost_by_future,
        lost_in_group,
        lost_before_first_message,
        timeouts,
        timeouts_set_later,
        the_settings_timeout,
        joining_late,
        monitored_barriers,
    )
}
