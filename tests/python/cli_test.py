"""The program: exit status, pipes, the table, JSON and pictures."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from conftest import DEADLINE_SECONDS, Program
from ropewalk import cli
from running import end_with, kill_rank, rows
from thorough import thorough_but

OPERATIONS = [
    "all_reduce",
    "all_gather",
    "reduce_scatter",
    "broadcast",
    "reduce",
    "all_to_all",
    "gather",
    "scatter",
    "sendrecv",
]
QUICK = ["-b", "64", "-e", "4K", "-f", "8", "-n", "3", "-w", "1"]
ROW = re.compile(
    r"^ {0,11}\d+  .{12}  .{8}  .{6}  .{6}(  .{7}  .{6}  .{6}  .{6}){1}  .{7}  .{6}  .{6}  .{5,6}$"
)


@pytest.mark.parametrize(
    "operation", thorough_but(OPERATIONS, "all_reduce", "broadcast", "all_to_all", "gather")
)
def test_bench_every_operation(program: Program, operation: str) -> None:
    done = program("bench", operation, "--ranks", "3", *QUICK)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    assert "# Out of bounds values : 0 OK" in done.stdout
    lines = [line for line in done.stdout.splitlines() if line and not line.startswith("#")]
    assert len(lines) == 3
    assert all(ROW.match(line) for line in lines), lines
    for row in rows(done.stdout):
        assert len(row) == 13
        wrong = (row[8], row[12])
        assert wrong == ("0", "N/A" if operation in ("all_to_all", "sendrecv") else "0")


def test_bench_per_iteration(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    done = program(
        "bench", "all_reduce", "--ranks", "3", "-b", "64", "-e", "64", "-n", "6", "-m", "2",
        "-z", "3", "-a", "0", "-u", "1", "-c", "2", "-I", "1", "-K", "2", "-J", str(path),
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert [len(row) for row in rows(done.stdout)] == [21]
    document = json.loads(path.read_text())
    assert (document["config"]["per_iter_timing"], document["config"]["per_iter_skip"]) == (
        "true",
        2,
    )
    result = document["results"][0]
    assert list(result)[5:9] == [
        "out_of_place",
        "out_of_place_per_iter",
        "in_place",
        "in_place_per_iter",
    ]
    each = result["in_place_per_iter"]
    assert each["skipped_iterations"] == 2
    assert len(each["times_us"]) == 6
    assert [len(times) for times in each["per_process_max_times_us"]] == [6, 6, 6]
    assert each["min_us"] == min(each["times_us"][2:])
    # -z 3 counts the iterations alone, and -a 0 rank 0 alone.
    mean = sum(each["per_process_max_times_us"][0]) / 6
    assert result["in_place"]["time"] == pytest.approx(mean, abs=1e-3)


@pytest.mark.parametrize("operation", ["all_gather", "reduce_scatter", "scatter", "sendrecv"])
def test_bench_misaligned_buffers(program: Program, operation: str) -> None:
    done = program(
        "bench", operation, "--ranks", "2", "-b", "1K", "-e", "64K", "-f", "8", "-n", "2",
        "-u", "3", "-d", "half",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "unalign: 3" in done.stdout
    assert {row[8] for row in rows(done.stdout)} == {"0"}


@pytest.mark.thorough
def test_bench_types_operators_and_roots(program: Program) -> None:
    done = program(
        "bench", "reduce", "--ranks", "2", "-b", "64", "-e", "64", "-n", "2",
        "-d", "all", "-o", "all", "-r", "-1",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    table = rows(done.stdout)
    assert len(table) == 12 * 6 * 2
    assert {row[2] for row in table} >= {"half", "bfloat16", "f8e4m3", "f8e5m2"}
    assert {row[3] for row in table} == {"sum", "prod", "max", "min", "avg", "mulsum"}
    assert {row[8] for row in table} == {"0"}


def test_bench_says_that_buffers_are_hot(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    done = program("bench", "all_gather", *QUICK, "--hot", "-J", str(path))
    assert done.returncode == 0, done.stderr
    assert "# Hot: every operation uses the same buffers" in done.stdout
    assert json.loads(path.read_text())["buffers"] == {"hot": True, "region_bytes": 0}


def test_bench_json_has_the_keys_of_nccl_tests(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    arguments = ("bench", "all_reduce", *QUICK, "-J", str(path))
    assert program(*arguments).returncode == 0
    document: dict[str, Any] = json.loads(path.read_text())
    assert list(document) == [
        "version",
        "start_time",
        "args",
        "env",
        "nccl_version",
        "buffers",
        "config",
        "results",
        "out_of_bounds",
        "average_bus_bandwidth",
        "errors",
        "end_time",
    ]
    assert document["version"] == 3
    assert document["buffers"] == {"hot": False, "region_bytes": 64 << 20}
    assert list(document["config"]) == [
        "nthreads",
        "ngpus",
        "minimum_bytes",
        "maximum_bytes",
        "step_factor",
        "warmup_iters",
        "iterations",
        "aggregated_iterations",
        "validation",
        "graph",
        "blocking_collectives",
        "per_iter_timing",
        "per_iter_skip",
        "parallel_init",
        "devices",
    ]
    devices = document["config"]["devices"]
    assert [device["rank"] for device in devices] == [0, 1]
    assert list(devices[0]) == [
        "rank",
        "group",
        "pid",
        "hostname",
        "device",
        "device_hex",
        "device_info",
    ]
    result = document["results"][0]
    assert list(result) == [
        "size",
        "count",
        "type",
        "redop",
        "root",
        "out_of_place",
        "in_place",
        "actual_iterations",
        "experiment_name",
    ]
    assert list(result["in_place"]) == ["time", "alg_bw", "bus_bw", "nwrong"]
    assert result["root"] == "    -1"
    assert document["out_of_bounds"] == {"count": 0, "okay": "true"}
    # A second run keeps the first file.
    before = path.read_text()
    done = program(*arguments)
    assert f"# Writing JSON output to {path}.0" in done.stdout
    assert path.read_text() == before


def test_the_environment_in_the_json_holds_no_secret(program: Program, tmp_path: Path) -> None:
    path = tmp_path / "run.json"
    environment = {"NCCL_SECRET": "hidden-1", "MY_PASSWORD": "hidden-2", "NCCL_DEBUG": "WARN"}
    assert program("bench", "all_reduce", *QUICK, "-J", str(path), env=environment).returncode == 0
    assert "hidden" not in path.read_text()
    assert "NCCL_DEBUG=WARN" in json.loads(path.read_text())["env"]


@pytest.mark.parametrize("suffix", ["svg", "png"])
def test_bench_plot(program: Program, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"run.{suffix}"
    done = program("bench", "all_gather", *QUICK, "--plot", str(path))
    assert done.returncode == 0, done.stderr
    if suffix == "svg":
        text = path.read_text()
        assert "all_gather over 2 ranks" in text
        assert "KiB" in text
        assert "in place" in text
    else:
        assert path.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("bench",), "OP"),
        (("bench", "all_mend"), 'unknown operation "all_mend"'),
        (("bench", "all_reduce", "-b", "8Q"), '-b "8Q" is not a size'),
        (("bench", "all_reduce", "-b", "-8"), "is not a size"),
        (("bench", "all_reduce", "-b", "16", "-e", "8"), "larger than"),
        (("bench", "all_reduce", "-n", "0"), "-n 0"),
        (("bench", "all_reduce", "-d", "quad"), 'unknown type "quad"'),
        (("bench", "all_reduce", "-o", "median"), 'unknown operator "median"'),
        (("bench", "all_reduce", "-G", "1"), "needs CUDA"),
        (("bench", "all_reduce", "-g", "0"), "-g 0"),
        (("bench", "all_reduce", "-I", "2"), "-I 2"),
        (("bench", "all_reduce", "-K", "1"), "-I 1"),
        (("bench", "all_reduce", "-I", "1", "-K", "20"), "-K 20"),
        (("bench", "all_reduce", "-u", "-1"), "-u -1"),
        (("bench", "all_reduce", "-z", "4"), "-z 4"),
        (("bench", "all_reduce", "-J", "x.txt"), ".json"),
        (("bench", "all_reduce", "-J", "/nonexistent/x.json"), "cannot write into"),
        (("bench", "all_reduce", "--plot", "x.gif"), ".svg"),
        (("bench", "all_reduce", "--ranks", "0"), "--ranks 0"),
        (("bench", "broadcast", "-r", "2"), "-r 2: there are 2 ranks"),
        (("bench", "all_reduce", "--set", "SLOTS"), "NAME=VALUE"),
        (("bench", "all_reduce", "--set", "NO_SUCH=1"), "NO_SUCH"),
        (("--set", "SLOTS=1", "config"), "SLOTS"),
        (("config", "--set", "ALGORITHM=zigzag"), 'unknown algorithm "zigzag"'),
        (("config", "--set", "ALGORITHM=all_mend=ring"), 'unknown operation "all_mend"'),
        (("schedule", "show", "/nonexistent"), "No such file"),
        (("schedule", "make", "all_reduce", "--algorithm", "zigzag"), "zigzag"),
        (("schedule", "make"), "which operation"),
        (("weave",), "weave"),
    ],
)
def test_a_wrong_command_line(program: Program, arguments: tuple[str, ...], reason: str) -> None:
    done = program(*arguments)
    assert done.returncode == 2, (done.stdout, done.stderr)
    assert reason in done.stderr


@pytest.mark.parametrize(
    ("arguments", "imported"),
    [
        (["config"], {"config"}),
        (["--set", "DEBUG=NONE", "--set=ALGORITHM=ring", "schedule", "-h"], {"schedule"}),
        (["--set", "config", "topo"], {"topo"}),
        (["--help", "config"], set(cli.COMMANDS)),
        (["confi"], set(cli.COMMANDS)),
        ([], set(cli.COMMANDS)),
    ],
)
def test_only_the_called_command_is_imported(arguments: list[str], imported: set[str]) -> None:
    modules = {name: f"ropewalk.cli.{place.module}" for name, place in cli.COMMANDS.items()}
    main = "import sys; from ropewalk import cli\ntry: cli.main()\nfinally: print('', *sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", main, *arguments],
        capture_output=True,
        text=True,
        timeout=DEADLINE_SECONDS,
        check=False,
    )
    there = done.stdout.rpartition("\n ")[2].split()
    assert {name for name, module in modules.items() if module in there} == imported


def test_help_of_every_command_teaches_by_example(program: Program) -> None:
    for command in (
        (),
        ("bench",),
        ("config",),
        ("schedule",),
        ("schedule", "make"),
        ("schedule", "show"),
        ("schedule", "check"),
        ("schedule", "draw"),
    ):
        for flag in ("-h", "--help"):
            done = program(*command, flag)
            assert done.returncode == 0
            assert "Examples:" in done.stdout
            assert f"ropewalk {' '.join(command)}".strip() in done.stdout


def test_version(program: Program) -> None:
    assert re.fullmatch(r"ropewalk \d+\.\d+\.\d+\n", program("--version").stdout)


# ---- ranks as processes


LONG = ("bench", "all_reduce", "--ranks", "3", "-b", "8", "-e", "8", "-n", "1000", "-N", "1000000")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_no_rank_outlives_the_parent(number: signal.Signals) -> None:
    assert len(end_with(number, *LONG)) == 3


def test_a_killed_rank_is_named() -> None:
    pid, said = kill_rank(1, *LONG)
    assert f"rank 1 (process {pid}) was killed by SIGKILL" in said


def test_a_rank_killed_before_it_joins_is_not_waited_for() -> None:
    # Run as a program of its own: forking this one, with its threads, would not be the real thing.
    program = """
