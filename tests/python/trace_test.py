"""`ropewalk trace`: what it samples, its files, and that it never harms what it traces."""

from __future__ import annotations

import csv
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ropewalk.cli.command_beside import run_beside
from ropewalk.launching.hosts import Host
from ropewalk.trace import sampler
from ropewalk.trace.recording import HOST_PROCESS, Recording
from ropewalk.trace.series import MOST, Series
from ropewalk.trace.source import Sample, Source

SECONDS = 120


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "ropewalk", "trace", *map(str, arguments)]


def trace(*arguments: object, **more: Any) -> tuple[int, str, str]:
    done = subprocess.run(
        command(*arguments), capture_output=True, text=True, timeout=SECONDS, check=False, **more
    )
    return done.returncode, done.stdout, done.stderr


# ---- what is sampled ---------------------------------------------------------------------------


def made_host(folder: Path) -> Path:
    """A root with one interface and one RDMA port."""
    (folder / "proc/net").mkdir(parents=True)
    (folder / "proc/stat").write_text("cpu  100 0 50 800 50 0 0 0 0 0\ncpu0 1 2 3\n")
    (folder / "proc/meminfo").write_text(
        "MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  400 kB\n"
    )
    write_interfaces(folder, 1000, 2000)
    counters = folder / "sys/class/infiniband/mlx5_0/ports/1/counters"
    counters.mkdir(parents=True)
    (counters / "port_xmit_data").write_text("100\n")
    (counters / "port_rcv_data").write_text("200\n")
    return folder


def write_interfaces(root: Path, received: int, sent: int) -> None:
    (root / "proc/net/dev").write_text(
        "Inter-|   Receive  |  Transmit\n face |bytes ...|bytes ...\n"
        f"  eth0: {received} 1 0 0 0 0 0 0 {sent} 1 0 0 0 0 0 0\n"
    )


def test_counters_become_rates(tmp_path: Path) -> None:
    root = made_host(tmp_path)
    host = sampler.Host(str(root))
    assert host.describe()["memory"] == 1000 * 1024
    assert host.describe()["rdma"] == ["mlx5_0/1"]
    (root / "proc/stat").write_text("cpu  130 0 60 830 80 0 0 0 0 0\n")
    write_interfaces(root, 3000, 7000)
    counters = root / "sys/class/infiniband/mlx5_0/ports/1/counters"
    (counters / "port_xmit_data").write_text("1100\n")  # words of 4 bytes
    (counters / "port_rcv_data").write_text("150\n")  # it was reset
    before = host._before[0][0]
    line = host.sample()
    seconds = (line["t"] - before) / 1e9
    assert line["cpu"] == pytest.approx(40 / 100)
    assert line["mem"] == 600 * 1024
    sent, received = line["net"]["eth0"]
    assert sent * seconds == pytest.approx(5000, rel=1e-3)
    assert received * seconds == pytest.approx(2000, rel=1e-3)
    assert line["rdma"] == {}
    (counters / "port_xmit_data").write_text("2100\n")
    (counters / "port_rcv_data").write_text("650\n")
    before = host._before[0][0]
    line = host.sample()
    seconds = (line["t"] - before) / 1e9
    assert [seconds * rate for rate in line["rdma"]["mlx5_0/1"]] == pytest.approx(
        [4000, 2000], rel=1e-3
    )


