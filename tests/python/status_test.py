"""`ropewalk status` and `ropewalk serve`: jobs that run, asked from outside of their processes."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

import pytest
from ropewalk.calls import collect, prometheus, ras, ras_events, verdict
from ropewalk.calls import status as asking
from ropewalk.calls.records import Report, Reports
from running import free_port

SECONDS = 120

# Rank 2 comes late to the fifth collective: when it may go on.
PROGRAM = """
import pathlib, sys, time
import numpy as np
import ropewalk

go = pathlib.Path(sys.argv[1])
with ropewalk.init() as comm:
    data = np.ones(8, dtype="float32")
    for _ in range(4):
        comm.all_reduce(data)
    if comm.rank == 2:
        while not go.exists():
            time.sleep(0.02)
    comm.all_reduce(data, op="max")
"""


class Job:
    """Three ranks that run until `go()`."""

    def __init__(self, folder: Path, name: str, ras_port: int = 0) -> None:
        """`ras_port`: rank 0 answers there."""
        self._go = folder / "go"
        self.ranks = [
            subprocess.Popen(
                [sys.executable, "-c", PROGRAM, str(self._go)],
                env=os.environ
                | {
                    "ROPEWALK_RANK": str(rank),
                    "ROPEWALK_WORLD_SIZE": "3",
                    "ROPEWALK_RENDEZVOUS": f"local:{name}-{os.getpid()}",
                }
                | ({"ROPEWALK_RAS_PORT": str(ras_port)} if ras_port and rank == 0 else {}),
            )
            for rank in range(3)
        ]

    def go(self) -> None:
        self._go.touch()
        assert [rank.wait(timeout=SECONDS) for rank in self.ranks] == [0, 0, 0]

    def kill(self) -> None:
        for rank in self.ranks:
            rank.kill()
            rank.wait(timeout=SECONDS)

    def found(self) -> Reports:
        """Its communicator, when rank 2 is missing in collective 5."""
        pids = {rank.pid for rank in self.ranks}

        def look() -> Any:
            for each in asking.of_this_host(100, 30.0).communicators:
                mine = {report.process for report in each.by_rank.values()} == pids
                inside = [report for report in each.by_rank.values() if report.waiting is not None]
                if mine and len(inside) == 2:
                    return each
            return None

        found = wait_for(look)
        assert isinstance(found, Reports)
        return found


def wait_for(look: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + SECONDS
    while (found := look()) is None:
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return found


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Job]:
    made = Job(tmp_path_factory.mktemp("job"), "status")
    try:
        yield made
    finally:
        made.kill()


def ropewalk(*arguments: object) -> tuple[int, str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "ropewalk", *map(str, arguments)],
        capture_output=True, text=True, timeout=SECONDS, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout, done.stderr


# Processes of other tests, perhaps stopped ones, are asked as well.
SOON = ("--timeout", 4)


def test_the_missing_rank_is_named(job: Job) -> None:
    name = job.found().communicator
    status, out, err = ropewalk("status", "--job", name, *SOON)
    assert status == 1, err
    assert f"communicator {name}, 3 ranks" in out
    assert "all ranks completed collective 4" in out
    assert "ranks 0, 1 have in collective 5, all_reduce of 8 float32 (max)" in out
    assert "rank 2 has not entered it" in out
    assert "rank 0 has waited" in out
    status, out, _ = ropewalk("status", "--job", name[:6], "--json", *SOON)
    assert status == 1
    (document,) = json.loads(out)["communicators"]
    assert document["absent"] == [2]
    assert set(document["waits"]) == {"0", "1"}
    status, out, _ = ropewalk("status", "--job", "not-hexadecimal", *SOON)
    # A process of another test that is stopped now might be of that job.
    assert status == 3 or "does not answer" in out


def test_hosts_are_asked_by_ssh(job: Job, tmp_path: Path) -> None:
    name = job.found().communicator
    ssh = tmp_path / "ssh"
    ssh.write_text(
        "#!/bin/sh\nwhile [ $# -gt 2 ]; do shift; done\n"
        '[ "$1" = far ] && { echo "Connection refused" >&2; exit 255; }\nexec sh -c "$2"\n'
    )
    ssh.chmod(0o755)
    hosts = tmp_path / "hosts"
    hosts.write_text("near\nfar\n")
    status, out, _ = ropewalk("status", "--hosts", hosts, "--ssh", ssh, "--job", name)
    assert status == 3
    assert "rank 2 has not entered it" in out
    assert "host far: Connection refused" in out


def test_a_stopped_process_is_told(job: Job) -> None:
    name = job.found().communicator
    stopped = job.ranks[2]
    stopped.send_signal(signal.SIGSTOP)
    try:
        status, out, _ = ropewalk("status", "--job", name, "--timeout", 2)
    finally:
        stopped.send_signal(signal.SIGCONT)
    assert status == 1
    assert f"process {stopped.pid} does not answer: it is stopped" in out
    assert "no answer of rank 2" in out


def test_others_names_are_not_believed() -> None:
    """Anybody may listen under such a name: the user who does must be the one in the name."""
    name = f"ropewalk-status-{os.geteuid() + 1}-1-{'0' * 16}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("\0" + name)
        server.listen()
        assert (name, os.geteuid() + 1, 1) in collect.endpoints()
        assert collect.ask(name, os.geteuid() + 1, 1, 5.0) is None


# ---- NCCL's RAS ----------------------------------------------------------------------------------


class Serving:
    """`ropewalk serve` with a port of its own choosing."""

    def __init__(self, flag: str, *more: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "ropewalk", "serve", flag, "0", *map(str, more)],
            stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.process.stderr is not None
        line = self.process.stderr.readline()
        self.port = int(line.partition("127.0.0.1:")[2].partition("/")[0])

    def __enter__(self) -> Serving:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.terminate()
        assert self.process.wait(timeout=SECONDS) == 0


def ask_ras(port: int, *lines: str) -> str:
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        connection.sendall("".join(lines).encode())
        parts = []
        while part := connection.recv(1 << 16):
            parts.append(part)
    return b"".join(parts).decode()


def test_ras_answers_as_nccls(job: Job) -> None:
    name = job.found().communicator
    with Serving("--ras") as serving:
        hello = ("client protocol 2\r\n", "TIMEOUT 5\n")
        text = ask_ras(serving.port, *hello, "VERBOSE STATUS\n")
        assert text.startswith("SERVER PROTOCOL 2\nOK\n")
        assert "Job summary\n===========\n" in text
        assert f"({name}) MISMATCH" in text
        assert "2 ranks have launched up to operation 5" in text
        assert "Rank 2 has launched up to operation 4 -- GPU 0 managed by process " in text
        answer = ask_ras(serving.port, *hello, "SET FORMAT json\n", "STATUS\n")
        document = json.loads(answer.partition("OK\nOK\n")[2])
        (communicator,) = [
            each for each in document["communicators"] if each["hash"] == f"0x{name}"
        ]
        assert communicator["missing_ranks_count"] == 0
        assert [each["collective_counts"]["AllReduce"] for each in communicator["ranks"]] == [
            5,
            5,
            4,
        ]
        assert ask_ras(serving.port, "what\n", "STATUS\n").startswith("ERROR: Unknown command")
        status, _, err = ropewalk("serve", "--ras", serving.port)
        assert status == 2
        assert "Address already in use" in err


@contextlib.contextmanager
def monitoring(port: int, *lines: str) -> Iterator[socket.socket]:
    """Yields a connection whose lines were all answered OK."""
    with socket.create_connection(("127.0.0.1", port), timeout=SECONDS) as connection:
        connection.sendall("".join(f"{line}\n" for line in lines).encode())
        answers = "OK\n" * len(lines)
        assert read_until(connection, answers) == answers
        yield connection


def read_until(connection: socket.socket, pattern: str) -> str:
    text = ""
    while not re.search(pattern, text):
        part = connection.recv(1 << 16)
        assert part, text
        text += part.decode()
    return text


def in_job_port(tmp_path: Path, name: str) -> tuple[Job, int]:
    """A job that answers by itself, and its port."""
    port = free_port()
    job = Job(tmp_path, name, port)

    def listens() -> Any:
        try:
            return ask_ras(port, "STATUS\n") or None
        except OSError:
            return None

    try:
        wait_for(listens)
        job.found()
    except BaseException:
        job.kill()
        raise
    return job, port


def test_who_monitors_a_job_is_told_of_a_death(tmp_path: Path) -> None:
    job, port = in_job_port(tmp_path, "monitored")
    try:
        with (
            Serving("--ras") as serving,
            monitoring(port, "MONITOR") as text,
            monitoring(port, "SET FORMAT json", "monitor all") as document,
            monitoring(serving.port, "MONITOR lifecycle,trace") as outside,
        ):
            time.sleep(1.5)  # they learn who the ranks are
            victim = job.ranks[2].pid
            job.ranks[2].kill()
            words = rf"\[\S+ \S+\] PEER_DEAD: Process {victim} on node .* rank 2 of communicator .*"
            assert re.fullmatch(words, read_until(text, "\n").strip())
            events = parsed(read_until(document, r'"PEER_DEAD"[^}]*}[^}]*}\n'))
            (death,) = [each for each in events if each["event"] == "PEER_DEAD"]
            assert death["group"] == "LIFECYCLE"
            assert death["peer"]["pid"] == victim
            # The others end by the error; asked from outside, they may be gone before a look.
            seen = read_until(outside, f"Process {victim} on node")
            assert "PEER_DEAD" in seen or "PEER_DISCONNECTED" in seen
    finally:
        job.kill()


def parsed(text: str) -> list[Any]:
    """JSON documents one after the other."""
    decoder = json.JSONDecoder()
    found = []
    while text := text.lstrip():
        document, end = decoder.raw_decode(text)
        found.append(document)
        text = text[end:]
    return found


@pytest.mark.skipif(shutil.which("ncclras") is None, reason="no ncclras, which comes with NCCL")
def test_nvidias_client_reads_it(tmp_path: Path) -> None:
    job, port = in_job_port(tmp_path, "ncclras")

    def ncclras(*arguments: str) -> str:
        done = subprocess.run(
            ["ncclras", "-p", str(port), *arguments],
            capture_output=True, text=True, timeout=SECONDS, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    try:
        assert "Job summary" in ncclras()
        assert "2 ranks have launched up to operation 5" in ncclras("-v")
        assert json.loads(ncclras("-f", "json"))["communicators"][0]["ranks_count"] == 3
        with subprocess.Popen(
            ["ncclras", "-p", str(port), "--monitor=all"], stdout=subprocess.PIPE, text=True
        ) as monitor:
            assert monitor.stdout is not None
            late = threading.Timer(SECONDS, monitor.kill)
            late.start()
            time.sleep(1.5)
            victim = job.ranks[1].pid
            job.ranks[1].kill()
            expected = f"PEER_DEAD: Process {victim} on node"
            assert any(expected in line for line in monitor.stdout)
            job.kill()
            assert monitor.wait(timeout=SECONDS) == 0  # it has seen the job's end
            late.cancel()
    finally:
        job.kill()


def test_events_follow_from_looks() -> None:
    def found(*reports: Report, silent: tuple[int, ...] = ()) -> asking.Found:
        by_name: dict[str, dict[int, Report]] = {}
        for report in reports:
            by_name.setdefault(report.communicator, {})[report.rank] = report
        every = [Reports(name, 3, ranks) for name, ranks in by_name.items()]
        return asking.Found(every, [(None, number) for number in silent])

    def names(events: list[ras_events.Event]) -> list[str]:
        return [f"{each.name} {each.process.number}" for each in events]

    watch = ras_events.Watch()
    ranks = [report_of(rank, 3) for rank in range(3)]
    assert watch.look(found(*ranks[:2])) == []
    assert names(watch.look(found(*ranks))) == ["PEER_NEW 12"]
    assert names(watch.look(found(*ranks[:2], silent=(12, 99)))) == ["PEER_UNRESPONSIVE 12"]
    assert names(watch.look(found(*ranks[:2], silent=(12,)))) == []
    assert names(watch.look(found(*ranks))) == ["PEER_RECOVERED 12"]
    broken = report_of(0, 3, failure="rank 1 was lost: it was killed")
    assert names(watch.look(found(broken))) == ["PEER_DEAD 11", "PEER_DISCONNECTED 12"]
    assert names(watch.look(found())) == ["PEER_DISCONNECTED 10"]
    (event,) = watch.look(found(ranks[0]))
    assert event.as_text().endswith("] PEER_NEW: Process 10 on node h managing no GPU\n")
    assert json.loads(event.as_json())["peer"]["host"] == "h"


def test_what_monitor_names_is_checked() -> None:
    session = ras.Session()
    assert session.answer("monitor lifecycle,gossip", None)[0].startswith("ERROR: Invalid event")
    assert session.monitors == set()
    assert session.answer("MONITOR trace", None) == ("OK\n", False)
    event = ras_events.Event(ras_events.LIFECYCLE, "PEER_NEW", ras_events.Process("h", 1), "")
    assert session.told([event]) == ""
    session.answer("monitor", None)
    assert "PEER_NEW: Process 1 on node h" in session.told([event])


def report_of(rank: int, calls: int, **more: Any) -> Report:
    records = [
        {
            "id": i + 1, "call": i + 1, "operation": "all_reduce", "count": 256, "type": "float32",
            "op": "sum", "root": None, "peer": None, "algorithm": None, "memory": "host",
            "state": "completed", "scheduled_ns": 10, "started_ns": 10, "completed_ns": 2_000_010,
        }
        for i in range(calls)
    ]  # fmt: skip
    fields = {
        "communicator": "ab", "rank": rank, "ranks": 2, "host": "h", "process": 10 + rank,
        "written_ns": 0, "begun": calls, "failure": None, "records": records,
    }  # fmt: skip
    return Report(**{**fields, **more})


def test_ranks_that_run_are_not_called_absent() -> None:
    def at(calls: int, **more: Any) -> Reports:
        return Reports("ab", 2, {0: report_of(0, 5, **more), 1: report_of(1, calls)})

    assert verdict.judge(at(3)).absent == [1]
    assert verdict.settled(None, at(3)).absent == []
    assert verdict.settled(verdict.judge(at(2)), at(3)).absent == []  # it has gone on
    assert verdict.settled(verdict.judge(at(3)), at(3)).absent == [1]
    waiting = {"for": [1], "in": "all_reduce", "seconds": 0.2}
    assert verdict.settled(None, at(3, waiting=waiting)).absent == [1]


def test_a_link_over_which_nothing_comes_is_named() -> None:
    def waits(rank: int, *peers: int) -> Report:
        report = report_of(rank, 3, waiting={"for": list(peers), "in": "x", "seconds": 1.5})
        report.records[-1] |= {"state": "started", "completed_ns": None}
        return dataclasses.replace(report, ranks=3)

    # 0 waits for 2, which waits for 1; 1 and 2 wait for each other alone.
    ranks = {0: waits(0, 2), 1: waits(1, 2), 2: waits(2, 1)}
    judged = verdict.judge(Reports("ab", 3, ranks))
    assert [(each.source, each.target) for each in judged.still_links] == [(2, 1), (1, 2)]
    assert "nothing has come from rank 1 to rank 2 for 1.5 s" in judged.words()


def on_gpu(rank: int, state: str, **more: Any) -> Report:
    """Of two collectives the second is in this state on the GPU."""
    report = report_of(rank, 2)
    for record in report.records:
        record |= {"memory": "GPU", "timed": True}
    times: dict[str, Any] = {"started_ns": None, "completed_ns": None}
    if state != "scheduled":
        times["started_ns"] = 20
    report.records[-1] |= {"state": state, **times, **more}
    return report


def test_a_gpu_that_has_not_begun_is_named() -> None:
    def judged(*states: str, **more: Any) -> verdict.Verdict:
        ranks = {rank: on_gpu(rank, state, **more) for rank, state in enumerate(states)}
        return verdict.judge(Reports("ab", len(states), ranks))

    late = judged("started", "scheduled")
    assert (late.inside, late.enqueued, late.absent) == ([0], [1], [])
    assert "rank 1 has enqueued it, and not begun it on the GPU" in late.words()
    # Nobody waits yet; and where a GPU notes nothing, nobody is known to.
    queued = judged("scheduled", "scheduled")
    assert (queued.under_way, queued.enqueued, queued.last_completed) == (None, [], 1)
    assert judged("scheduled", "scheduled", timed=False).under_way is None
    both = judged("started", "started")
    assert (both.inside, both.enqueued) == ([0, 1], [])
    # Ranks that run are asked twice.
    reports = Reports("ab", 2, {0: on_gpu(0, "started"), 1: on_gpu(1, "scheduled")})
    assert verdict.settled(None, reports).enqueued == []
    assert verdict.settled(late, reports).enqueued == [1]


def test_ras_tells_of_ranks_without_an_answer() -> None:
    found = asking.Found([Reports("ab", 2, {0: report_of(0, 3)})])
    assert "Missing 1 rank\n  Rank 1 does not respond" in ras.as_text(found, 0.0, verbose=False)
    (communicator,) = ras.as_json(found, 0.0)["communicators"]
    assert communicator["missing_ranks"][0]["rank"] == 1


# ---- Prometheus ----------------------------------------------------------------------------------


def values_of(text: str) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """By the Prometheus client's own parser."""
    parser = pytest.importorskip("prometheus_client.parser")
    found: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in parser.text_string_to_metric_families(text):
        assert family.documentation
        for sample in family.samples:
            labels = tuple(sorted(sample.labels.items()))
            assert labels not in found.setdefault(sample.name, {}), "twice"
            found[sample.name][labels] = sample.value
    return found


