"""NCCL's profiler plugin, driven as NCCL drives it, by versions 1 to 6 of the interface.

Layouts of the descriptors are written down here once more, from NCCL's profiler_v1.h to
profiler_v6.h, by field.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ropewalk.calls import collect, load, perfetto, prometheus, verdict
from ropewalk.calls import status as asking
from thorough import thorough_but

SECONDS = 60

ROOT = Path(__file__).parents[2]
# A relative folder is the repository's, whatever the working directory of the driver's process is.
LIBRARY = (
    ROOT / os.environ.get("RW_BUILD_DIR", "build/release") / "libnccl-profiler-ropewalk.so"
).resolve()
pytestmark = pytest.mark.skipif(not LIBRARY.exists(), reason=f"{LIBRARY} is not built")

COLLECTIVE, MESSAGE, PROXY_OPERATION, KERNEL = 1 << 1, 1 << 2, 1 << 3, 1 << 6
KERNEL_STOP = 22
COMMUNICATOR = 0x1234ABCD5678EF00
# Bytes of a descriptor, and offsets: communicator, func, count, type, root or peer, algorithm,
# protocol.
SIZES = {1: 120, 2: 128, 3: 120, 4: 104, 5: 112, 6: 112}
COLLECTIVES = {
    1: (32, 48, 72, 84, 80, 106, 107),
    2: (32, 48, 72, 88, 80, 112, 120),
    3: (32, 48, 72, 88, 80, 104, 112),
    **dict.fromkeys((4, 5, 6), (None, 32, 56, 72, 64, 88, 96)),
}
MESSAGES = {
    **dict.fromkeys((1, 2, 3), (32, 40, 64, 56, 72)),
    **dict.fromkeys((4, 5, 6), (None, 24, 48, 40, 56)),
}
FUNCTIONS = {"Broadcast": 0, "AllReduce": 4, "Send": 6}  # of version 1
TYPES = {"ncclFloat32": 7}


class Driver:
    """What NCCL does with one communicator of one rank."""

    def __init__(self, library: ctypes.CDLL, version: int, rank: int, ranks: int) -> None:
        words = (ctypes.c_size_t * 6).in_dll(library, f"ncclProfiler_v{version}")
        assert ctypes.string_at(words[0]) == b"Ropewalk"
        pointer, number = ctypes.c_void_p, ctypes.c_int
        out, mask = ctypes.POINTER(pointer), ctypes.POINTER(number)
        self._start = ctypes.CFUNCTYPE(number, pointer, out, pointer)(words[2])
        self._stop = ctypes.CFUNCTYPE(number, pointer)(words[3])
        self._state = ctypes.CFUNCTYPE(number, pointer, number, pointer)(words[4])
        self._finalize = ctypes.CFUNCTYPE(number, pointer)(words[5])
        self._version, self._rank = version, rank
        self._texts: list[Any] = []
        self.context, self.mask = pointer(), number(-1)
        address = words[1]
        about = (b"name", 1, ranks, rank, None)
        if version <= 3:
            result = ctypes.CFUNCTYPE(number, out, mask)(address)(
                ctypes.byref(self.context), ctypes.byref(self.mask)
            )
        elif version == 4:
            kinds: tuple[Any, ...] = (
                *(out, mask, ctypes.c_char_p, ctypes.c_uint64),
                *(number, number, number, pointer),
            )
            result = ctypes.CFUNCTYPE(number, *kinds)(address)(
                ctypes.byref(self.context), ctypes.byref(self.mask), about[0], COMMUNICATOR,
                *about[1:],
            )  # fmt: skip
        else:
            kinds = (out, ctypes.c_uint64, mask, ctypes.c_char_p, number, number, number, pointer)
            result = ctypes.CFUNCTYPE(number, *kinds)(address)(
                ctypes.byref(self.context), COMMUNICATOR, ctypes.byref(self.mask), *about
            )
        assert result == 0

    def event(self, kind: int, parent: Any = None, **fields: Any) -> ctypes.c_void_p:
        raw = bytearray(SIZES[self._version])
        struct.pack_into("<B" if self._version <= 4 else "<Q", raw, 0, kind)
        struct.pack_into("<Q", raw, 8, parent.value if parent is not None else 0)
        struct.pack_into("<i", raw, 16, self._rank)
        if kind in (COLLECTIVE, MESSAGE):
            self._fill(raw, COLLECTIVES if kind == COLLECTIVE else MESSAGES, fields)
        elif kind == KERNEL:
            struct.pack_into("<B", raw, 24, fields["channel"])
            if self._version >= 4:
                struct.pack_into("<Q", raw, 32, fields["gpu_ns"])
        handle = ctypes.c_void_p(1)
        data = (ctypes.c_char * len(raw)).from_buffer(raw)
        assert self._start(self.context, ctypes.byref(handle), ctypes.addressof(data)) == 0
        return handle

    def _fill(self, raw: bytearray, layouts: dict[int, Any], fields: dict[str, Any]) -> None:
        communicator, function, count, type_, place, *how = layouts[self._version]
        if communicator is not None:
            struct.pack_into("<Q", raw, communicator, COMMUNICATOR)
        struct.pack_into("<Q", raw, count, fields["count"])
        struct.pack_into("<i", raw, place, fields.get("root", fields.get("peer", 0)))
        texts = [(function, fields["func"], FUNCTIONS), (type_, "ncclFloat32", TYPES)]
        if how:
            texts += [(how[0], "RING", {"RING": 1}), (how[1], "LL128", {"LL128": 1})]
        for offset, text, numbers in texts:
            if self._version == 1:
                struct.pack_into("<B", raw, offset, numbers[text])
            else:
                self._texts.append(ctypes.create_string_buffer(text.encode()))
                struct.pack_into("<Q", raw, offset, ctypes.addressof(self._texts[-1]))

    def stop(self, event: ctypes.c_void_p) -> None:
        assert self._stop(event) == 0

    def kernel(self, parent: ctypes.c_void_p, begin_ns: int, end_ns: int) -> None:
        """Two channels, on the GPU's clock."""
        channels = [self.event(KERNEL, parent, channel=c, gpu_ns=begin_ns + c) for c in (0, 1)]
        for channel in channels:
            stamp = struct.pack("<Q", end_ns)
            assert self._state(channel, KERNEL_STOP, stamp) == 0
            self.stop(channel)

    def finalize(self) -> None:
        assert self._finalize(self.context) == 0