def test_gpus_are_sampled_by_nvml(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Path(os.environ.get("RW_BUILD_DIR", "build/release"), "tests/libstand_in_nvml.so")
    if not library.exists():
        pytest.skip(f"{library} is not built")
    monkeypatch.setenv("RW_NVML", str(library.absolute()))
    monkeypatch.setattr(sampler.Sparing, "SHARE", 1e9)  # every time
    host = sampler.Host(str(made_host(tmp_path)))
    assert host.describe()["gpus"] == ["Stand-in H100"] * 2
    before = host._before[0][0]
    line = host.sample()
    seconds = (line["t"] - before) / 1e9
    first, second = line["gpu"]
    assert (first["busy"], second["busy"]) == (0.25, 0.5)
    assert second["memory"] == 2 << 30
    assert host.describe()["gpu_memories"] == [80 << 30] * 2
    assert [rate * seconds for rate in first["nvlink"]] == pytest.approx(
        [1 << 20, 2 << 20], rel=1e-3
    )
    assert [rate * seconds for rate in first["pcie"]] == pytest.approx([3e6, 4e6], rel=1e-3)


def test_links_of_gpus_are_read_as_often_as_their_cost_allows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    turns = sampler.Sparing()
    assert turns.due(7)
    turns.took(1_000_000, 0.004)  # a second for 0.4% of a core
    assert not turns.due(1_000_999_999)
    assert turns.due(1_001_000_000)

    library = Path(os.environ.get("RW_BUILD_DIR", "build/release"), "tests/libstand_in_nvml.so")
    if not library.exists():
        pytest.skip(f"{library} is not built")
    monkeypatch.setenv("RW_NVML", str(library.absolute()))
    monkeypatch.setattr(sampler.Sparing, "SHARE", 1e-9)
    host = sampler.Host(str(made_host(tmp_path)))
    for gpu in host.sample()["gpu"]:
        assert set(gpu) == {"busy", "memory"}


def test_drivers_without_counters_are_asked_as_often_as_their_cost_allows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = []

    class Nvml:
        def nvmlDeviceGetPcieThroughput(self, *arguments: Any) -> int:  # noqa: N802
            asked.append(arguments[1])
            until = time.thread_time() + 0.002
            while time.thread_time() < until:
                pass
            return 0

    gpus = sampler.Gpus("libnot-there.so.1")
    gpus._nvml = Nvml()  # type: ignore[assignment]
    gpus._handles = [ctypes.c_void_p()]
    monkeypatch.setattr(sampler.Sparing, "SHARE", 1e-9)
    thread = threading.Thread(target=gpus._measure_pcie, daemon=True)
    thread.start()
    deadline = time.monotonic() + SECONDS
    while len(gpus._pcie) < 2 and time.monotonic() < deadline:
        time.sleep(0.02)
    assert set(gpus._pcie) == {(0, 0), (0, 1)}
    time.sleep(0.3)
    assert asked == [0, 1]


def test_a_host_without_gpus_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RW_NVML", "libnot-there.so.1")
    host = sampler.Host(str(made_host(tmp_path)))
    assert host.describe()["gpus"] == []
    assert host.sample()["gpu"] == []


# ---- files -------------------------------------------------------------------------------------


def source_of(name: str, offset_ns: int = 0) -> Source:
    source = Source.__new__(Source)
    source.host = Host(name)
    source.offset_ns = offset_ns
    source.description = {
        "host": name, "memory": 1000, "cpus": 2, "rdma": [], "gpus": [],
        "gpu_memories": [1000],
    }  # fmt: skip
    return source


def sample_at(t_ns: int, r_ns: int, cpu: float = 0.5) -> Sample:
    return {
        "t": t_ns, "r": r_ns, "cpu": cpu, "mem": 500, "net": {"eth0": [10, 20]}, "rdma": {},
        "gpu": [], "own": 0.001,
    }  # fmt: skip


def test_hosts_are_on_one_clock(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "a.json", tmp_path / "a.csv", 1_000_000_000, 5_000_000_000)
    here, there = source_of("here"), source_of("there", 700_000_000)
    for each in (here, there):
        recording.describe(each)
    recording.add(here, sample_at(2_000_000_000, 6_000_000_000))
    recording.add(there, sample_at(1_300_000_000, 9_000_000_000))  # its clocks are others
    # A call that began when that host's clock showed so:
    assert recording.at("there", 8_900_000_000) == pytest.approx(900_000_000)
    assert recording.at("here", 5_900_000_000) == pytest.approx(900_000_000)
    recording.close()
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    busy = [event for event in events if event["name"] == "CPU (%)"]
    assert [event["pid"] for event in busy] == [HOST_PROCESS, HOST_PROCESS + 1]
    assert [event["ts"] for event in busy] == [1_000_000, 1_000_000]
    rows = list(csv.DictReader((tmp_path / "a.csv").open()))
    assert [row["value"] for row in rows if row["quantity"] == "net_sent"] == ["10", "10"]
    assert {row["host"] for row in rows} == {"here", "there"}


def test_hosts_that_have_one_name_are_told_apart(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "a.json", None, 0, 0)
    one, two = source_of("vm"), source_of("vm", 500)
    two.host = Host("far")
    for at, each in enumerate((one, two), 1):
        recording.describe(each)
        recording.describe(each)
        recording.add(each, sample_at(at, at, cpu=at / 4))
    recording.close()
    assert recording.alike == [("vm", "vm (far)")]
    assert [recording.averages(name)["processors"] for name in recording.series] == [0.25, 0.5]
    assert recording.jumps == []
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    shown = [event["args"]["name"] for event in events if event["name"] == "process_name"]
    assert shown[0] == "host vm"
    assert shown[-1] == "host vm (far)"


def test_clocks_that_are_set_are_told(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "a.json", None, 0, 0)
    source = source_of("here")
    recording.describe(source)
    recording.add(source, sample_at(1_000_000_000, 101_000_000_000))
    recording.add(source, sample_at(2_000_000_000, 102_010_000_000))  # it is corrected
    assert recording.jumps == []
    recording.add(source, sample_at(3_000_000_000, 99_000_000_000))
    ((host, seconds, jump),) = recording.jumps
    assert (host, seconds) == ("here", 3.0)
    assert jump == pytest.approx(-4.01)
    # Samples keep their times, and calls have those of the clock as it was set.
    assert recording.at("here", 98_500_000_000) == pytest.approx(2_500_000_000)
    recording.close()


def test_averages_are_parts_of_what_is_there(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "a.json", None, 0, 0)
    source = source_of("here")
    recording.describe(source)
    for i, busy in enumerate((0.25, 0.75)):
        sample = sample_at(i + 1, i + 1, busy)
        sample["gpu"] = [{"busy": busy / 2, "memory": 100}]
        recording.add(source, sample)
    recording.close()
    assert recording.averages("here") == pytest.approx(
        {"processors": 0.5, "memory": 0.5, "GPUs": 0.25, "GPU memory": 0.1}
    )


def test_pictures_have_no_more_points_than_are_seen() -> None:
    series = Series()
    for i in range(10 * MOST):
        series.add(float(i), float(i % 2))
    assert len(series.seconds) <= MOST
    assert set(series.values[1:]) == {0.5}
    assert series.seconds == sorted(series.seconds)


def test_spans_that_overlap_count_once() -> None:
    from ropewalk.trace.picture import shares

    found = shares([(0.0, 1.0), (0.5, 1.0), (2.0, 2.5), (2.0, 2.25)], 4.0, 4)
    assert np.allclose(found, [1.0, 0.0, 0.5, 0.0])
    assert not shares([], 4.0, 4).any()


# ---- the command ---------------------------------------------------------------------------------

JOB = """
import time
import numpy, ropewalk
with ropewalk.init() as comm:
    data = numpy.ones(1024, dtype="float32")
    end = time.monotonic() + 0.6
    for _ in range(30):
        comm.all_reduce(data)
        time.sleep(0.02)
"""


LONG_JOB = JOB.replace("range(30)", "range(150)")


def test_a_job_is_traced_with_its_collectives(tmp_path: Path) -> None:
    out, table, picture = (tmp_path / name for name in ("run.json", "run.csv", "run.svg"))
    launch = [sys.executable, "-m", "ropewalk", "launch", "-n", "2", "--"]
    status, _, err = trace(
        "-o", out, "--csv", table, "--plot", picture, "--interval", 0.05,
        "--", *launch, sys.executable, "-c", JOB,
    )  # fmt: skip
    assert status == 0, err
    assert "of a core" in err
    document = json.loads(out.read_text())
    events = document["traceEvents"]
    samples = [event["ts"] for event in events if event["name"] == "CPU (%)"]
    assert len(samples) > 5
    calls = [event for event in events if event["ph"] == "X"]
    assert len([event for event in calls if event["name"] == "all_reduce"]) == 60
    assert {event["pid"] for event in calls} == {0, 1}
    # On one time: within what was sampled.
    assert all(0 < event["ts"] < max(samples) + 1e6 for event in calls)
    assert "rank" in picture.read_text()
    assert table.read_text().count("\n") > 10
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run.csv", "run.json", "run.svg"]


def test_perfetto_reads_it(tmp_path: Path) -> None:
    processor = pytest.importorskip("perfetto.trace_processor")
    out = tmp_path / "run.json"
    assert trace("-o", out, "--interval", 0.05, "--", "sleep", "0.5")[0] == 0
    try:
        config = processor.TraceProcessorConfig(bin_path=os.environ.get("TRACE_PROCESSOR_SHELL"))
        shell = processor.TraceProcessor(trace=str(out), config=config)
    except Exception as error:  # its program is fetched at first use
        pytest.skip(f"Perfetto's trace processor does not start: {error}")
    with shell:
        rows = shell.query(
            "select count(*) as n from counter join counter_track on track_id = counter_track.id "
            "where name like 'CPU (%'"
        )
        assert next(iter(rows)).n > 2


@pytest.mark.parametrize(
    ("program", "status"),
    [
        (("sh", "-c", "exit 7"), 7),
        (("sh", "-c", "kill -s KILL $$"), 137),
        (("/no/such/program",), 127),
        (("/dev/null",), 126),
    ],
)
def test_the_status_is_the_commands(tmp_path: Path, program: tuple[str, ...], status: int) -> None:
    out = tmp_path / "run.json"
    got, _, err = trace("-o", out, "--", *program)
    assert got == status, err
    json.loads(out.read_text())
    assert [path.name for path in tmp_path.iterdir()] == ["run.json"]


def test_a_full_disk_ends_the_trace_alone() -> None:
    status, out, err = trace(
        "-o",
        "/dev/full",
        "--no-calls",
        "--interval",
        0.02,
        "--",
        "sh",
        "-c",
        "sleep 0.3; echo done",
    )
    assert (status, out) == (0, "done\n"), err
    assert "/dev/full: No space left on device" in err
    assert err.count("No space left") == 1


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 64 KiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)]
    made = subprocess.run(mount, capture_output=True, text=True, check=False)
    if made.returncode != 0:
        pytest.skip(f"no file system can be mounted: {made.stderr.strip()}")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_disk_that_becomes_full_leaves_what_there_was_room_for(small_disk: Path) -> None:
    out = small_disk / "run.json"
    launch = [sys.executable, "-m", "ropewalk", "launch", "-n", "2", "--"]
    status, _, err = trace(
        "-o", out, "--csv", small_disk / "run.csv", "--plot", small_disk / "run.svg",
        "--interval", 0.01, "--", *launch, sys.executable, "-c", LONG_JOB,
    )  # fmt: skip
    assert status == 0, err
    assert err.count("the trace ends here, and the command runs on") == 1
    assert "Traceback" not in err
    events = json.loads(out.read_text())["traceEvents"]
    assert len([event for event in events if event["name"] == "CPU (%)"]) > 5
    rows = list(csv.DictReader((small_disk / "run.csv").open()))
    assert all(row["unit"] for row in rows)


