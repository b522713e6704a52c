"""The table is nccl-tests 2.19's, to the byte.

golden/*.txt were written with C's printf from that format's definition.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from ropewalk.cli import bench_table
from ropewalk.cli.bench_iterations import summarize
from ropewalk.cli.bench_plan import Options
from ropewalk.cli.bench_table import Device, Line, Timing

GOLDEN = Path(__file__).parent / "golden" / "table.txt"
PER_ITERATION = GOLDEN.with_name("table_per_iter.txt")


def test_every_line_is_as_in_the_golden_file() -> None:
    options = Options(minbytes=8, maxbytes=64 << 20, stepfactor=2, blocking=1)
    lines = [
        Line(
            8, 2, "float", "sum", -1, Timing(0.7049, 0.01135, 0.02, 0), Timing(12.5, 0.1, 0.2, None)
        ),
        Line(
            64 << 20,
            16 << 20,
            "bfloat16",
            "mulsum",
            3,
            Timing(12345678.9, 123456.7, 1234567.0, 16777216),
            Timing(99999.996, 999.996, 9999.96, 7),
        ),
        Line(
            8 << 30,
            2 << 30,
            "f8e4m3",
            "avg",
            10,
            Timing(123456789.0, 12345678.9, 0.0, 1234567),
            Timing(9999.995, 1000.004, 99.999, 0),
        ),
    ]
    text = [
        *bench_table.head("all_reduce_perf", 100, options),
        Device(0, 4711, "ship", 0, "A CPU, host memory").line(),
        Device(11, 1234567, "a-much-longer-host", 10, "A CPU, host memory").line(),
        *bench_table.columns(options),
        *(bench_table.line_text(line, options) for line in lines),
        *bench_table.footer("all_reduce_perf", 2, 1.23456789),
    ]
    assert text == GOLDEN.read_text().split("\n")[:-1]


def test_per_iteration_columns_are_as_in_the_golden_file() -> None:
    options = Options(
        minbytes=8,
        maxbytes=8,
        stepfactor=2,
        iters=5,
        blocking=3,
        unalign=3,
        per_iter_timing=True,
        per_iter_skip=1,
    )
    # The slowest ranks take 9, 2, 4, 5 and 6; the first does not count.
    spread = summarize([[9.0, 1.0, 4.0, 5.0, 2.0], [8.0, 2.0, 3.0, 1.0, 6.0]], 1)
    still = summarize([[7.0] * 5], 1)
    left = Timing(4.25, 0.01, 0.02, 0, spread)
    right = Timing(12.5, 0.1, 0.2, None, still)
    text = [
        *bench_table.head("all_reduce_perf", 100, options),
        *bench_table.columns(options),
        bench_table.line_text(Line(8, 2, "float", "sum", -1, left, right), options),
    ]
    golden = PER_ITERATION.read_text().split("\n")[:-1]
    assert text == golden
    # Columns keep their positions if there is no in-place form, except for nccl-tests' short N/A.
    missing = bench_table.line_text(Line(8, 2, "float", "sum", -1, left, None), options)
    assert len(missing.split()) == len(text[-1].split())
    assert len(missing) == len(text[-1])


def test_figures_over_iterations() -> None:
    rank = [float(time) for time in range(200, 0, -1)]
    found = summarize([rank, [0.0] * 200], 100)
    assert found.times_us == rank
    assert (found.skipped, found.min_us, found.max_us, found.avg_us) == (100, 1.0, 100.0, 50.5)
    # Nearest rank: 95 of 100 values are at most 95. The median is the upper one.
    assert (found.p50_us, found.p95_us, found.p99_us) == (51.0, 95.0, 99.0)
    assert found.stdev_us == pytest.approx(28.866, abs=1e-3)
    assert found.cv_percent == pytest.approx(57.16, abs=1e-2)


def test_no_in_place_form_fills_the_same_columns() -> None:
    options = Options()
    timing = Timing(1.0, 2.0, 3.0, 0)
    with_form = Line(8, 2, "float", "none", -1, timing, timing)
    without = Line(8, 2, "float", "none", -1, timing, None)
    texts = [bench_table.line_text(line, options) for line in (with_form, without)]
    assert len(texts[0]) == len(texts[1]) + 1  # nccl-tests' own N/A is one column short
    assert texts[1].split()[-4:] == ["N/A"] * 4
    assert len(texts[1].split()) == 13


def test_timestamps_and_cputime_change_header_and_lines_alike() -> None:
    options = Options(report_timestamps=True, report_cputime=True)
    header = bench_table.columns(options)[2]
    assert header.split().count("cputime") == 2
    assert header.endswith("#wrong           timestamp")
    assert bench_table.columns(options)[3].endswith("    %Y-%m-%d %H:%M:%S")
    timing = Timing(1.0, 2.0, 3.0, 0)
    line = bench_table.line_text(Line(8, 2, "float", "sum", -1, timing, timing), options)
    assert len(line) == len(header) + 1  # as nccl-tests has it


@pytest.mark.parametrize(
    ("value", "width", "text"),
    [
        (0.0, 7, "   0.00"),
        (9999.99, 7, "9999.99"),
        (99999.94, 7, "99999.9"),
        (1234567.4, 7, "1234567"),
        (12345678.0, 7, "1.2e+07"),
        (123456789.0, 6, " 1e+08"),
    ],
)
def test_numbers_keep_what_fits(value: float, width: int, text: str) -> None:
    assert bench_table.number(value, width) == text