PROGRAM = "import sys; from profiler_plugin_test import run; run(int(sys.argv[1]))"


def run(version: int) -> None:
    """Two ranks; rank 1 does not enter the third collective."""
    library = ctypes.CDLL(str(LIBRARY), mode=2)  # RTLD_NOW, local
    ranks = [Driver(library, version, rank, 2) for rank in range(2)]
    for rank, driver in enumerate(ranks):
        assert driver.mask.value == COLLECTIVE | MESSAGE | PROXY_OPERATION | KERNEL
        broadcast = driver.event(COLLECTIVE, func="Broadcast", count=5, root=1)
        driver.stop(broadcast)
        driver.kernel(broadcast, 1_000_000, 1_500_000)
        # Its kernel starts and ends before the network does.
        reduce = driver.event(COLLECTIVE, func="AllReduce", count=1024)
        driver.stop(reduce)
        proxy = driver.event(PROXY_OPERATION, reduce)
        driver.kernel(reduce, 2_000_000, 2_100_000)
        driver.stop(proxy)
        if rank == 0:
            message = driver.event(MESSAGE, func="Send", count=7, peer=1)
            driver.stop(message)
            driver.kernel(message, 3_000_000, 3_100_000)
            third = driver.event(COLLECTIVE, func="AllReduce", count=2048)
            driver.stop(third)
            hanging = driver.event(KERNEL, third, channel=0, gpu_ns=4_000_000)
        # A kind that was not asked for, an event without parent, and none at all.
        assert driver.event(1 << 5).value is None
        assert driver.event(KERNEL, channel=0, gpu_ns=1).value is None
        driver.stop(ctypes.c_void_p())
        driver.finalize()
    ranks[0].stop(hanging)  # after the communicator's end