import os, signal, sys, time
from ropewalk.cli import launch

def prepare():
    # In a child, the list holds those that were started before it: as many as its rank.
    if len(started) == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)

started = []
fork = os.fork
def noted_fork():
    pid = fork()
    if pid != 0:
        started.append(pid)
    return pid
os.fork = noted_fork
write = os.write
def slow_write(end, data):
    # Rank 0 is slow between the ids that it hands out: the others have read theirs by then.
    wrote = write(end, data)
    time.sleep(0.3)
    return wrote
os.write = slow_write
sys.exit(launch.run_local(3, lambda comm: 0, prepare=prepare, pinned=False))
"""
    for killed in ("0", "2"):
        done = subprocess.run(
            [sys.executable, "-c", program, killed],
            capture_output=True,
            text=True,
            timeout=DEADLINE_SECONDS,
            env={**os.environ, "ROPEWALK_TIMEOUT": "1h"},
        )
        assert done.returncode == 128 + signal.SIGKILL, done.stderr
        assert f"rank {killed} (process " in done.stderr
        assert "was killed by SIGKILL" in done.stderr
        if killed == "2":  # without rank 0 there is no unique id, so none of the others waits
            assert "ending rank 0, 1: rank 2 ended before it had joined" in done.stderr
            assert "joining as rank" not in done.stderr


def test_a_launcher_needs_no_flag(tmp_path: Path) -> None:
    """Two processes with torchrun's environment are two ranks; rank 0 alone prints."""
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    ranks = []
    for rank in range(2):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": "2",
            "LOCAL_RANK": str(rank),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": port,
        }
        ranks.append(
            subprocess.Popen(
                [sys.executable, "-m", "ropewalk", "bench", "all_reduce", *QUICK],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        )
    outputs = [rank.communicate(timeout=DEADLINE_SECONDS) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0], outputs
    assert len(rows(outputs[0][0])) == 3
    assert outputs[1][0] == ""


def test_ranks_under_a_launcher(program: Program) -> None:
    arguments = ("bench", "all_reduce", "--ranks", "2", *QUICK)
    done = program(*arguments, env={"SLURM_PROCID": "0", "SLURM_NTASKS": "4"})
    assert done.returncode == 2
    assert "a launcher started 4 ranks already" in done.stderr
    # The shell of a batch job of one task.
    done = program(*arguments, env={"SLURM_PROCID": "0", "SLURM_NTASKS": "1"})
    assert done.returncode == 0
    assert done.stdout.count("#  Rank ") == 2


def test_a_terminal_gets_a_progress_bar_and_a_pipe_none() -> None:
    terminal, end = pty.openpty()
    running = subprocess.Popen(
        [sys.executable, "-m", "ropewalk", "bench", "all_reduce", *QUICK],
        stdout=subprocess.PIPE,
        stderr=end,
        text=True,
        env={**os.environ, "TERM": "xterm", "COLUMNS": "100"},
    )
    os.close(end)
    shown = b""
    try:
        while piece := os.read(terminal, 4096):
            shown += piece
    except OSError:  # the terminal's other end was closed
        pass
    assert running.stdout is not None
    table = running.stdout.read()
    assert running.wait(DEADLINE_SECONDS) == 0
    assert b"3/3" in shown or b"2/3" in shown
    assert "\x1b" not in table
    assert len(rows(table)) == 3
    os.close(terminal)


# ---- schedules


def make(program: Program, *arguments: str) -> str:
    done = program("schedule", "make", *arguments)
    assert done.returncode == 0, done.stderr
    return str(done.stdout)


def test_schedule_make_check_show_draw(program: Program, tmp_path: Path) -> None:
    text = make(program, "all_reduce", "--ranks", "4", "--algorithm", "ring")
    assert text.startswith("ropewalk-schedule 1\n")
    file = tmp_path / "ring.txt"
    file.write_text(text)

    checked = program("schedule", "check", str(file))
    assert checked.returncode == 0
    assert checked.stdout.startswith("accepted")

    shown = program("schedule", "show", str(file))
    assert shown.returncode == 0
    assert "\x1b" not in shown.stdout
    assert "rank 3" in shown.stdout
    assert "combine" in shown.stdout

    drawn = program("schedule", "draw", "-", input=text)
    assert drawn.returncode == 0
    import xml.etree.ElementTree as ElementTree

    root = ElementTree.fromstring(drawn.stdout)
    titles = [node.text or "" for node in root.iter("{http://www.w3.org/2000/svg}title")]
    messages = [title for title in titles if re.match(r"block \d+: rank \d to rank \d", title)]
    assert len(messages) == 4 * 6


def test_schedule_check_refuses_and_says_why(program: Program) -> None:
    text = make(program, "all_reduce", "--ranks", "3", "--algorithm", "ring")
    broken = re.sub(r" \+ in =>", " =>", text, count=1)
    assert broken != text
    done = program("schedule", "check", "-", input=broken)
    assert done.returncode == 1
    assert done.stdout.startswith("refused\n")
    assert "rank" in done.stdout
    report = json.loads(program("schedule", "check", "--json", "-", input=broken).stdout)
    assert report["accepted"] is False
    assert report["defects"]


def test_schedule_check_of_other_text(program: Program) -> None:
    done = program("schedule", "check", "-", input="ropewalk-schedule 1\ncollective nonsense\n")
    assert done.returncode == 2
    assert "line 2" in done.stderr


@pytest.mark.thorough
def test_every_algorithm_can_be_drawn(program: Program) -> None:
    listed = program("schedule", "make", "--list").stdout.splitlines()
    assert len(listed) >= 9
    for line in listed:
        name, collectives = line.split("\t")[:2]
        given = ["--algorithm", name, "--ranks", "4", "--hosts", "2"]
        text = make(program, collectives.split(",")[0], *given)
        assert program("schedule", "draw", "-", input=text).returncode == 0


@pytest.mark.thorough
def test_schedules_for_hosts(program: Program) -> None:
    listed = dict(
        line.split("\t")[:2] for line in program("schedule", "make", "--list").stdout.splitlines()
    )
    assert listed["hierarchical"] == "all_reduce,all_gather,reduce_scatter,broadcast,reduce"
    for collective in listed["hierarchical"].split(","):
        given = [collective, "--ranks", "6", "--algorithm", "hierarchical"]
        for hosts in ("2", "3", "4", "0,1,0,1,1,0", "0,0,0,0,1,1", "0,1,2,0,0,0"):
            text = make(program, *given, "--hosts", hosts)
            done = program("schedule", "check", "-", input=text)
            assert done.returncode == 0, done.stdout
        assert make(program, *given, "--hosts", "2") == make(
            program, *given, "--hosts", "0,0,0,1,1,1"
        )
        for refused in ([], ["--hosts", "1"], ["--hosts", "6"]):
            done = program("schedule", "make", *given, *refused)
            assert done.returncode == 2
            assert "it needs at least two hosts" in done.stderr
    # Rings go around each host first, as those of communicators do.
    ring = ["all_gather", "--ranks", "4", "--algorithm", "ring"]
    assert make(program, *ring, "--hosts", "2") == make(program, *ring)
    links = {
        (link["source"], link["destination"])
        for link in json.loads(
            program(
                *("schedule", "check", "-", "--json"),
                input=make(program, *ring, "--hosts", "0,1,0,1"),
            ).stdout
        )["links"]
    }
    assert sum(source % 2 != destination % 2 for source, destination in links) == 2


@pytest.mark.parametrize(
    ("hosts", "why"),
    [
        ("two", "write 2, or the host of each rank"),
        ("0", "must be 1 to 4"),
        ("5", "must be 1 to 4"),
        ("0,1", "2 hosts for 4 ranks"),
        ("0,0,7,7", "numbered from 0"),
    ],
)
def test_refused_hosts(program: Program, hosts: str, why: str) -> None:
    done = program("schedule", "make", "all_reduce", "--ranks", "4", "--hosts", hosts)
    assert done.returncode == 2
    assert why in " ".join(done.stderr.split())


# ---- settings


def test_config(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "ropewalk.conf"
    file.write_text("SLOTS=16\n")
    environment = {"ROPEWALK_CONF_FILE": str(file), "ROPEWALK_TIMEOUT": "30s"}
    done = program("--set", "CHANNELS=3", "config", "--json", env=environment)
    assert done.returncode == 0, done.stderr
    table = {row["name"].removeprefix("ROPEWALK_"): row for row in json.loads(done.stdout)}
    assert (table["SLOTS"]["value"], table["SLOTS"]["source"]) == ("16", f"file {file}:1")
    assert (table["TIMEOUT"]["value"], table["TIMEOUT"]["source"]) == ("30s", "environment")
    assert (table["CHANNELS"]["value"], table["CHANNELS"]["source"]) == ("3", "command line")
    assert table["ALGORITHM"]["source"] == "default"
    plain = program("config").stdout
    assert "\x1b" not in plain
    assert len(plain.splitlines()) == len(table)


def test_a_wrong_setting_of_the_environment(program: Program) -> None:
    done = program("config", env={"ROPEWALK_ALGORITHM": "all_reduce=zigzag"})
    assert done.returncode == 2
    assert 'ROPEWALK_ALGORITHM: unknown algorithm "zigzag"' in done.stderr


@pytest.mark.parametrize(("warmup", "iterations", "each"), [(3, 2, 1), (0, 1, 4)])
def test_bench_runs_as_many_operations_as_it_is_told(
    program: Program, warmup: int, iterations: int, each: int
) -> None:
    told = ["-w", str(warmup), "-n", str(iterations), "-m", str(each)]
    words = ["bench", "all_reduce", "--ranks", "2", "-b", "8", "-e", "8", "-c", "0", *told]
    trace = {"ROPEWALK_DEBUG": "TRACE", "ROPEWALK_DEBUG_SUBSYS": "COLL", "ROPEWALK_TUNE": "0"}
    done = program(*words, env=trace)
    ran = re.findall(r"rank [01] of 2: all_reduce of 2 float32", done.stdout + done.stderr)
    # Out of place and in place, on both ranks; each warm-up is an iteration, too.
    assert len(ran) == 2 * 2 * (warmup + iterations) * each, done.stdout


def test_config_tuning(program: Program, tmp_path: Path) -> None:
    done = program("--set", f"TUNING_FILE={tmp_path}/t.json", "config", "--tuning", "--ranks", "3")
    assert done.returncode == 0, done.stderr
    assert "all_reduce" in json.loads(done.stdout)["choices"]


def test_choices_know_whether_ranks_copy_once(program: Program) -> None:
    for single_copy, some in [("auto", True), ("off", False)]:
        # By the built-in constants: a machine's own may say that copying once never pays.
        words = ["--set", "TUNE=0", "--set", f"SINGLE_COPY={single_copy}"]
        done = program(*words, "config", "--tuning", "--ranks", "3")
        assert done.returncode == 0, done.stderr
        choices = json.loads(done.stdout)["choices"]
        by_address = [row["address_chunk_bytes"] for rows in choices.values() for row in rows]
        assert any(by_address) is some
