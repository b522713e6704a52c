"""`ropewalk calls` and its formats, over records of ranks that ran, and of ranks that hang."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ropewalk import calls
from ropewalk.calls import flight_recorder, inspector, perfetto, verdict
from ropewalk.calls.records import Report, joined
from ropewalk.cli import make_app
from ropewalk.errors import ArgumentError
from typer.testing import CliRunner

PROGRAM = """
import sys
import numpy as np
import ropewalk

rank, mode = int(sys.argv[1]), sys.argv[3]
size = int(sys.argv[2])
ropewalk.settings.set("TRACE_FILE", sys.argv[4])
if mode == "hang":
    ropewalk.settings.set("TIMEOUT", "500ms")
try:
    with ropewalk.init() as comm:
        data = np.ones(6, dtype="float32")
        out = np.zeros(6 * size, dtype="float32")
        comm.all_reduce(data)
        comm.all_gather(data, out=out)
        comm.reduce_scatter(out, out=data)
        comm.broadcast(data, root=1)
        comm.reduce(data, root=0)
        comm.all_to_all(out, out=out.copy())
        if rank == 0:
            comm.send(data, 1)
        if rank == 1:
            comm.recv(data, 0)
        comm.barrier()
        live = comm.call_records()
        assert live["records"][-1]["operation"] == "barrier", live
        if mode == "hang" and rank == 2:
            import time
            time.sleep(1.5)
        comm.all_reduce(data, op="max")
except ropewalk.Error as error:
    assert mode == "hang", error