def test_a_file_that_cannot_be_made_is_told_before(tmp_path: Path) -> None:
    status, out, err = trace("-o", tmp_path / "none/run.json", "--", "echo", "ran")
    assert (status, out) == (2, "")
    assert "No such file or directory" in err


def test_a_trace_cut_short_keeps_whole_events(tmp_path: Path) -> None:
    recording = Recording(tmp_path / "a.json", None, 0, 0)
    source = source_of("here")
    recording.describe(source)
    recording.add(source, sample_at(1, 1))
    whole = recording._trace._whole
    os.write(recording._trace._file.fileno(), b',\n{"ph":"C","na')  # half of one
    recording._trace.error = OSError(28, "No space left on device")
    recording.add(source, sample_at(2, 2))
    recording.close()
    assert (tmp_path / "a.json").read_bytes()[:whole].endswith(b"}")
    events = json.loads((tmp_path / "a.json").read_text())["traceEvents"]
    assert len([event for event in events if event["name"] == "CPU (%)"]) == 1


def test_signals_are_the_commands(tmp_path: Path) -> None:
    script = f"trap 'exit 5' TERM; echo $$ >{tmp_path}/pid; while :; do sleep 0.05; done"
    process = subprocess.Popen(
        command("-o", tmp_path / "run.json", "--", "sh", "-c", script), stderr=subprocess.PIPE
    )
    deadline = time.monotonic() + SECONDS
    while not (tmp_path / "pid").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 5, err
    json.loads((tmp_path / "run.json").read_text())