def test_counters_go_on() -> None:
    metrics = prometheus.Metrics()
    metrics.update(asking.Found([Reports("ab", 2, {0: report_of(0, 2), 1: report_of(1, 3)})]))
    later = report_of(1, 7)
    # Of 4 to 7 the records of 4 and 5 are gone, and 7 is under way.
    later = report_of(1, 7, records=[*later.records[5:6], {**later.records[6], "state": "started"}])
    metrics.update(asking.Found([Reports("ab", 2, {0: report_of(0, 2), 1: later})]))
    found = values_of(metrics.text())
    of_0 = (("communicator", "ab"), ("operation", "all_reduce"), ("rank", "0"))
    of_1 = (("communicator", "ab"), ("operation", "all_reduce"), ("rank", "1"))
    assert found["ropewalk_calls_total"] == {of_0: 2, of_1: 4}
    assert found["ropewalk_bytes_total"][of_1] == 4 * 1024
    assert found["ropewalk_calls_unseen_total"][(("communicator", "ab"), ("rank", "1"))] == 2
    assert found["ropewalk_call_seconds_count"][of_1] == 4
    assert found["ropewalk_call_seconds_sum"][of_1] == pytest.approx(0.008)
    below = found["ropewalk_call_seconds_bucket"]
    assert below[(("communicator", "ab"), ("le", "0.001"), *of_1[1:])] == 0
    assert below[(("communicator", "ab"), ("le", "0.01"), *of_1[1:])] == 4
    # When it is completed it counts, once.
    metrics.update(asking.Found([Reports("ab", 2, {1: report_of(1, 7)})]))
    metrics.update(asking.Found([Reports("ab", 2, {1: report_of(1, 7)})]))
    assert values_of(metrics.text())["ropewalk_calls_total"] == {of_1: 5}