@pytest.mark.parametrize("version", range(1, 7))
def test_records_of_nccls_operations(version: int, tmp_path: Path) -> None:
    folder = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(version)],
        env={**os.environ, "ROPEWALK_TRACE_FILE": str(tmp_path / "calls-%r-%c.json")},
        cwd=folder, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    name = f"{COMMUNICATOR:016x}"
    files = [tmp_path / f"calls-{rank}-{name}.json" for rank in range(2)]
    assert sorted(tmp_path.iterdir()) == files
    (reports,) = load(files)
    assert (reports.communicator, reports.ranks) == (name, 2)
    broadcast, reduce, message, third = reports.by_rank[0].records
    assert [broadcast[key] for key in ("operation", "count", "type", "root", "call")] == [
        "broadcast", 5, "float32", 1, 1,
    ]  # fmt: skip
    assert (reduce["algorithm"], reduce["protocol"]) == ("ring", "ll128")
    assert (reduce["root"], reduce["state"]) == (None, "completed")
    assert [message[key] for key in ("operation", "peer", "call", "count")] == ["send", 1, None, 7]
    assert (third["state"], third["completed_ns"]) == ("started", None)
    if version >= 4:  # by the GPU's clock, unless it was scheduled later than so long ago
        assert broadcast["completed_ns"] - broadcast["started_ns"] <= 500_000
    judged = verdict.judge(reports)
    assert judged.last_completed == 2
    assert judged.absent == [1]
    assert judged.under_way == "collective 3, all_reduce of 2048 float32"
    events = perfetto.trace_of([reports])["traceEvents"]
    assert len([event for event in events if event["ph"] == "X"]) == 6


ASKED = """
import os, signal, sys, time
from pathlib import Path
from profiler_plugin_test import Driver, COLLECTIVE, LIBRARY
import ctypes
library = ctypes.CDLL(str(LIBRARY), mode=2)
version, go = int(sys.argv[1]), Path(sys.argv[2])
ranks = [Driver(library, version, rank, 2) for rank in range(2)]
for rank, driver in enumerate(ranks):
    for count in (16, 1024)[: 2 - rank]:
        operation = driver.event(COLLECTIVE, func="AllReduce", count=count)
        driver.stop(operation)
        driver.kernel(operation, 1_000_000, 1_500_000)
print("ready", flush=True)
while not go.exists():
    time.sleep(0.02)
for driver in ranks:
    driver.finalize()
print("left", flush=True)
sys.stdin.read()
"""


