"""`ropewalk microbench`, and `ropewalk bench --schedule`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import ropewalk
from conftest import Program, run_ranks
from ropewalk import schedule
from ropewalk.cli import bench_schedule, microbench

SMALL = ("-b", "4K", "-e", "16K", "-n", "2", "-w", "1")


def test_the_command_knows_the_librarys_patterns() -> None:
    for pattern, tests in microbench.PATTERNS.items():
        for test in ("forward", "reduce-forward", "reduce-broadcast"):
            if test in tests:
                text = schedule.microbench(pattern, test, width=3, length=4)
                report = schedule.check(text)
                case = microbench.Case(pattern, test, 3, 4)
                assert report["accepted"]
                assert report["ranks"] == case.ranks
                assert max(link["units"] for link in report["links"]) == case.streams()
            else:
                with pytest.raises(ropewalk.ArgumentError, match="has no test"):
                    schedule.microbench(pattern, test)


@pytest.mark.parametrize("pattern", ["chain", "multi-chain"])
def test_json_has_every_case_verified(program: Program, pattern: str) -> None:
    sizes = ("--ranks", "2:3") if pattern == "chain" else ("--width", "2", "--length", "1")
    done = program("microbench", pattern, *sizes, *SMALL, "--json")
    assert done.returncode == 0, done.stderr
    lines = json.loads(done.stdout)
    assert {line["test"] for line in lines} == set(microbench.PATTERNS[pattern])
    assert {line["ranks"] for line in lines} == ({2, 3} if pattern == "chain" else {3})
    assert {line["bytes"] for line in lines} == {4096, 16384}
    assert all(line["wrong"] == 0 and line["time_us"] > 0 for line in lines)


def test_the_table_shows_the_busiest_link(program: Program) -> None:
    done = program("microbench", "fan-in", "--width", "2", "--test", "forward", *SMALL)
    assert done.returncode == 0, done.stderr
    head, *rows = done.stdout.splitlines()
    assert [name in head for name in ("bytes", "time us", "GB/s", "link GB/s", "wrong")] == [
        True
    ] * 5
    assert len(rows) == 2
    for row in rows:
        cells = row.split()
        assert cells[:4] == ["fan-in", "forward", "4", "2"]
        assert float(cells[7]) == pytest.approx(3 * float(cells[6]), abs=0.004)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("spiral",), 'unknown pattern "spiral"'),
        (("mimo", "--test", "reduce-forward"), "it has forward, reduce-broadcast"),
        (("chain", "--ranks", "1"), "--ranks 1: must rise, from 2"),
        (("chain", "--ranks", "4:2"), "must rise"),
        (("chain", "--ranks", "x"), "a span such as 2:8"),
        (("chain", "-b", "2M", "-e", "1M"), "is larger than"),
        (("fan-in", "--width", "0"), "from 1 or more"),
        (("multi-chain", "--length", "0"), "--length 0"),
    ],
)
def test_a_wrong_command_line_is_named(
    program: Program, arguments: tuple[str, ...], message: str
) -> None:
    done = program("microbench", *arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_bench_runs_a_given_schedule(program: Program, tmp_path: Path) -> None:
    file = tmp_path / "reduce.txt"
    # Five channels: more than a communicator has without asking.
    file.write_text(schedule.make("reduce", "chain", 3, root=2, channels=5))
    done = program(
        "bench", "--schedule", str(file), "-b", "1K", "-e", "1K", "-n", "1", "--timeout", "60"
    )
    assert done.returncode == 0, done.stderr
    assert "Collective test starting: reduce_perf" in done.stdout
    assert done.stdout.count("#  Rank") == 3
    row = next(line for line in done.stdout.splitlines() if line.split()[:1] == ["1024"])
    assert row.split()[4] == "2"  # the root


def test_a_communicator_runs_what_bench_runs() -> None:
    given = bench_schedule.Given.of("x", schedule.make("all_reduce", "ring", 2, channels=2))

    def body(comm: ropewalk.Communicator) -> bytes:
        assert given.use([comm]).in_place
        data = bytearray([comm.rank + 1] * 100)
        comm.all_reduce(data)
        return bytes(data)

    comms = ropewalk.init_all(2)
    assert run_ranks(comms, body) == [bytes([3] * 100)] * 2
    run_ranks(comms, ropewalk.Communicator.finalize)


def test_bench_refuses_schedules_it_cannot_run(program: Program, tmp_path: Path) -> None:
    good = schedule.make("broadcast", "chain", 2, root=1)

    def run(text: str, *more: str) -> tuple[int, str]:
        file = tmp_path / "given.txt"
        file.write_text(text)
        done = program("bench", "--schedule", str(file), "-n", "1", "-e", "1K", "-b", "1K", *more)
        assert "Traceback" not in done.stderr
        return done.returncode, done.stderr

    status, text = run(good.replace("out", "0", 1))
    assert (status, text.count("refused by the checker")) == (1, 1)
    status, text = run(good.replace("b0:", "c0:"))
    assert (status, text.count(", column 3")) == (2, 1)
    for bad, said in (("hello\n", '"ranks ..."'), (good.replace("ranks 2", "ranks two"), "two")):
        status, text = run(bad)
        assert status == 2
        assert said in text
    for flags, said in (
        (("--ranks", "3"), "is for 2"),
        (("-r", "2"), "is for 1"),
        (("all_reduce",), "is for broadcast"),
    ):
        status, text = run(good, *flags)
        assert status == 2
        assert said in text
    status = program("bench", "--schedule", str(tmp_path / "absent")).returncode
    assert status == 2
    assert program("bench").returncode == 2