"""


def run_ranks(folder: Path, mode: str, size: int = 3) -> list[Path]:
    """Files of records, by rank."""
    ranks = []
    for rank in range(size):
        command = [sys.executable, "-c", PROGRAM, str(rank), str(size), mode]
        environment = os.environ | {
            "ROPEWALK_RANK": str(rank),
            "ROPEWALK_WORLD_SIZE": str(size),
            "ROPEWALK_RENDEZVOUS": f"local:calls-{os.getpid()}-{mode}",
        }
        command.append(str(folder / "calls-%r.json"))
        ranks.append(subprocess.Popen(command, env=environment))
    codes = [rank.wait(timeout=60) for rank in ranks]
    assert codes == [0] * size
    return [folder / f"calls-{rank}.json" for rank in range(size)]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return run_ranks(tmp_path_factory.mktemp("finished"), "finish")


def ropewalk(*arguments: object) -> tuple[int, str]:
    result = CliRunner().invoke(make_app(["calls"]), ["calls", *map(str, arguments)])
    return result.exit_code, result.output


def test_the_calls_of_ranks_are_shown(finished: list[Path]) -> None:
    code, text = ropewalk(*finished)
    assert code == 0, text
    assert "all ranks completed collective 8" in text
    assert "3 ranks" in text
    code, text = ropewalk(*finished[:2], "--json")
    (document,) = json.loads(text)
    assert document["without_file"] == [2]
    assert document["absent"] == []


def test_the_absent_rank_is_named(tmp_path: Path) -> None:
    code, text = ropewalk(*run_ranks(tmp_path, "hang"))
    assert code == 1
    assert "ranks 0, 1 have in collective 8, all_reduce of 6 float32 (max)" in text, text
    assert "rank 2 has not entered it" in text
    assert "nothing moved" in text


def changed(paths: list[Path], change: Any) -> calls.Reports:
    """The reports of `paths` after `change(documents)`."""
    documents = [json.loads(path.read_text()) for path in paths]
    change(documents)
    (reports,) = joined(Report.of(document, "here") for document in documents)
    return reports


def test_a_different_call_is_named(finished: list[Path]) -> None:
    def change(documents: list[Any]) -> None:
        documents[1]["records"][0]["count"] = 5

    (line,) = verdict.judge(changed(finished, change)).mismatches
    assert line == (
        "collective 1 differs: ranks 0, 2: all_reduce of 6 float32 (sum); "
        "rank 1: all_reduce of 5 float32 (sum)"
    )


def test_the_awaited_rank_is_named(finished: list[Path]) -> None:
    def change(documents: list[Any]) -> None:
        for rank, document in enumerate(documents):
            document["records"] = document["records"][:1]
            begin = 1_000_000_000 + (600 if rank == 2 else 0)
            document["records"][0] |= {
                "scheduled_ns": begin,
                "started_ns": begin,
                "completed_ns": 1_000_001_000,
            }

    first, *others = verdict.judge(changed(finished, change)).waiting
    assert (first.rank, first.late_calls) == (2, 1)
    assert first.share == pytest.approx(1200 / 2400)
    assert all(each.share == 0 for each in others)


def test_perfetto_has_every_call_once(finished: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "trace.json"
    assert ropewalk(*finished, "--perfetto", out)[0] == 0
    trace = json.loads(out.read_text())
    events = [event for event in trace["traceEvents"] if event["ph"] == "X"]
    records = [record for path in finished for record in json.loads(path.read_text())["records"]]
    assert len(events) == len(records)
    assert min(event["ts"] for event in events) >= 0
    (gather,) = [e for e in events if e["name"] == "all_gather" and e["pid"] == 1]
    assert gather["args"]["In msg nelems"] == 6
    assert gather["args"]["Out msg nelems"] == 18
    assert gather["args"]["dtype"] == "Float"
    assert sum(gather["args"]["bytes sent"].values()) == 2 * 6 * 4
    assert gather["args"]["Process Group Ranks"] == "[0, 1, 2]"
    (send,) = [e for e in events if e["name"] == "send"]
    assert (send["args"]["Src Rank"], send["args"]["Dst Rank"]) == (0, 1)
    assert list(send["args"]["bytes sent"]) == ["to rank 1"]


def test_what_overlaps_is_on_threads_of_its_own(finished: list[Path]) -> None:
    def change(documents: list[Any]) -> None:
        for document in documents:
            for place, record in enumerate(document["records"]):
                begin = 1_000_000_000 + 1000 * place
                record |= {"scheduled_ns": begin, "started_ns": begin, "completed_ns": begin + 1500}

    events = perfetto.trace_of([changed(finished, change)])["traceEvents"]
    shown = [event for event in events if event["ph"] == "X"]
    named = {(e["pid"], e["tid"]) for e in events if e["name"] == "thread_name"}
    assert named == {(event["pid"], event["tid"]) for event in shown}
    for pid, tid in named:
        mine = sorted(
            (event["ts"], event["ts"] + event["dur"])
            for event in shown
            if (event["pid"], event["tid"]) == (pid, tid)
        )
        assert all(one[1] <= other[0] for one, other in zip(mine, mine[1:]))
    assert all(len([n for n in named if n[0] == pid]) == 2 for pid, _ in named)


def test_pytorchs_reader_of_kinetos_traces_reads_it(finished: list[Path], tmp_path: Path) -> None:
    """It takes collectives by Kineto's arguments, from kernels of GPUs."""
    reader = pytest.importorskip("torch._inductor.fx_passes.profile_guided_estimation")

    def change(documents: list[Any]) -> None:
        for document in documents:
            for record in document["records"]:
                record["memory"] = "GPU"

    out = tmp_path / "trace.json"
    out.write_text(json.dumps(perfetto.trace_of([changed(finished, change)])))
    profile = reader.ProfileData()
    profile.load(str(out))
    found = profile.collectives
    assert len(found) == sum(len(json.loads(path.read_text())["records"]) for path in finished)
    gathers = [each for each in found if each.collective_name == "all_gather"]
    assert [(g.pg_ranks, g.group_size, g.in_nelems, g.out_nelems, g.dtype) for g in gathers] == [
        ((0, 1, 2), 3, 6, 18, "Float")
    ] * 3
    assert all(each.duration_us > 0 for each in found)


