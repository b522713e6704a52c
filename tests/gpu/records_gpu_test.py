"""Records of operations on GPUs: when they began and ended there, what went over which link, and
who is named at a deadline."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ropewalk
from conftest import run_ranks
from gpu_support import need_ranks, num_ranks, on_gpus, own_stream, torch
from ropewalk import settings
from ropewalk.communicator import Communicator

need_ranks()

COUNT = 1 << 18


@pytest.fixture(autouse=True)
def _with_times() -> Iterator[None]:
    """Not by the environment, which is read once: tests of other files may have been first."""
    settings.set("TRACE_GPU", 1)
    yield
    settings.set("TRACE_GPU", 0)


def records_of(comm: Communicator) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = comm.call_records()["records"]
    return found


def test_operations_have_the_times_of_the_gpu() -> None:
    def body(comm: Communicator) -> None:
        with own_stream(comm) as stream:
            tensor = torch.ones(COUNT, device=f"cuda:{comm.device}")
            begin = time.time_ns()
            for _ in range(20):
                comm.all_reduce(tensor)
            comm.sendrecv(tensor, torch.empty_like(tensor))
            stream.synchronize()
            end = time.time_ns()
        records = records_of(comm)
        assert len(records) == 21
        for record in records:
            assert record["timed"], record
            assert record["state"] == "completed", record
            slack = 100_000  # of clocks that are read one after the other
            assert begin - slack <= record["scheduled_ns"] <= record["started_ns"], record
            assert record["started_ns"] < record["completed_ns"] <= end + slack, record
        for before, after in zip(records[:19], records[1:20]):
            assert after["started_ns"] >= before["started_ns"]
        sent = sum(link["bytes"] for link in comm.call_records()["links"])
        assert sent >= 20 * COUNT * 4
        assert sum(link["bytes"] for record in records for link in record["links"]) == sent

    with on_gpus(num_ranks()) as comms:
        run_ranks(comms, body)
        run_ranks(comms, Communicator.finalize)


def test_an_operation_that_waits_has_begun_and_not_ended() -> None:
    seen = threading.Event()

    def body(comm: Communicator) -> None:
        with own_stream(comm) as stream:
            tensor = torch.ones(COUNT, device=f"cuda:{comm.device}")
            comm.all_reduce(tensor)
            stream.synchronize()
            if comm.rank == 0:
                comm.all_reduce(tensor)
                deadline = time.monotonic() + 60
                while records_of(comm)[-1]["state"] != "started":
                    assert time.monotonic() < deadline
                assert records_of(comm)[-1]["completed_ns"] is None
                seen.set()
            else:
                assert seen.wait(60)
                comm.all_reduce(tensor)
            stream.synchronize()

    with on_gpus(2) as comms:
        run_ranks(comms, body)
        run_ranks(comms, Communicator.finalize)


def test_the_rank_that_is_missing_is_named() -> None:
    def body(comm: Communicator) -> None:
        with own_stream(comm) as stream:
            tensor = torch.ones(COUNT, device=f"cuda:{comm.device}")
            comm.all_reduce(tensor)
            stream.synchronize()
            if comm.rank != 0:
                time.sleep(5)
                return
            comm.set_timeout(1.0)
            comm.all_reduce(tensor)
            stream.synchronize()
            with pytest.raises(ropewalk.TimeoutError) as error:
                comm.check()
            text = str(error.value)
            assert "all_reduce: a kernel of rank 0 waited longer" in text
            assert "rank 1 has not entered it, collective 2" in text

    with on_gpus(2) as comms:
        run_ranks(comms, body)
        for comm in comms:
            comm.abort()
