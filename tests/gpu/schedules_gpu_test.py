"""Schedules that a program gives to GPUs, one after another and in graphs; what `explain` tells."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import ropewalk
from conftest import run_ranks
from gpu_support import need_ranks, num_ranks, on_gpus, own_stream, torch
from ropewalk.communicator import Communicator

need_ranks()

COUNT = 70001


@pytest.fixture(scope="module")
def comms() -> Iterator[list[Communicator]]:
    with on_gpus(num_ranks()) as made:
        yield made
        run_ranks(made, Communicator.finalize)


def compiled(algorithm: str, channels: int) -> str:
    return ropewalk.schedule.make("all_reduce", algorithm, num_ranks(), channels=channels)


def test_many_schedules_take_no_more_memory(comms: list[Communicator]) -> None:
    """The device memory of schedules that are not used any more serves the next ones."""
    schedules = [compiled("ring", channels) for channels in (1, 2, 3)]

    def body(comm: Communicator) -> None:
        with own_stream(comm) as stream:
            tensor = torch.ones(COUNT, device=f"cuda:{comm.device}")
            used = []
            for i in range(60):
                comm.use_schedule(schedules[i % 3])
                comm.all_reduce(tensor.fill_(1))
                assert (tensor == comm.size).all()
                stream.synchronize()
                used.append(comm.device_memory)
            comm.use_schedule(None)
            assert max(used[10:]) == max(used[:10])

    run_ranks(comms, body)


def test_a_graph_keeps_the_schedule_that_it_captured(comms: list[Communicator]) -> None:
    def body(comm: Communicator) -> None:
        with own_stream(comm) as stream:
            tensor = torch.zeros(COUNT, device=f"cuda:{comm.device}")
            out = torch.zeros_like(tensor)
            comm.use_schedule(compiled("ring", 2))
            comm.all_reduce(tensor, out=out)
            stream.synchronize()
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
                comm.all_reduce(tensor, out=out)
            for i in range(30):
                # Others take its place, and would take its memory.
                comm.use_schedule(compiled("ring" if i % 2 else "recursive_doubling", 1 + i % 3))
                comm.all_reduce(tensor.fill_(1))
                stream.synchronize()
                tensor.fill_(comm.rank + i)
                graph.replay()
                stream.synchronize()
                n = comm.size
                assert (out == n * i + n * (n - 1) // 2).all(), i
            comm.use_schedule(None)
            del graph

    run_ranks(comms, body)


def test_explain_tells_what_runs_on_the_gpu(comms: list[Communicator]) -> None:
    def body(comm: Communicator) -> None:
        for nbytes in (8, 1 << 16, 1 << 26):
            told = comm.explain("all_reduce", nbytes)
            assert told["memory"] == "GPU"
            assert told["candidates"][0]["predicted_us"] > 0
            assert told["chosen"] == told["candidates"][0]["algorithm"]
            assert told["protocol"] in ("simple", "ll", "ll128")
            # Ranks that share a GPU, or one that no discovery sees, have no place among links.
            if told["bound"] is not None:
                rate = told["candidates"][0]["algbw_gbps"]
                assert 0 < rate <= told["bound"]["algbw_gbps"] * (1 + 1e-9)
                for link in told["limiting_links"]:
                    assert link["load"] == pytest.approx(link["capacity"], rel=1e-3)
                assert told["limiting_links"]
        assert told["protocol"] == "simple"

    run_ranks(comms, body)


def test_an_algorithm_for_what_it_cannot_do_is_refused() -> None:
    ropewalk.settings.set("ALGORITHM", "sendrecv=one_shot")
    try:
        with on_gpus(num_ranks()) as comms:

            def body(comm: Communicator) -> None:
                with own_stream(comm):
                    tensor = torch.ones(8, device=f"cuda:{comm.device}")
                    with pytest.raises(ropewalk.ArgumentError, match="cannot do sendrecv"):
                        comm.sendrecv(tensor, torch.zeros_like(tensor))
                    comm.all_reduce(tensor)
                    assert (tensor == comm.size).all()

            run_ranks(comms, body)
    finally:
        ropewalk.settings.set("ALGORITHM", "auto")


def test_plans_for_a_described_machine_run() -> None:
    """Four ranks, as the first GPUs of a DGX-1V, on the GPUs that there are."""
    ropewalk.settings.set("TOPOLOGY", "dgx1v")
    try:
        with on_gpus(4) as comms:

            def body(comm: Communicator) -> None:
                with own_stream(comm) as stream:
                    for operation, count in (("all_reduce", 1 << 22), ("broadcast", 1 << 22)):
                        told = comm.explain(operation, 4 * count)
                        assert told["chosen"].startswith("plan-"), told["chosen"]
                        assert told["limiting_links"]
                        tensor = torch.full((count,), comm.rank + 1.0, device=f"cuda:{comm.device}")
                        stream.synchronize()
                        getattr(comm, operation)(tensor)
                        stream.synchronize()
                        comm.check()
                        assert (tensor == (10 if operation == "all_reduce" else 1)).all()
                    comm.finalize()

            run_ranks(comms, body)
    finally:
        ropewalk.settings.set("TOPOLOGY", "")
