"""Collectives by copy engines: right wherever copy engines make them, made by them where they
should be, and ended by a name when a rank does not do its part."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import launcher
import pytest

pytestmark = [
    pytest.mark.skipif(find_spec("torch") is None, reason="PyTorch is not installed"),
    pytest.mark.skipif(launcher.gpus() < 2, reason="needs 2 GPUs"),
    pytest.mark.skipif(not launcher.library().exists(), reason="libnccl.so.2 was not built"),
]
USAGE = 5  # ncclInvalidUsage
SIZES = [ranks for ranks in (2, 3, 4, 8) if ranks <= max(2, launcher.gpus())]


@pytest.fixture(autouse=True)
def _traced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "ROPEWALK_COPY_ENGINES": "on",
        "ROPEWALK_TRACE": "all",
        "ROPEWALK_TRACE_FILE": f"{tmp_path}/records-%r-%c",
        "CUDA_MODULE_LOADING": "EAGER",
    }.items():
        monkeypatch.setenv(name, value)


def run(part: str, ranks: int, may_fail: tuple[int, ...] = ()) -> list[str]:
    """@return what the ranks have printed"""
    ended = launcher.run(ranks, "copy_engines_rank.py", part)
    for one in ended:
        if one.rank not in may_fail:
            assert one.status == 0, f"rank {one.rank}:\n{one.output}"
            assert "all done" in one.output, f"rank {one.rank}:\n{one.output}"
    return [one.output for one in ended]


def by_engines(folder: Path, rank: int) -> int:
    """Calls of a rank that copy engines made, of all its communicators."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob(f"records-{rank}-*")):
        found += json.loads(path.read_text())["records"]
    assert found, "no records"
    return sum(record["algorithm"] == "copy_engines" for record in found)


HANDSHAKES = {"stream": "are memory operations of the stream", "kernel": "are kernels"}


def calls_of(output: str) -> int:
    return int(output.rpartition("calls: ")[2].split()[0])


