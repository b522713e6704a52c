"""`ropewalk bench` on GPUs: every operation is right, by stream and by graph."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from gpu_support import DEADLINE_SECONDS, need_gpus, num_gpus
from ropewalk.cli.bench_plan import OPERATIONS

need_gpus(2)


def ropewalk(*arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def bench(*arguments: str) -> str:
    return ropewalk("bench", *arguments)


@pytest.mark.parametrize("flags", [[], ["--graph"]], ids=["stream", "graph"])
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_bench(operation: str, flags: list[str]) -> None:
    said = bench(operation, "--device", "cuda", "-b", "64", "-e", "4M", "-f", "16", *flags)
    assert "# Out of bounds values : 0 OK" in said
    assert "host memory" not in said


@pytest.mark.parametrize("flags", [[], ["--graph"]], ids=["stream", "graph"])
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_registered_buffers(operation: str, flags: list[str]) -> None:
    said = bench(operation, "-R", "2", "-b", "64", "-e", "64M", "-f", "32", "-n", "3", *flags)
    assert "# Out of bounds values : 0 OK" in said
    assert "host memory" not in said


def look_at_ranks(said: str, share: tuple[str, ...]) -> None:
    """Whether the header has the ranks of these flags, each on the GPU of its number."""
    given = {flag: int(value) for flag, value in zip(share[::2], share[1::2])}
    processes = given.get("--ranks", 1)
    threads, per_thread = given.get("-t", 1), given.get("-g", 1)
    assert f"# nThread {threads} nGpus {per_thread} " in said
    lines = [line.split() for line in said.splitlines() if line.startswith("#  Rank")]
    numbers = list(range(processes * threads * per_thread))
    assert [int(line[2]) for line in lines] == numbers
    assert [int(line[10]) for line in lines] == numbers
    assert len({line[6] for line in lines}) == processes


@pytest.mark.parametrize("flags", [[], ["--graph"]], ids=["stream", "graph"])
@pytest.mark.parametrize("way", ["-g", "-t"])
@pytest.mark.parametrize("operation", sorted(OPERATIONS))
def test_all_gpus_of_a_process(operation: str, way: str, flags: list[str]) -> None:
    share = (way, str(num_gpus()))
    said = bench(operation, *share, "-b", "64", "-e", "4M", "-f", "16", *flags)
    assert "# Out of bounds values : 0 OK" in said
    assert "host memory" not in said
    look_at_ranks(said, share)


@pytest.mark.parametrize("flags", [[], ["--graph"], ["-R", "2"]], ids=["stream", "graph", "R2"])
@pytest.mark.parametrize("operation", ["all_reduce", "broadcast"])
@pytest.mark.parametrize(
    "share",
    [
        ("-t", "2", "-g", "2"),
        ("--ranks", "2", "-g", "2"),
        ("--ranks", "2", "-t", "2"),
        ("--ranks", "2", "-g", "1"),
    ],
    ids=" ".join,
)
def test_processes_threads_and_gpus(
    share: tuple[str, ...], operation: str, flags: list[str]
) -> None:
    if share[-1] == "2" and num_gpus() < 4:
        pytest.skip("4 GPUs are needed")
    said = bench(operation, *share, "-b", "64", "-e", "16M", "-f", "64", *flags)
    assert "# Out of bounds values : 0 OK" in said
    look_at_ranks(said, share)


@pytest.mark.parametrize("share", [("-g", "2"), ("-t", "2")], ids=" ".join)
@pytest.mark.parametrize(
    "flags",
    [
        ("-z", "1", "-m", "2"),
        ("-z", "3", "-I", "1"),
        ("-G", "3", "-z", "1"),
        ("-w", "0", "-G", "2", "-c", "2"),
        ("-w", "0", "-n", "1"),
        ("-o", "all", "-d", "all", "-n", "2"),
        ("-N", "2", "-R", "2", "-G", "1"),
    ],
    ids=" ".join,
)
def test_several_gpus_with_other_flags(share: tuple[str, ...], flags: tuple[str, ...]) -> None:
    said = bench("all_reduce", *share, "-b", "1K", "-e", "1M", "-f", "32", *flags)
    assert "# Out of bounds values : 0 OK" in said
    assert "host memory" not in said


def test_every_root_by_one_thread() -> None:
    for operation in ("broadcast", "reduce", "gather", "scatter"):
        said = bench(operation, "-g", "2", "-b", "64K", "-e", "8M", "-f", "128", "-r", "-1")
        assert ": 0 OK" in said


def test_more_ranks_than_gpus() -> None:
    many = str(num_gpus() + 1)
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", "bench", "all_reduce", "-g", many, "--device", "cuda"],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
    )
    assert done.returncode == 2
    assert (
        f"there are {num_gpus()} GPUs for {many} ranks (1 process, -t 1, -g {many})" in done.stderr
    )
    said = bench("all_reduce", "-g", many, "-b", "8", "-e", "8")
    assert "host memory" in said


@pytest.mark.parametrize("share", [("-g", "2"), ("-t", "2")], ids=" ".join)
def test_a_killed_process_ends_its_command(share: tuple[str, ...]) -> None:
    running = subprocess.Popen(
        [sys.executable, "-m", "ropewalk", "bench", "all_reduce", *share]
        + ["-b", "8", "-e", "8", "-n", "1000", "-N", "1000000"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert running.stdout is not None
        pids = []
        for line in running.stdout:
            if line.startswith("#  Rank"):
                pids.append(int(line.split()[6]))
            if not line.startswith("#"):
                break
        assert len(set(pids)) == 1
        os.kill(pids[0], signal.SIGKILL)
        _, said = running.communicate(timeout=DEADLINE_SECONDS)
        assert running.returncode == 128 + signal.SIGKILL
        assert f"ranks 0 to 1 (process {pids[0]}) were killed by SIGKILL" in said
    finally:
        running.kill()


def test_all_types_and_operators() -> None:
    said = bench("all_reduce", "-b", "4K", "-e", "4K", "-n", "2", "-d", "all", "-o", "all")
    assert "# Out of bounds values : 0 OK" in said


def test_every_root() -> None:
    for operation in ("broadcast", "reduce", "gather", "scatter"):
        assert ": 0 OK" in bench(operation, "-b", "64K", "-e", "64K", "-r", "-1", "-n", "2")


def test_nothing_at_all() -> None:
    # 8 bytes for two ranks are no whole element for each.
    for operation in ("all_to_all", "all_reduce"):
        assert ": 0 OK" in bench(operation, "--device", "cuda", "-b", "1", "-e", "8", "-f", "8")


@pytest.mark.parametrize("algorithm", ["ring", "double_binary_tree"])
def test_a_given_schedule(algorithm: str, tmp_path: Path) -> None:
    ranks = str(num_gpus())
    file = tmp_path / "schedule.txt"
    text = ropewalk("schedule", "make", "all_reduce", "--ranks", ranks, "--algorithm", algorithm)
    file.write_text(text)
    said = bench("--schedule", str(file), "--device", "cuda", "-b", "8", "-e", "16M", "-f", "64")
    assert "# Out of bounds values : 0 OK" in said
    assert "NVIDIA" in said


def test_microbench() -> None:
    said = ropewalk("microbench", "chain", "--ranks", "2", "--device", "cuda", "--json")
    results = json.loads(said)
    assert {result["test"] for result in results} == {
        "forward",
        "reduce-forward",
        "reduce-broadcast",
    }
    assert all(result["wrong"] == 0 for result in results)