def test_metrics_have_the_bytes_of_links() -> None:
    report = report_of(0, 1, links=[{"to": 1, "over": "tcp eth0", "bytes": 4096}])
    metrics = prometheus.Metrics()
    metrics.update(asking.Found([Reports("ab", 2, {0: report})]))
    labels = (("communicator", "ab"), ("link", "tcp eth0"), ("peer", "1"), ("rank", "0"))
    assert values_of(metrics.text())["ropewalk_link_bytes_total"] == {labels: 4096}


def test_operations_on_gpus_count_when_they_end() -> None:
    metrics = prometheus.Metrics()
    metrics.update(asking.Found([Reports("ab", 1, {0: on_gpu(0, "started")})]))
    (calls,) = values_of(metrics.text())["ropewalk_calls_total"].values()
    assert calls == 1
    metrics.update(asking.Found([Reports("ab", 1, {0: on_gpu(0, "scheduled", timed=False)})]))
    (calls,) = values_of(metrics.text())["ropewalk_calls_total"].values()
    assert calls == 2


def test_a_job_serves_its_own_ports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ras_port, metrics_port = free_port(), free_port()
    monkeypatch.setenv("ROPEWALK_RAS_PORT", str(ras_port))
    monkeypatch.setenv("ROPEWALK_METRICS_PORT", str(metrics_port))
    job = Job(tmp_path, "own-ports")
    try:
        text = ""
        deadline = time.monotonic() + SECONDS
        while "MISMATCH" not in text and time.monotonic() < deadline:
            with contextlib.suppress(ConnectionError):
                text = ask_ras(ras_port, "CLIENT PROTOCOL 2\n", "STATUS\n")
            time.sleep(0.05)
        assert "2 ranks have launched up to operation 5" in text
        assert "Rank 2 has launched up to operation 4 -- GPU 0 managed by process " in text
        where = f"http://127.0.0.1:{metrics_port}/metrics"
        with urllib.request.urlopen(where, timeout=SECONDS) as answer:
            found = values_of(answer.read().decode())
        (name,) = {dict(labels)["communicator"] for labels in found["ropewalk_ranks"]}
        absent = found["ropewalk_rank_absent"]
        assert [absent[(("communicator", name), ("rank", str(r)))] for r in range(3)] == [0, 0, 1]
        begun = found["ropewalk_calls_begun_total"]
        of_2 = (("communicator", name), ("operation", "all_reduce"), ("rank", "2"))
        assert begun[of_2] == 4
        assert sum(found["ropewalk_link_bytes_total"].values()) > 0
    finally:
        job.go()