def test_signals_that_come_while_the_command_starts_are_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    started = subprocess.Popen

    def slow(*arguments: Any, **options: Any) -> Any:
        process = started(*arguments, **options)
        os.kill(os.getpid(), signal.SIGTERM)  # before the caller knows the process
        return process

    monkeypatch.setattr("ropewalk.cli.command_beside.subprocess.Popen", slow)
    assert run_beside(["sleep", "60"]) == 128 + signal.SIGTERM


def test_hosts_that_cannot_be_sampled_are_told(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text("#!/bin/sh\necho 'ssh: connect to host far: Connection refused' >&2; exit 255\n")
    ssh.chmod(0o755)
    hosts = tmp_path / "hosts"
    hosts.write_text("localhost\nfar\n")
    status, out, err = trace(
        "--hosts", hosts, "--ssh", ssh, "-o", tmp_path / "run.json", "--", "echo", "ran"
    )
    assert (status, out) == (0, "ran\n")
    assert "host far is not traced any more: ssh: connect to host far: Connection refused" in err


def test_other_hosts_are_sampled_by_ssh(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\nfor last; do :; done\nexec sh -c "$last"\n')
    ssh.chmod(0o755)
    hosts = tmp_path / "hosts"
    hosts.write_text("far\n")
    out = tmp_path / "run.json"
    status, _, err = trace(
        "--hosts", hosts, "--ssh", ssh, "-o", out, "--interval", 0.05, "--", "sleep", "0.6"
    )
    assert status == 0, err
    events = json.loads(out.read_text())["traceEvents"]
    assert {event["pid"] for event in events} == {HOST_PROCESS, HOST_PROCESS + 1}


def test_under_a_launcher_one_rank_of_a_host_samples(tmp_path: Path) -> None:
    out = tmp_path / "run-%h.json"
    launched = {"LOCAL_WORLD_SIZE": "2", "WORLD_SIZE": "4"}
    status, said, err = trace(
        "-o", out, "--", "echo", "ran", env={**os.environ, **launched, "LOCAL_RANK": "1"}
    )
    assert (status, said, err) == (0, "ran\n", "")
    assert list(tmp_path.iterdir()) == []
    first = {**os.environ, **launched, "LOCAL_RANK": "0"}
    assert trace("-o", out, "--", "echo", "ran", env=first)[:2] == (0, "ran\n")
    assert [path.suffix for path in tmp_path.iterdir()] == [".json"]
    status, _, err = trace("-o", tmp_path / "run.json", "--", "echo", "ran", env=first)
    assert status == 2
    assert "needs %h" in err
