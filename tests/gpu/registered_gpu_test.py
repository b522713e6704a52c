"""Registered buffers: GPUs of other processes read them, and every result is right."""

from __future__ import annotations

from pathlib import Path

import launcher
import pytest
import ropewalk
from gpu_support import need_gpus, num_gpus, on_gpus, torch

need_gpus(2)


@pytest.fixture
def logged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks tell what goes by address, each into a file of its own."""
    for name, value in (("", "INFO"), ("_SUBSYS", "COLL,P2P"), ("_FILE", f"{tmp_path}/%p")):
        monkeypatch.setenv("ROPEWALK_DEBUG" + name, value)
    # The others have no addresses.
    monkeypatch.setenv("ROPEWALK_PROTOCOL", "simple")


def run(part: str, ranks: int = 2) -> None:
    for ended in launcher.run(ranks, "registered_rank.py", part, ours=False):
        assert ended.status == 0, f"rank {ended.rank}:\n{ended.output}"
        assert "all done" in ended.output


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize("direct", ["auto", "on"])
@pytest.mark.parametrize("part", ["operations", "lifetimes", "left_open", "graphs", "refused"])
def test_processes(part: str, direct: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_DIRECT_BUFFERS", direct)
    run(part)


@pytest.mark.usefixtures("logged")
@pytest.mark.skipif(num_gpus() < 3, reason="needs 3 GPUs")
@pytest.mark.parametrize("part", ["operations", "lifetimes", "refused"])
def test_more_processes(part: str) -> None:
    run(part, num_gpus())


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize("ranks", sorted({2, num_gpus()}))
def test_symmetric_ones_by_copy_engines(ranks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_COPY_ENGINES", "on")
    run("symmetric", ranks)


@pytest.mark.usefixtures("logged")
@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True"),
        ("ROPEWALK_DIRECT_BUFFERS", "off"),
        ("ROPEWALK_PEER_ACCESS", "0"),
    ],
)
def test_what_stays_staged(name: str, value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(name, value)
    run("staged")


@pytest.mark.usefixtures("logged")
def test_a_rank_that_does_not_register(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_TIMEOUT", "10s")
    run("unregistered_peer")


def test_all_ranks_of_a_thread_register_in_a_group() -> None:
    with on_gpus(num_gpus()) as comms:
        tensors = [torch.full((1 << 22,), float(i), device=f"cuda:{i}") for i in range(num_gpus())]
        with ropewalk.group():
            made = [comm.register(tensor) for comm, tensor in zip(comms, tensors)]
            made += [comm.register(tensor[5:]) for comm, tensor in zip(comms, tensors)]
        assert not any(one.closed for one in made)
        with ropewalk.group():
            for comm, tensor in zip(comms, tensors):
                comm.broadcast(tensor, 1)
        for i, tensor in enumerate(tensors):
            torch.cuda.synchronize(i)
            assert (tensor == 1).all()
        with pytest.raises(ropewalk.ArgumentError, match="rank 1"), ropewalk.group():
            for comm, tensor in zip(comms, tensors):
                comm.register(tensor[:0] if comm.rank == 1 else tensor)
        for one in made:
            one.close()