@pytest.mark.parametrize("memory", ["cudaMalloc", "pages"])
@pytest.mark.parametrize("ranks", SIZES)
def test_every_operation(
    ranks: int, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROPEWALK_MEM_ALLOC", memory)
    for rank, output in enumerate(run("operations", ranks)):
        assert by_engines(tmp_path, rank) == calls_of(output)


@pytest.mark.parametrize("kind", HANDSHAKES)
def test_a_log_line_tells_what_handshakes_are(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_COPY_HANDSHAKES", kind)
    monkeypatch.setenv("ROPEWALK_DEBUG", "INFO")
    monkeypatch.setenv("ROPEWALK_DEBUG_SUBSYS", "INIT")
    for output in run("by_policy", 2):
        assert f"handshakes around copies {HANDSHAKES[kind]}" in output


def test_by_the_policy_of_a_communicator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ROPEWALK_COPY_ENGINES")
    for rank, output in enumerate(run("by_policy", 2)):
        assert by_engines(tmp_path, rank) == calls_of(output)


@pytest.mark.parametrize(("use", "long_ones"), [("off", False), ("auto", True)])
def test_short_ones_are_left_to_kernels(
    use: str, long_ones: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROPEWALK_COPY_ENGINES", use)
    calls = [calls_of(output) for output in run("operations", 2)]
    for rank, count in enumerate(calls):
        # Of the five counts one has 4 MiB and more, of two types of four.
        assert by_engines(tmp_path, rank) == (count // 10 if long_ones else 0)


def test_only_windows_that_are_promised_to_be_symmetric(tmp_path: Path) -> None:
    for rank, output in enumerate(run("not_symmetric", 2)):
        assert by_engines(tmp_path, rank) == calls_of(output)


def test_without_access_kernels_do_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROPEWALK_PEER_ACCESS", "0")
    run("operations", 2)
    assert by_engines(tmp_path, 0) == 0


@pytest.mark.parametrize("ranks", SIZES)
def test_a_thousand_calls_without_the_host(ranks: int, tmp_path: Path) -> None:
    run("repeated", ranks)
    assert by_engines(tmp_path, 0) == 1000


@pytest.mark.parametrize("memory", ["cudaMalloc", "pages"])
@pytest.mark.parametrize("part", ["graphs", "two_communicators"])
@pytest.mark.parametrize("ranks", SIZES[-1:])
def test_streams(ranks: int, part: str, memory: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_MEM_ALLOC", memory)
    run(part, ranks)


@pytest.mark.parametrize("memory", ["cudaMalloc", "pages"])
def test_all_gpus_in_one_thread(
    memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROPEWALK_MEM_ALLOC", memory)
    [one] = launcher.run(1, "copy_engines_one_thread.py")
    assert one.status == 0 and "all done" in one.output, one.output
    for rank in range(launcher.gpus()):
        assert by_engines(tmp_path, rank) == calls_of(one.output)


@pytest.mark.parametrize("ranks", SIZES)
def test_a_killed_rank(ranks: int) -> None:
    run("killed", ranks, may_fail=(1,))


@pytest.mark.parametrize("part", ["timeout", "aborted"])
def test_a_rank_that_does_not_call(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if part == "timeout":
        monkeypatch.setenv("ROPEWALK_TIMEOUT", "15s")
    run(part, 2)


@pytest.mark.parametrize("part", ["other_call", "other_buffer", "other_place"])
@pytest.mark.parametrize("ranks", SIZES[-1:])
def test_calls_that_differ(part: str, ranks: int) -> None:
    outputs = run(part, ranks)
    assert any(f": {USAGE}: " in output for output in outputs), outputs


@pytest.mark.parametrize(
    ("part", "may_fail"),
    [
        *(("operations", ()), ("repeated", ()), ("graphs", ()), ("killed", (1,)), ("aborted", ())),
        *(("other_call", ()), ("other_buffer", ()), ("other_place", ())),
    ],
)
def test_with_handshakes_by_kernels(
    part: str, may_fail: tuple[int, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where drivers have no memory operations of streams."""
    monkeypatch.setenv("ROPEWALK_COPY_HANDSHAKES", "kernel")
    outputs = run(part, 2, may_fail)
    assert not part.startswith("other") or any(f": {USAGE}: " in one for one in outputs), outputs


@pytest.mark.parametrize("memory", ["cudaMalloc", "pages"])
@pytest.mark.parametrize("ranks", SIZES)
def test_messages(ranks: int, memory: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_MEM_ALLOC", memory)
    for rank, output in enumerate(run("messages", ranks)):
        # Those whose input is in no window go by copy engines where their receiver came first.
        assert by_engines(tmp_path, rank) >= calls_of(output)


@pytest.mark.parametrize("part", ["messages_repeated", "messages_in_any_order"])
def test_messages_without_the_host(part: str, tmp_path: Path) -> None:
    for rank, output in enumerate(run(part, 2)):
        assert by_engines(tmp_path, rank) == calls_of(output)


def test_messages_of_a_graph_are_left_to_kernels(tmp_path: Path) -> None:
    run("messages_in_a_graph", 2)
    assert by_engines(tmp_path, 0) == 2 * 21


@pytest.mark.parametrize("part", ["message_killed", "message_timeout"])
def test_a_rank_that_does_not_receive(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROPEWALK_TIMEOUT", "15s")
    run(part, 2, may_fail=(1,))


def test_a_graph_that_is_launched_a_thousand_times() -> None:
    """Words around its copies have the same values each time."""
    run("launched_again", 2)


def test_times_of_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the handshake before the copies to the one behind them, which are kernels for this."""
    monkeypatch.setenv("ROPEWALK_TRACE_GPU", "1")
    run("repeated", 2)
    records = json.loads(next(iter(tmp_path.glob("records-0-*"))).read_text())["records"]
    copied = [one for one in records if one["algorithm"] == "copy_engines"]
    assert len(copied) == 1000
    for one in copied:
        assert one["state"] == "completed"
        assert one["scheduled_ns"] < one["completed_ns"]
        assert one["started_ns"] < one["completed_ns"]
