"""`ropewalk bench -t T -g G`: threads that drive several ranks each, in one process or several."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ropewalk
from conftest import DEADLINE_SECONDS, Program, Worlds, run_ranks
from ropewalk import errors, joining
from ropewalk.cli import bench_device, bench_ranks, bench_run, process_ranks
from ropewalk.cli.bench_plan import OPERATIONS, Options
from ropewalk.communicator import Communicator
from ropewalk.measure import Measured, measure
from ropewalk.types import DATA_TYPES
from running import end_with, free_port, kill_rank, rank_processes, rows, start
from thorough import thorough_but

QUICK = ("-b", "64", "-e", "4K", "-f", "8", "-n", "3", "-w", "1")
DEVICE_LINE = re.compile(
    r"#  Rank +(\d+) Group  0 Pid +(\d+) on +\S+ device +(\d+) \[0000:00:00\] .+, host memory"
)


def device_lines(text: str) -> list[tuple[int, int, int]]:
    """Rank, process and device number of each."""
    found = [DEVICE_LINE.fullmatch(line) for line in text.splitlines() if "#  Rank" in line]
    return [(int(one[1]), int(one[2]), int(one[3])) for one in found if one is not None]


@pytest.mark.parametrize(
    ("flags", "threads", "per_thread", "processes"),
    [
        (("-g", "2"), 1, 2, 1),
        (("-t", "3"), 3, 1, 1),
        (("-t", "2", "-g", "2"), 2, 2, 1),
        (("--nthreads", "2", "--ngpus", "3", "--pin"), 2, 3, 1),
        (("--ranks", "2", "-t", "2", "-g", "2"), 2, 2, 2),
        (("--ranks", "3", "-g", "2", "--pin"), 1, 2, 3),
        (("-g", "1"), 1, 1, 1),
    ],
)
def test_the_header(
    program: Program, flags: tuple[str, ...], threads: int, per_thread: int, processes: int
) -> None:
    done = program("bench", "all_reduce", *flags, *QUICK)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert f"# nThread {threads} nGpus {per_thread} minBytes 64 maxBytes 4096 " in done.stdout
    each = threads * per_thread
    lines = device_lines(done.stdout)
    assert [(rank, device) for rank, _, device in lines] == [
        (i, i) for i in range(processes * each)
    ]
    pids = [pid for _, pid, _ in lines]
    assert len(set(pids)) == processes
    assert all(pids[i] == pids[i // each * each] for i in range(len(pids)))
    assert len(rows(done.stdout)) == 3
    assert "# Out of bounds values : 0 OK" in done.stdout


@pytest.mark.parametrize("operation", thorough_but(sorted(OPERATIONS), "all_reduce", "gather"))
def test_every_operation(program: Program, operation: str) -> None:
    done = program("bench", operation, "-t", "2", "-g", "2", "-r", "-1", *QUICK)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    for row in rows(done.stdout):
        assert row[8] == "0"
        assert row[12] == ("0" if OPERATIONS[operation].in_place else "N/A")


@pytest.mark.thorough
@pytest.mark.parametrize(
    "flags",
    [
        ("-a", "0", "-z", "1", "-m", "3"),
        ("-a", "2", "-z", "2", "-c", "0"),
        ("-a", "3", "-z", "3", "-N", "2", "-c", "3"),
        ("-o", "mulsum", "-d", "half", "-u", "3"),
        ("-p", "1", "-C", "1", "-S", "1", "-T", "30", "-w", "0"),
    ],
)
def test_with_other_flags(program: Program, flags: tuple[str, ...]) -> None:
    done = program("bench", "all_reduce", "-t", "2", "-g", "2", *QUICK, *flags)
    assert done.returncode == 0, done.stderr
    assert "# Out of bounds values : 0 OK" in done.stdout
    wanted = "N/A" if flags[-2:] == ("-c", "0") else "0"
    assert {row[8] for row in rows(done.stdout)} == {wanted}


def test_json_and_plot(program: Program, tmp_path: Path) -> None:
    path, picture = tmp_path / "run.json", tmp_path / "run.svg"
    done = program(
        "bench", "all_gather", "--ranks", "2", "-t", "2", "-g", "2", "-b", "1K", "-e", "1K",
        "-n", "6", "-I", "1", "-K", "1", "-J", str(path), "--plot", str(picture),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    document = json.loads(path.read_text())
    config = document["config"]
    assert (config["nthreads"], config["ngpus"]) == (2, 2)
    assert [device["rank"] for device in config["devices"]] == list(range(8))
    each = document["results"][0]["out_of_place_per_iter"]
    by_process = each["per_process_max_times_us"]
    assert [len(times) for times in by_process] == [6, 6]
    assert each["times_us"] == [max(times) for times in zip(*by_process)]
    assert "all_gather over 8 ranks" in picture.read_text()


def test_one_process_has_no_rows_of_processes(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    done = program("bench", "all_reduce", "-g", "3", *QUICK, "-I", "1", "-J", str(path))
    assert done.returncode == 0, done.stderr
    each = json.loads(path.read_text())["results"][0]["in_place_per_iter"]
    assert "per_process_max_times_us" not in each
    assert len(each["times_us"]) == 3


def test_a_schedule(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "ring.txt"
    made = program("schedule", "make", "all_reduce", "--ranks", "4", "--algorithm", "ring")
    file.write_text(made.stdout)
    for flags, processes in ((("-t", "2", "-g", "2"), 1), (("-g", "2"), 2), (("-t", "1"), 4)):
        done = program("bench", "--schedule", str(file), *flags, *QUICK)
        assert done.returncode == 0, done.stderr
        lines = device_lines(done.stdout)
        assert len(lines) == 4
        assert len({pid for _, pid, _ in lines}) == processes
    done = program("bench", "--schedule", str(file), "-g", "3")
    assert done.returncode == 2
    assert "is for 4 ranks" in done.stderr
    done = program("bench", "--schedule", str(file), "-g", "2", "--ranks", "4")
    assert done.returncode == 2
    assert f"--ranks 4: {file} is for 2" in done.stderr


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        (("-t", "0"), "-t 0: must be 1 to 4096"),
        (("-g", "-1"), "-g -1: must be 1 to 4096"),
        (("-t", "5000"), "-t 5000"),
        (("-t", "100", "-g", "100"), "10000 ranks on this host: at most 4096"),
        (("--ranks", "100", "-g", "100"), "10000 ranks on this host: at most 4096"),
        (("-g", "two"), "'-g' / '--ngpus'"),
        (("-g", "2", "-r", "2"), "-r 2: there are 2 ranks"),
        (("--ranks", "2", "-t", "2", "-g", "2", "-r", "8"), "-r 8: there are 8 ranks"),
        (("-g", "2", "-G", "1"), "needs CUDA"),
    ],
)
def test_nonsense(program: Program, flags: tuple[str, ...], reason: str) -> None:
    done = program("bench", "broadcast", *flags)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert reason in done.stderr
    assert done.stderr.count("there are") <= 1  # once, not by every rank


# ---- in a launcher's environment


def launched(rank: int, size: int, port: int) -> dict[str, str]:
    """As torchrun sets it."""
    return {
        **os.environ,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(size),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "CUDA_VISIBLE_DEVICES": "",
    }


@pytest.mark.parametrize(("flags", "each"), [(("-t", "2", "-g", "2"), 4), (("-g", "3"), 3)])
def test_a_launchers_processes(flags: tuple[str, ...], each: int) -> None:
    port = free_port()
    running = [
        start("bench", "reduce", *flags, *QUICK, "--pin", env=launched(rank, 2, port))
        for rank in range(2)
    ]
    outputs = [one.communicate(timeout=DEADLINE_SECONDS) for one in running]
    assert [one.returncode for one in running] == [0, 0], outputs
    lines = device_lines(outputs[0][0])
    assert [(rank, device) for rank, _, device in lines] == [(i, i) for i in range(2 * each)]
    assert [pid for _, pid, _ in lines] == [running[i // each].pid for i in range(2 * each)]
    assert len(rows(outputs[0][0])) == 3
    assert outputs[1] == ("", "")


LONG = ("-b", "8", "-e", "8", "-n", "1000", "-N", "1000000")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_a_launchers_process(number: signal.Signals) -> None:
    port = free_port()
    arguments = ("bench", "all_reduce", "-t", "2", "-g", "2", *LONG)
    running = [start(*arguments, env=launched(rank, 2, port)) for rank in range(2)]
    try:
        rank_processes(running[0])
        running[0].send_signal(number)
        outputs = [one.communicate(timeout=DEADLINE_SECONDS) for one in running]
        assert running[0].returncode == -number
        assert running[1].returncode not in (0, 1)  # it has lost its peers, and says so
        assert "rank" in outputs[1][1]
    finally:
        for one in running:
            one.kill()


# ---- the end


@pytest.mark.parametrize(
    "number", thorough_but([signal.SIGINT, signal.SIGTERM, signal.SIGKILL], signal.SIGKILL)
)
@pytest.mark.parametrize("flags", [("-g", "2"), ("--ranks", "2", "-t", "2", "-g", "2")])
def test_no_process_outlives_the_parent(number: signal.Signals, flags: tuple[str, ...]) -> None:
    end_with(number, "bench", "all_reduce", *flags, *LONG)


def test_the_ranks_of_a_killed_process_are_named() -> None:
    flags = ("--ranks", "2", "-t", "2", "-g", "2")
    pid, said = kill_rank(4, "bench", "all_reduce", *flags, *LONG)
    assert f"ranks 4 to 7 (process {pid}) were killed by SIGKILL" in said


def test_a_thread_that_raises_ends_the_others() -> None:
    comms = ropewalk.init_all(4)

    def body(mine: list[Communicator]) -> int:
        if mine[0].rank == 2:
            raise ZeroDivisionError("as the test wants it")
        with ropewalk.group():
            for comm in mine:
                comm.all_reduce(bytearray(8))
        raise AssertionError("the others' part is missing")

    with pytest.raises(ZeroDivisionError):
        process_ranks.in_threads(comms, 2, body, pinned=False)
    assert all(comm.closed for comm in comms)


def test_leaving_after_an_error_aborts() -> None:
    comms = ropewalk.init_all(3)
    with pytest.raises(KeyError), process_ranks.leaving(comms):
        raise KeyError
    assert all(comm.closed for comm in comms)
    comms = ropewalk.init_all(3)
    with process_ranks.leaving(comms):
        pass
    assert all(comm.closed for comm in comms)


# ---- the parts


def test_a_wrong_result_is_the_exit_status(
    worlds: Worlds, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def wrong(*arguments: Any, **options: Any) -> Measured:
        return measure(*arguments, **options)._replace(wrong=3)

    monkeypatch.setattr(bench_run, "measure", wrong)
    options = Options(nthreads=2, ngpus=2, minbytes=8, maxbytes=8, iters=2)
    outputs = bench_run.Outputs(None, None, [])
    status = process_ranks.in_threads(
        worlds(4),
        2,
        lambda mine: bench_run.run(mine, OPERATIONS["all_reduce"], options, outputs),
        pinned=False,
    )
    assert status == 1
    said = capsys.readouterr().out
    assert "# Out of bounds values : 2 FAILED" in said
    assert rows(said)[0][8] == "3"


def test_measuring_several_ranks(worlds: Worlds) -> None:
    kind = DATA_TYPES["float32"]
    found = measure(worlds(3), "all_reduce", 1000, kind, iterations=4, per_iteration=True)
    assert found.wrong == 0
    assert len(found.iteration_seconds) == 4
    assert found.seconds_min == found.seconds_rank0 == found.seconds_max
    with pytest.raises(errors.ArgumentError, match="different ranks of one"):
        measure([worlds(3)[0], worlds(3)[0]], "all_reduce", 1, kind)
    with pytest.raises(errors.ArgumentError):
        measure([], "all_reduce", 1, kind)
    assert measure(worlds(3), "all_reduce", 1, kind).wrong == 0


def test_init_ranks_by_unique_id() -> None:
    made = ropewalk.unique_id()
    parts: dict[int, list[Communicator]] = {}

    def join(comm: Communicator) -> None:
        parts[comm.rank] = joining.init_ranks(3, unique_id=made, process=comm.rank, processes=2)

    processes = ropewalk.init_all(2)
    run_ranks(processes, join)
    comms = parts[0] + parts[1]
    assert [(comm.rank, comm.size) for comm in comms] == [(i, 6) for i in range(6)]
    for each in (comms, processes):
        run_ranks(each, Communicator.finalize)
    with pytest.raises(errors.ArgumentError):
        joining.init_ranks(0)


@pytest.mark.parametrize("process", [0, 1])
@pytest.mark.parametrize("by_launcher", [False, True])
def test_gpus_are_numbered_as_nccl_tests_does(
    monkeypatch: pytest.MonkeyPatch, process: int, by_launcher: bool
) -> None:
    monkeypatch.setattr(joining, "device_count", lambda: 8)
    # Of the second host: local process 0 or 1 has the ranks 8 to 11 or 12 to 15.
    monkeypatch.setenv("LOCAL_RANK", str(process))
    host = 8 if by_launcher else 0
    given: dict[int, int] = {}
    comms: list[Any] = [
        SimpleNamespace(rank=rank, attach=lambda gpu, rank=rank: given.__setitem__(rank, gpu))
        for rank in range(host + process * 4, host + process * 4 + 4)
    ]
    bench_ranks.Ranks(by_launcher, 2, 2, 4, 2).attach(comms)
    assert given == {host + process * 4 + i: process * 4 + i for i in range(4)}


def test_too_few_gpus(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("RANK", "WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(bench_device, "count_gpus", lambda: (2, ""))
    ranks = bench_ranks.find(None, 2, 2, None)
    assert (ranks.processes, ranks.each, ranks.here) == (1, 4, 4)
    site = bench_device.choose(None, ranks.here, ranks.describe())
    assert site.gpus == 0
    assert site.note == "host memory: there are 2 GPUs for 4 ranks (1 process, -t 2, -g 2)"
    assert bench_device.choose(None, bench_ranks.find(None, None, 2, None).here).gpus == 2
    # Without any flag, one process for each GPU.
    assert bench_ranks.find(None, None, None, None).here is None


def test_help_has_the_usual_command(program: Program) -> None:
    assert "ropewalk bench all_reduce -g 8 -b 8 -e 128M -f 2" in program("bench", "-h").stdout


def test_the_library_alone(tmp_path: Path) -> None:
    """Two ranks of one thread, without a launcher: each process is one, so this is a job of two."""
    code = "from ropewalk import joining; print([c.rank for c in joining.init_ranks(2)])"
    environment = {name: value for name, value in os.environ.items() if "RANK" not in name}
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        env=environment,
        cwd=tmp_path,
    )
    assert done.stdout == "[0, 1]\n", done.stderr