def run_asked(version: int, folder: Path, **settings: str) -> subprocess.Popen[str]:
    """Two ranks of one process, of which rank 1 has not entered the second collective."""
    job = subprocess.Popen(
        [sys.executable, "-c", ASKED, str(version), str(folder / "go")],
        env={**os.environ, **settings},
        cwd=Path(__file__).parent, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert job.stdout is not None
    assert job.stdout.readline() == "ready\n"
    return job


def end(job: subprocess.Popen[str], folder: Path) -> None:
    """It finalizes its communicators, after which nobody can ask it, and ends."""
    assert job.stdin is not None
    assert job.stdout is not None
    (folder / "go").touch()
    assert job.stdout.readline() == "left\n"
    deadline = time.monotonic() + SECONDS
    while named_endpoints(job.pid):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    job.stdin.close()
    assert job.wait(timeout=SECONDS) == 0


def named_endpoints(process: int) -> list[str]:
    return [name for name, _, pid in collect.endpoints() if pid == process]


@pytest.mark.parametrize("version", thorough_but([1, 6], 6))
def test_a_job_of_nccl_that_runs_is_asked(version: int, tmp_path: Path) -> None:
    job = run_asked(version, tmp_path)
    try:
        (reports,) = (
            each
            for each in asking.of_this_host(8, 10.0).communicators
            if 0 in each.by_rank and each.by_rank[0].process == job.pid
        )
        assert reports.communicator == f"{COMMUNICATOR:016x}"
        judged = verdict.judge(reports)
        assert (judged.last_completed, judged.absent) == (1, [1])
        assert judged.under_way == "collective 2, all_reduce of 1024 float32"
        done = subprocess.run(
            [sys.executable, "-m", "ropewalk", "status", "--job", reports.communicator],
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 1, done.stderr
        assert "rank 1 has not entered it" in done.stdout
        metrics = prometheus.Metrics()
        metrics.update(asking.Found([reports]))
        labels = f'{{communicator="{reports.communicator}",rank="0",operation="all_reduce"}}'
        assert f"ropewalk_calls_total{labels} 2" in metrics.text()
        (newest,) = (
            each
            for each in asking.of_this_host(1, 10.0).communicators
            if 0 in each.by_rank and each.by_rank[0].process == job.pid
        )
        assert [len(report.records) for report in newest.by_rank.values()] == [1, 1]
    finally:
        end(job, tmp_path)


def test_records_are_written_at_a_signal(tmp_path: Path) -> None:
    job = run_asked(
        6, tmp_path, ROPEWALK_TRACE_FILE=str(tmp_path / "%r.json"), ROPEWALK_TRACE_SIGNAL="USR2"
    )
    try:
        job.send_signal(signal.SIGUSR2)
        deadline = time.monotonic() + SECONDS
        while not all((tmp_path / f"{rank}.json").exists() for rank in range(2)):
            assert time.monotonic() < deadline
            time.sleep(0.02)
        (reports,) = load([tmp_path / "0.json", tmp_path / "1.json"])
        assert [report.begun for report in reports.by_rank.values()] == [2, 1]
    finally:
        end(job, tmp_path)


def test_records_of_a_program_that_does_not_finalize_are_written(tmp_path: Path) -> None:
    program = (
        "import ctypes, os, sys\n"
        "from profiler_plugin_test import Driver, COLLECTIVE, LIBRARY\n"
        "driver = Driver(ctypes.CDLL(str(LIBRARY), mode=2), 6, 0, 2)\n"
        "driver.stop(driver.event(COLLECTIVE, func='AllReduce', count=16))\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    sys.exit()\n"  # with the parent's records
        "os.waitpid(child, 0)\n"
        "path = os.environ['ROPEWALK_TRACE_FILE'].replace('%r', '0')\n"
        "print(os.path.exists(path))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "ROPEWALK_TRACE_FILE": str(tmp_path / "%r.json")},
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout == "False\n"
    (reports,) = load([tmp_path / "0.json"])
    assert reports.by_rank[0].begun == 1


def test_operations_of_nccl_lie_over_a_trace(tmp_path: Path) -> None:
    program = (
        "import ctypes\n"
        "from profiler_plugin_test import Driver, COLLECTIVE, LIBRARY\n"
        "for rank in range(2):\n"
        "    driver = Driver(ctypes.CDLL(str(LIBRARY), mode=2), 6, rank, 2)\n"
        "    operation = driver.event(COLLECTIVE, func='AllReduce', count=16)\n"
        "    driver.stop(operation)\n"
        "    driver.kernel(operation, 1_000_000, 1_500_000)\n"
    )
    out = tmp_path / "run.json"
    done = subprocess.run(
        [*(sys.executable, "-m", "ropewalk", "trace", "-o", str(out), "--interval", "0.05", "--"),
         *(sys.executable, "-c", program)],
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = json.loads(out.read_text())["traceEvents"]
    calls = [event for event in events if event["ph"] == "X"]
    assert [(each["name"], each["pid"]) for each in calls] == [("all_reduce", 0), ("all_reduce", 1)]
    assert all(each["dur"] > 0 for each in calls)


def test_nobody_is_asked_where_a_setting_says_so(tmp_path: Path) -> None:
    job = run_asked(6, tmp_path, ROPEWALK_TRACE_FILE=str(tmp_path / "%r.json"), ROPEWALK_STATUS="0")
    assert named_endpoints(job.pid) == []
    end(job, tmp_path)
    assert (tmp_path / "1.json").exists()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"ROPEWALK_STATUS": "0"}, "ROPEWALK_TRACE_FILE names no file"),
        ({"ROPEWALK_TRACE": "off"}, ""),
        # Told however little is logged.
        ({"ROPEWALK_NO_SUCH": "1"}, 'unknown setting "NO_SUCH"'),
    ],
)
def test_without_a_file_nothing_is_recorded(settings: dict[str, str], said: str) -> None:
    program = (
        "import ctypes\n"
        "from profiler_plugin_test import Driver, LIBRARY\n"
        "driver = Driver(ctypes.CDLL(str(LIBRARY), mode=2), 6, 0, 1)\n"
        "assert (driver.mask.value, driver.context.value) == (0, None)\n"
        "driver.finalize()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "ROPEWALK_DEBUG": "WARN", **settings},
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert said in done.stderr


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "6"],
        env={
            **os.environ,
            "ROPEWALK_DEBUG": "WARN",
            "ROPEWALK_TRACE_FILE": str(tmp_path / "none" / "%r.json"),
        },
        cwd=Path(__file__).parent, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "No such file or directory" in done.stderr


def test_reports_are_json(tmp_path: Path) -> None:
    """As comm/call_report.h has them: the fields that Ropewalk's own communicators write."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, "6"],
        env={**os.environ, "ROPEWALK_TRACE_FILE": str(tmp_path / "%r.json")},
        cwd=Path(__file__).parent, check=False,
    )  # fmt: skip
    assert done.returncode == 0
    document = json.loads((tmp_path / "1.json").read_text())
    assert set(document) == {
        *("schema", "version", "communicator", "rank", "ranks", "host", "process", "written_ns"),
        *("begun", "failure", "waiting", "records"),
    }
