"""Windows in GPU memory: the host and streams put, get, signal and wait."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import launcher
import pytest
import ropewalk
from conftest import run_ranks
from gpu_support import DEADLINE_SECONDS, need_ranks, num_gpus, num_ranks, torch
from ropewalk.communicator import Communicator

need_ranks()

BUILD = launcher.ROOT / os.environ.get("RW_BUILD_DIR", "build/release")


def run(part: str, ranks: int = 2) -> None:
    for ended in launcher.run(ranks, "message_rank.py", part, ours=False):
        assert ended.status == 0, f"rank {ended.rank}:\n{ended.output}"
        assert "all done" in ended.output


def start(command: list[str], settings: list[dict[str, str]]) -> list[subprocess.Popen[str]]:
    """Ranks, each with its settings besides torchrun's variables."""
    port, size = str(launcher.free_port()), str(len(settings))
    processes = []
    for rank in range(len(settings)):
        variables = {"RANK": str(rank), "WORLD_SIZE": size, "LOCAL_RANK": str(rank)}
        variables |= {"LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        processes.append(
            subprocess.Popen(
                command,
                env={**os.environ, **variables, **settings[rank]},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
    return processes


def run_all(command: list[str], settings: list[dict[str, str]]) -> str:
    """What rank 0 printed. All must end well."""
    processes = start(command, settings)
    try:
        said = [process.communicate(timeout=DEADLINE_SECONDS)[0] for process in processes]
        assert all(process.returncode == 0 for process in processes), "\n".join(said)
        return said[0]
    finally:
        for process in processes:
            process.kill()
            process.wait()


@pytest.mark.parametrize(
    "part",
    [
        "host",
        "streams",
        "in_host",
        "queues",
        "gets",
        "batches",
        "armed",
        "launches",
        "lists",
        "graphs",
        "refused",
        "deadline",
    ],
)
def test_processes(part: str) -> None:
    run(part)


@pytest.mark.parametrize(
    "part", ["host", "streams", "queues", "gets", "batches", "launches", "lists", "graphs"]
)
def test_three_processes(part: str) -> None:
    run(part, 3)


@pytest.mark.parametrize("setting", ["", "STREAM_KERNELS"])
@pytest.mark.parametrize(("hosts", "net"), [(1, "auto"), (2, "shm")])
def test_random_programs(
    hosts: int, net: str, setting: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By calls, streams, batches and graphs at once; $RW_TEST_SEEDS chooses others."""
    monkeypatch.setenv("RW_HOSTS", str(hosts))
    monkeypatch.setenv("ROPEWALK_NET", net)
    if setting:
        monkeypatch.setenv(f"ROPEWALK_{setting}", "1")
    run("random")


@pytest.mark.parametrize("part", ["streams", "launches"])
def test_streams_by_kernels(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_STREAM_KERNELS", "1")
    run(part)


@pytest.mark.parametrize("net", ["tcp", "shm"])
@pytest.mark.parametrize(
    "part",
    ["host", "streams", "in_host", "queues", "gets", "batches", "launches", "lists", "graphs"],
)
def test_two_hosts(part: str, net: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RW_HOSTS", "2")
    monkeypatch.setenv("ROPEWALK_NET", net)
    run(part)


@pytest.mark.parametrize(("hosts", "net"), [(1, "auto"), (2, "shm"), (2, "tcp")])
def test_kernels_streams_batches_and_graphs(hosts: int, net: str) -> None:
    """The program of benchmarks/messages compares what it moved; times are not looked at."""
    settings: list[dict[str, str]] = [{}, {}]
    if hosts == 2:
        settings = [{"ROPEWALK_HOST_ID": f"host{rank}", "ROPEWALK_NET": net} for rank in range(2)]
    said = run_all([str(BUILD / "tests" / "gpu_message_times"), str(4 << 20), "1"], settings)
    rows = [line.split() for line in said.splitlines()]
    ours = {"kernel", "blocks", "queue", "queues", "stream", "message", "chain"}
    ours |= {"pair", "batch", "whole", "list", "lists", "graph"}
    limits = {"flags", "driver"} if hosts == 1 else set()
    assert {row[0] for row in rows} == ours | limits
    assert all(row[-1] == "0" for row in rows), said
    print(said)


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ([str(BUILD / "tests" / "window_kernel")], "2 ranks: 200 from rank 1 in 100 turns"),
        ([str(BUILD / "tests" / "window_stream")], "2 ranks: 100 to 109 from rank 1"),
        (
            [sys.executable, str(launcher.ROOT / "examples" / "python" / "window_gpu.py")],
            "2 ranks: from rank 1: [1.5, 1.5, 1.5, 1.5]",
        ),
    ],
)
def test_examples(command: list[str], expected: str) -> None:
    assert expected in run_all(command, [{}, {}])


def test_memory_that_has_no_handle(monkeypatch: pytest.MonkeyPatch) -> None:
    """Links carry what is for it."""
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    run("host")
    run("streams")


@pytest.fixture(autouse=True)
def short_deadline(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "deadline" in request.node.name:
        # Joining has as long, and PyTorch's processes start at different times.
        monkeypatch.setenv("ROPEWALK_TIMEOUT", "4s")
    else:
        monkeypatch.setenv("ROPEWALK_TIMEOUT", "60s")


@pytest.mark.parametrize("waiter", ["driver", "kernel", "graph", "setting"])
def test_a_killed_rank_ends_a_streams_wait(waiter: str) -> None:
    """Within PEER_LOSS_TIME, 1 s, of the kill, and what a heartbeat takes."""
    program = str(Path(__file__).parent / "message_rank.py")
    by_kernels = {"ROPEWALK_STREAM_KERNELS": "1"} if waiter == "setting" else {}
    how = "driver" if waiter == "setting" else waiter
    processes = start([sys.executable, program, "until_lost", how], [by_kernels] * 2)
    took, words = launcher.lost_after_kill(processes, DEADLINE_SECONDS)
    assert "rank 1" in words
    print(f"the stream went on {took:.3f} s after the kill")
    assert took < 2  # PEER_LOSS_TIME is 1 s


def hosts(ranks: int, count: int, net: str) -> list[dict[str, str]]:
    """The ranks' settings, as if they were on so many hosts."""
    if count == 1:
        return [{} for _ in range(ranks)]
    return [
        {"ROPEWALK_HOST_ID": f"host{rank * count // ranks}", "ROPEWALK_NET": net}
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("part", ["forms", "armed"])
@pytest.mark.parametrize(
    ("ranks", "count", "net"),
    [(2, 1, "auto"), (3, 1, "auto"), (4, 1, "auto"), (2, 2, "shm"), (3, 2, "tcp")],
)
def test_every_form_of_a_message_by_kernels(ranks: int, count: int, net: str, part: str) -> None:
    """By threads, warps and blocks; more ranks than GPUs share them."""
    said = run_all([str(BUILD / "tests" / "window_forms"), part], hosts(ranks, count, net))
    print(said)
    assert "FAILED" not in said
    assert re.search(rf"^{ranks} ranks: .*right$", said, re.M)


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("waiter", ["wait_signal", "receive", "batch", "stream", "armed"])
def test_a_killed_rank_ends_a_kernels_wait(waiter: str, count: int) -> None:
    """Of the program's own kernels, of a message on a stream, and of a batch without its trigger;
    CUDA's context stays whole."""
    command = [str(BUILD / "tests" / "window_forms"), "lost", waiter]
    processes = start(command, hosts(2, count, "shm"))
    took, words = launcher.lost_after_kill(processes, DEADLINE_SECONDS)
    assert "rank 1" in words
    print(f"{waiter}: ended {took:.3f} s after the kill: {words}")
    assert took < 2  # PEER_LOSS_TIME is 1 s


def test_ranks_of_one_process() -> None:
    """As threads: peer access, or one GPU for all."""
    comms = ropewalk.init_all(num_ranks())

    def body(comm: Communicator) -> None:
        device = comm.rank % num_gpus()
        torch.cuda.set_device(device)
        nbytes = 1 << 20
        window = comm.window(nbytes, slots=2, device=device)
        right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
        stream = torch.cuda.Stream()
        source = torch.full((nbytes,), comm.rank + 1, dtype=torch.uint8, device="cuda")
        mine = torch.as_tensor(window.device_memory(), device="cuda")
        torch.cuda.synchronize()
        comm.barrier()
        with torch.cuda.stream(stream):
            for _ in range(20):
                window.put_signal(source, right, stream=stream)
                window.wait_signal(left, stream=stream)
                window.signal(left, 1, stream=stream)
                window.wait_signal(right, 1, stream=stream)
        stream.synchronize()
        assert (mine == left + 1).all()
        comm.barrier()
        window.close()

    run_ranks(comms, body)
    run_ranks(comms, Communicator.finalize)


def test_a_group_makes_windows() -> None:
    comms = ropewalk.init_all(2)
    with ropewalk.group():
        windows = [comm.window(64, device=0) for comm in comms]
    windows[0].put(torch.ones(8, device="cuda"), 1)
    windows[0].signal(1)
    windows[1].wait_signal(0)
    got = torch.as_tensor(windows[1].device_memory(), device="cuda").view(torch.float32)
    assert got[:8].tolist() == [1.0] * 8
    with ropewalk.group():
        for window in windows:
            window.close()
    for comm in comms:
        comm.abort()