def test_metrics_of_a_job_are_served(job: Job, tmp_path: Path) -> None:
    name = job.found().communicator
    file = tmp_path / "ropewalk.prom"
    with Serving("--metrics", "--textfile", file, "--interval", 0.2) as serving:
        where = f"http://127.0.0.1:{serving.port}"
        with urllib.request.urlopen(f"{where}/metrics", timeout=SECONDS) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            found = values_of(answer.read().decode())
        assert found["ropewalk_ranks"][(("communicator", name),)] == 3
        absent = found["ropewalk_rank_absent"]
        assert [absent[(("communicator", name), ("rank", str(r)))] for r in range(3)] == [0, 0, 1]
        with pytest.raises(urllib.error.HTTPError):
            urllib.request.urlopen(f"{where}/other", timeout=SECONDS)
        wait_for(lambda: True if file.exists() else None)
        assert values_of(file.read_text())["ropewalk_ranks"][(("communicator", name),)] == 3


def test_serving_ends_with_its_command() -> None:
    status, out, _ = ropewalk("serve", "--ras", 0, "--", "sh", "-c", "echo ran; exit 4")
    assert (status, out) == (4, "ran\n")
    assert ropewalk("serve", "--", "true")[0] == 2


def test_a_textfile_that_cannot_be_written_is_told() -> None:
    status, _, err = ropewalk("serve", "--textfile", "/no/such/folder/x.prom", "--", "sleep", "0.1")
    assert status == 0
    assert "/no/such/folder/x.prom: No such file or directory" in err


def test_records_of_a_running_job_are_taken(job: Job, tmp_path: Path) -> None:
    name = job.found().communicator
    out = tmp_path / "now.json"
    status, text, err = ropewalk("calls", "--running", "--job", name, "--perfetto", out)
    assert status in (0, 1), err
    assert f"communicator {name}, 3 ranks" in text
    events = json.loads(out.read_text())["traceEvents"]
    assert {event["pid"] for event in events if event["ph"] == "X"} == {0, 1, 2}
    assert ropewalk("calls", "--running", "--job", "no such")[0] == 3
    for arguments in ((), ("--running", out)):
        status, _, err = ropewalk("calls", *arguments)
        assert status == 2
        assert "give the files of all ranks, or --running" in err


def test_the_job_goes_on(job: Job) -> None:
    """The last test: nobody who asked has harmed it."""
    job.go()
    assert all(
        report.process not in {rank.pid for rank in job.ranks}
        for each in asking.of_this_host(1, 5.0).communicators
        for report in each.by_rank.values()
    )
