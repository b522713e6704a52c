"""Bad input on GPUs names what is wrong; a killed rank and an abort end kernels that spin."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import launcher
import pytest
import ropewalk
from conftest import run_ranks
from gpu_support import DEADLINE_SECONDS, need_ranks, num_gpus, on_gpus, own_stream, torch
from ropewalk.communicator import Communicator

need_ranks()

PROGRAM = Path(__file__).parent / "fault_rank.py"


@pytest.mark.skipif(num_gpus() < 2, reason="needs 2 GPUs")
def test_bad_arrays_change_nothing() -> None:
    with on_gpus(2) as comms:

        def body(comm: Communicator) -> None:
            here = torch.ones(8, device=f"cuda:{comm.rank}")
            there = torch.ones(8, device=f"cuda:{1 - comm.rank}")
            with pytest.raises(ropewalk.ArgumentError, match="works on GPU"):
                comm.all_reduce(there)
            with pytest.raises(ropewalk.ArgumentError, match="in host memory"):
                comm.all_reduce(here, out=torch.ones(8))
            with pytest.raises(ropewalk.ArgumentError, match="in host memory"):
                comm.all_reduce(torch.ones(8), stream=torch.cuda.current_stream())
            with pytest.raises(ropewalk.ArgumentError, match="not contiguous"):
                comm.all_reduce(torch.ones(8, 8, device=here.device)[:, 0])
            with pytest.raises(ropewalk.ArgumentError, match="out"):
                comm.all_gather(here, out=torch.ones(9, device=here.device))
            comm.all_reduce(here)
            assert (here == 2).all()

        run_ranks(comms, body)


class Claims:
    """Says that host memory, or memory that was given back, is on this GPU."""

    def __init__(self, address: int) -> None:
        self.__cuda_array_interface__ = {
            "shape": (8,), "typestr": "<f4", "data": (address, False), "version": 3, "stream": 1,
        }  # fmt: skip


def test_host_and_freed_pointers_are_found() -> None:
    with on_gpus(2) as comms:
        host = torch.ones(8)
        for comm in comms:
            with pytest.raises(ropewalk.ArgumentError, match="no GPU can reach"):
                comm.all_reduce(Claims(host.data_ptr()))
        freed = torch.ones(64 << 20, device="cuda:0")
        address = freed.data_ptr()
        del freed
        torch.cuda.empty_cache()
        with pytest.raises(ropewalk.ArgumentError, match="no GPU can reach"):
            comms[0].all_reduce(Claims(address))
        # What one rank was refused is no call: the ranks are still in step.
        tensors = [torch.ones(8, device=f"cuda:{comm.device}") for comm in comms]
        torch.cuda.synchronize()
        for comm, tensor in zip(comms, tensors):
            comm.all_reduce(tensor, stream=torch.cuda.Stream(comm.device))
        for comm, tensor in zip(comms, tensors):
            torch.cuda.synchronize(comm.device)
            comm.check()
            assert (tensor == 2).all()


def test_what_a_refused_attach_took_is_given_back() -> None:
    """Where device memory is out, attaching names it; nothing of it stays behind."""
    torch.cuda.init()
    torch.cuda.synchronize(0)
    free, _ = torch.cuda.mem_get_info(0)
    hog = torch.empty(free - (32 << 20), dtype=torch.uint8, device="cuda:0")
    before = 0
    try:
        for i in range(8):
            with pytest.raises(ropewalk.CudaError, match="out of memory"), on_gpus(2):
                pass
            left, _ = torch.cuda.mem_get_info(0)
            if i == 0:
                before = left
            assert left >= before - (2 << 20), i
    finally:
        del hog  # else a failure's traceback keeps it, and all later tests fail
        torch.cuda.empty_cache()
    with on_gpus(2) as comms:
        tensors = [torch.ones(8, device=f"cuda:{comm.device}") for comm in comms]
        torch.cuda.synchronize()
        for comm, tensor in zip(comms, tensors):
            comm.all_reduce(tensor, stream=torch.cuda.Stream(comm.device))
        torch.cuda.synchronize()
        assert all((tensor == 2).all() for tensor in tensors)


def test_attaching_what_is_not_there() -> None:
    with pytest.raises(ropewalk.Error):
        ropewalk.init(device="cuda:99")
    with pytest.raises(ropewalk.ArgumentError, match="neither"):
        ropewalk.init(device="tpu")


def test_two_ranks_that_call_differently() -> None:
    with on_gpus(2) as comms:
        started = time.monotonic()
        for comm in comms:
            with own_stream(comm):
                comm.all_reduce(torch.ones(70000 + comm.rank, device=f"cuda:{comm.device}"))
        with pytest.raises(ropewalk.Error, match="count"):
            while time.monotonic() - started < 30:
                for comm in comms:
                    comm.check()
                time.sleep(0.01)


def test_abort_ends_a_kernel_that_waits() -> None:
    with on_gpus(2) as comms:
        tensor = torch.ones(1 << 20, device="cuda:0")
        stream = torch.cuda.current_stream(0)
        comms[0].all_reduce(tensor)  # the other rank does not come
        assert not stream.query()
        ended = threading.Event()

        def wait() -> None:
            stream.synchronize()
            ended.set()

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        comms[0].abort()
        assert ended.wait(30)
        thread.join()


@pytest.mark.parametrize("how", ["stream", "handle"])
def test_a_killed_rank_is_seen_while_a_kernel_spins(how: str) -> None:
    """Within 1 s of the kill; the setting PEER_LOSS_TIME."""
    made = ropewalk.unique_id().hex()
    processes = [
        subprocess.Popen(
            [sys.executable, str(PROGRAM), how, made, str(rank), "2"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(2)
    ]
    took, words = launcher.lost_after_kill(processes, DEADLINE_SECONDS)
    assert "rank 1" in words
    print(f"seen {took:.3f} s after the kill")
    assert processes[0].returncode == 0
