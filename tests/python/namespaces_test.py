"""`ropewalk launch`, `status` and `trace` on hosts that are network namespaces, by real sshd."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ssh_server import Namespaces

SECONDS = 120


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Namespaces]:
    reason = Namespaces.why_not()
    if reason is not None:
        pytest.skip(reason)
    with Namespaces(tmp_path_factory.mktemp("namespaces"), 2) as made:
        yield made


def program(network: Namespaces, command: str) -> list[str]:
    ssh = f"ssh -F {network.configuration}"
    return [sys.executable, "-m", "ropewalk", command, "--ssh", ssh]


def start(network: Namespaces, command: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*network.within(), *program(network, command), *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip


def run(network: Namespaces, command: str, *arguments: object) -> tuple[int, str, str]:
    process = start(network, command, *arguments)
    out, err = process.communicate(timeout=SECONDS)
    return process.returncode, out, err


def hosts_file(folder: Path, text: str = "a slots=2\nb\n") -> Path:
    path = folder / "hosts.txt"
    path.write_text(text)
    return path


def needed_by_ranks() -> list[str]:
    names = ("PYTHONPATH", "ROPEWALK_LIBRARY", "LD_LIBRARY_PATH")
    return [word for name in names if name in os.environ for word in ("--env", name)]


MEETS = """
import os, sys, time, pathlib
import numpy, ropewalk
with ropewalk.init() as comm:
    data = numpy.full(1 << 18, comm.rank + 1.0)
    comm.all_reduce(data)
    print(int(data[0]), os.environ["ROPEWALK_RENDEZVOUS"].rpartition(":")[0], flush=True)
    while len(sys.argv) > 1 and not pathlib.Path(sys.argv[1]).exists():
        comm.all_reduce(data)
        time.sleep(0.01)
        if comm.rank == 2 and pathlib.Path(sys.argv[1] + ".late").exists():
            while not pathlib.Path(sys.argv[1]).exists():
                time.sleep(0.01)
        comm.barrier()
    comm.barrier()
"""


def test_ranks_of_two_hosts_meet_over_their_network(network: Namespaces, tmp_path: Path) -> None:
    before = network.sent("b")
    status, out, err = run(
        network, "launch", "--hosts", hosts_file(tmp_path), *needed_by_ranks(),
        "--env", "ROPEWALK_NET=tcp", "--env", "ROPEWALK_LINKS=network",
        "--", sys.executable, "-c", MEETS,
    )  # fmt: skip
    assert status == 0, err
    assert sorted(out.splitlines()) == [f"[{rank}] 6 tcp://10.233.9.1" for rank in range(3)]
    assert network.sent("b") - before > 8 << 18  # its data went there


def test_hosts_that_are_not_there_are_told(network: Namespaces, tmp_path: Path) -> None:
    path = hosts_file(tmp_path, "a\n10.233.9.77\n")
    status, _, err = run(
        network, "launch", "--hosts", path, "--connect-timeout", 10, "--", "sleep", "600"
    )
    assert status == 255
    assert "host 10.233.9.77: ssh: connect to host 10.233.9.77" in err
    assert "Traceback" not in err


def test_ctrl_c_and_errors_end_ranks_of_both_hosts(network: Namespaces, tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    pids.mkdir()
    script = f"echo $$ >{pids}/$RANK; exec sleep 600"
    process = start(network, "launch", "--hosts", hosts_file(tmp_path), "--", "sh", "-c", script)
    numbers = wait_for_pids(pids, 3)
    # `ip netns exec` becomes the launcher.
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=SECONDS)
    assert process.returncode == 130, err
    wait_until_gone(numbers)
    status, _, err = run(
        network, "launch", "--hosts", hosts_file(tmp_path), "--grace", 1, "--",
        "sh", "-c", f"rm {pids}/$RANK; [ $RANK = 2 ] && exit 9; {script}",
    )  # fmt: skip
    assert status == 9
    assert "rank 2 on b ended with status 9" in err
    wait_until_gone([int(each.read_text()) for each in pids.iterdir()])


def wait_for_pids(folder: Path, count: int) -> list[int]:
    deadline = time.monotonic() + SECONDS
    while True:
        texts = [each.read_text() for each in folder.iterdir()]
        if len(texts) == count and all(text.endswith("\n") for text in texts):
            return [int(text) for text in texts]
        assert time.monotonic() < deadline
        time.sleep(0.02)


def wait_until_gone(numbers: list[int]) -> None:
    deadline = time.monotonic() + SECONDS
    for number in numbers:
        stat = Path(f"/proc/{number}/stat")
        while stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z":
            assert time.monotonic() < deadline, f"process {number} is still there"
            time.sleep(0.02)


def test_a_job_of_two_hosts_is_asked_and_traced(network: Namespaces, tmp_path: Path) -> None:
    path, go, out = hosts_file(tmp_path), tmp_path / "go", tmp_path / "run.json"
    traced = start(
        network, "trace", "--hosts", path, "-o", out, "--interval", 0.1, "--",
        *program(network, "launch"), "--hosts", path, *needed_by_ranks(),
        "--env", "ROPEWALK_TRACE_FILE", "--env", "ROPEWALK_TRACE_RECORDS",
        "--", sys.executable, "-c", MEETS, str(go),
    )  # fmt: skip
    try:
        assert traced.stdout is not None
        for _ in range(3):
            assert " 6 tcp://" in traced.stdout.readline()
        time.sleep(0.5)
        Path(f"{go}.late").touch()
        verdict: dict[str, Any] = {}
        deadline = time.monotonic() + SECONDS
        while verdict.get("absent") != [2] and time.monotonic() < deadline:
            _, said, err = run(network, "status", "--hosts", path, "--json")
            (verdict,) = json.loads(said)["communicators"]
        assert verdict["absent"] == [2], verdict
        assert verdict["ranks"] == 3
        assert verdict["without_file"] == []
    finally:
        go.touch()
        _, err = traced.communicate(timeout=SECONDS)
    assert traced.returncode == 0, err
    assert "samples of 3 hosts" in err, err
    events = json.loads(out.read_text())["traceEvents"]
    loads = [event for event in events if event["name"] == "CPU (%)"]
    assert len({event["pid"] for event in loads}) == 3
    # The hosts share a clock: what the exchanges found of it must not move them apart.
    ends = {event["pid"]: event["ts"] for event in loads}
    assert max(ends.values()) - min(ends.values()) < 2e6
    calls = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in calls} == {0, 1, 2}
    assert all(0 < event["ts"] < max(ends.values()) + 2e6 for event in calls)