def test_perfettos_own_processor_reads_it(finished: list[Path]) -> None:
    trace_processor = pytest.importorskip("perfetto.trace_processor")
    text = json.dumps(perfetto.trace_of(calls.load(finished)))
    try:
        config = trace_processor.TraceProcessorConfig(
            bin_path=os.environ.get("TRACE_PROCESSOR_SHELL")
        )
        processor = trace_processor.TraceProcessor(trace=iter([text.encode()]), config=config)
    except Exception as error:  # its program is fetched when it is first used
        pytest.skip(f"Perfetto's trace processor does not start here: {error}")
    try:
        rows = processor.query("select count(*) as n from slice where name = 'all_reduce'")
        assert next(iter(rows)).n == 6
        rows = processor.query("select name from stats where severity = 'error' and value > 0")
        assert [row.name for row in rows] == []
    finally:
        processor.close()


def analyze(folder: Path) -> str:
    """What PyTorch's analyzer prints."""
    pytest.importorskip("torch")
    result = subprocess.run(
        [sys.executable, "-m", "torch.distributed.flight_recorder.fr_trace"]
        + [str(folder), "-p", "rank_"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout + result.stderr


def test_pytorchs_analyzer_reads_the_pickles(finished: list[Path], tmp_path: Path) -> None:
    assert ropewalk(*finished, "--flight-recorder", tmp_path / "rank_")[0] == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["rank_0", "rank_1", "rank_2"]
    text = analyze(tmp_path)
    assert "Not all ranks" not in text, text
    assert "mismatch" not in text.lower(), text


def test_pytorchs_analyzer_sees_a_mismatch(finished: list[Path], tmp_path: Path) -> None:
    def change(documents: list[Any]) -> None:
        documents[1]["records"][0]["count"] = 5

    flight_recorder.write(changed(finished, change), str(tmp_path / "rank_"))
    assert "mismatch" in analyze(tmp_path).lower()


def test_inspectors_lines(finished: list[Path], tmp_path: Path) -> None:
    out = tmp_path / "calls.log"
    assert ropewalk(*finished, "--inspector", out)[0] == 0
    lines = [json.loads(line) for line in out.read_text().splitlines()]
    messages = [line["p2p_perf"] for line in lines if "p2p_perf" in line]
    assert [(each["p2p"], each["p2p_sn"], each["p2p_peer"]) for each in messages] == [
        ("Send", 1, 1),
        ("Recv", 1, 0),
    ]
    assert all(each["p2p_msg_size_bytes"] == 24 for each in messages)
    lines = [line for line in lines if "coll_perf" in line]
    assert len(lines) == 3 * 7  # no barriers
    first = lines[0]
    assert first["header"]["n_ranks"] == 3
    perf = first["coll_perf"]
    assert (perf["coll"], perf["coll_sn"], perf["coll_msg_size_bytes"]) == ("AllReduce", 1, 24)
    assert perf["coll_algobw_gbs"] == pytest.approx(24 / perf["coll_exec_time_us"] / 1e3)
    assert perf["coll_busbw_gbs"] == pytest.approx(perf["coll_algobw_gbs"] * 4 / 3)
    (reports,) = calls.load(finished)
    assert list(inspector.lines(reports)) == out.read_text().splitlines()


def test_a_file_without_records_is_refused(finished: list[Path], tmp_path: Path) -> None:
    garbage = tmp_path / "garbage.json"
    cut = json.loads(finished[0].read_text())
    del cut["records"][0]["operation"]
    for text, words in (
        ("{", "is not JSON"),
        ("[1]", "schema ropewalk-calls"),
        (json.dumps(cut), "incomplete: 'operation'"),
        (json.dumps({**cut, "version": 7}), "version 7 is not 1"),
    ):
        garbage.write_text(text)
        with pytest.raises(ArgumentError, match=words):
            calls.load([garbage])
        code, _ = ropewalk(garbage)
        assert code != 0
    code, text = ropewalk(tmp_path / "absent.json")
    assert code != 0


def test_of_two_reports_of_a_rank_the_newer_one_counts(finished: list[Path]) -> None:
    document = json.loads(finished[0].read_text())
    newer = copy.deepcopy(document)
    newer["written_ns"] += 1
    newer["begun"] = 99
    (reports,) = joined(Report.of(each, "here") for each in (newer, document))
    assert reports.by_rank[0].begun == 99
