"""The log of operations: DEBUG and DEBUG_SUBSYS."""

from __future__ import annotations

import re

from conftest import Program

BENCH = ("bench", "all_reduce", "--ranks", "2", "-b", "1K", "-e", "1K", "-n", "3", "-w", "1")


def lines(program: Program, level: str, subsystems: str) -> list[str]:
    environment = {"ROPEWALK_DEBUG": level, "ROPEWALK_DEBUG_SUBSYS": subsystems}
    done = program(*BENCH, env=environment)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stderr.splitlines() if " ROPEWALK " in line]


def test_trace_shows_every_call(program: Program) -> None:
    found = lines(program, "TRACE", "COLL")
    call = re.compile(r"ROPEWALK TRACE rank [01] of 2: all_reduce of 256 float32, sum, root 0, ")
    assert len([line for line in found if call.search(line)]) >= 2 * (3 + 1)
    assert all("blocking" in line or "as a task" in line for line in found if call.search(line))


def test_info_shows_which_algorithm_serves_which_size(program: Program) -> None:
    found = lines(program, "INFO", "TUNING")
    pattern = r"ROPEWALK INFO all_reduce of 1024 to 2047 bytes in a unit, 2 ranks: \w+, "
    assert any(re.search(pattern, line) for line in found)
    assert not any("TRACE" in line for line in found)


def test_info_says_once_which_algorithm_serves_which_sizes(program: Program) -> None:
    said = [line for line in lines(program, "INFO", "INIT") if "bytes in a unit" in line]
    said = [line for line in said if "all_reduce" in line]  # the benchmark calls others, too
    assert len(said) == 1, said  # by rank 0, when the operation is first called
    part = r"\w+ (below \d+ [KMG]?i?B|from there on|for all sizes)"
    pattern = rf"ROPEWALK INFO all_reduce of 2 ranks: {part}(, {part})*; bytes in a unit"
    assert re.search(pattern, said[0]), said


def test_other_subsystems_show_neither(program: Program) -> None:
    assert not [line for line in lines(program, "TRACE", "SHM") if "all_reduce" in line]
