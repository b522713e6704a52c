"""The text of `ropewalk bench`: nccl-tests 2.19's header, columns and footer, to the byte.

Scripts that read nccl-tests' output read this. Of ranks on host memory, the device number is the
rank's number on its host, and the PCI address is printed as zeros.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final, Optional

from ropewalk.cli.bench_iterations import Iterations
from ropewalk.cli.bench_plan import Options

NCCL_TESTS_VERSION: Final = "2.19.6"  # whose format this is
TIME_FORMAT: Final = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True)
class Device:
    """Where a rank runs."""

    rank: int
    pid: int
    hostname: str
    device: int
    """number among the ranks of its host"""
    info: str
    """what it is, in words"""
    group: int = 0
    device_hex: str = "0000:00:00"

    def line(self) -> str:
        """As under "# Using devices"."""
        return (
            f"#  Rank {self.rank:2d} Group {self.group:2d} Pid {self.pid:6d} on "
            f"{self.hostname:>10s} device {self.device:2d} [{self.device_hex}] {self.info}"
        )


@dataclass(frozen=True)
class Timing:
    """One half of a line: out of place or in place."""

    time_us: float
    algbw: float
    busbw: float
    wrong: Optional[int]
    """None: not checked"""
    iterations: Optional[Iterations] = None
    """None: not asked for"""


@dataclass(frozen=True)
class Line:
    """One line of the table. A half that the operation does not have is None."""

    size: int
    count: int
    type_name: str
    op_name: str
    root: int
    out_of_place: Timing
    in_place: Optional[Timing]


def number(value: float, width: int) -> str:
    """A number in `width` columns, with as many decimals as fit, two at most."""
    for form in (f"{value:{width}.2f}", f"{value:{width}.1f}", f"{value:{width}.0f}"):
        if len(form) <= width:
            return form
    return f"{value:{width}.1e}" if width >= 7 else f"{value:{width}.0e}"


def head(program: str, version_code: int, options: Options) -> list[str]:
    """The lines above the devices."""
    by_factor = options.stepfactor > 1
    step = options.stepfactor if by_factor else options.stepbytes
    lines = [
        f"# nccl-tests version {NCCL_TESTS_VERSION} nccl-headers={version_code} "
        f"nccl-library={version_code}",
        f"# Collective test starting: {program}",
        f"# nThread {options.nthreads} nGpus {options.ngpus} "
        f"minBytes {options.minbytes} maxBytes {options.maxbytes} "
        f"step: {step}({'factor' if by_factor else 'bytes'}) warmup iters: {options.warmup_iters} "
        f"iters: {options.iters} agg iters: {options.agg_iters} validation: {options.check} "
        f"graph: {options.graphs} unalign: {options.unalign}",
    ]
    if options.blocking == 1:
        lines.append("# Blocking Enabled: wait and barrier after each inner iteration (-m) ")
    if options.blocking == 2:
        lines.append("# Blocking Enabled: wait after each inner iteration (-m), no barrier ")
    if options.blocking == 3:
        lines.append(
            "# Blocking Enabled: wait and barrier after each outer iteration (-n); "
            "time excludes barrier "
        )
    if options.per_iter_timing:
        # nccl-tests says "CUDA event timing" here; these times are the calling threads'.
        skips = f"; summary skips first {options.per_iter_skip} iterations"
        lines.append(
            "# Per-Iteration Report: host timing; i_* uses max over process rows"
            f"{skips if options.per_iter_skip else ''} "
        )
    if options.parallel_init:
        lines.append("# Parallel Init Enabled: threads call into NcclInitRank concurrently ")
    return [*lines, "#", "# Using devices"]


def emulated(emulation: dict[str, Any]) -> list[str]:
    """The lines that say so below the devices; nccl-tests has none of them."""
    return [
        "#",
        f"# Emulated: {emulation['machine']}, links slowed {emulation['slowdown']:g} times.",
        "# Times and rates are the machine's: what was measured, divided and multiplied by that.",
    ]


HOT: Final = (
    "#",
    "# Hot: every operation uses the same buffers, whose data comes from caches that hold it.",
)
"""The lines that say so below the devices; nccl-tests has neither them nor the mode."""


def columns(options: Options) -> list[str]:
    """The three lines above the table, and the empty one before them."""
    seconds = "cputime" if options.report_cputime else "time"
    left = f"# {'':>10}  {'':>12}  {'':>8}  {'':>6}  {'':>6}"
    stamps = options.report_timestamps
    titles = "           out-of-place                       in-place          "
    if options.per_iter_timing:
        titles = f"{'':14}out-of-place (+ per-iteration){'':32}in-place (+ per-iteration)"
    names: tuple[str, ...] = (seconds, "algbw", "busbw", "#wrong")
    units: tuple[str, ...] = ("(us)", "(GB/s)", "(GB/s)", "")
    if options.per_iter_timing:
        names += ("i_min", "i_max", "i_p99", "i_cv%")
        units += ("(us)", "(us)", "(us)", "(%)")
    return [
        "#",
        left + titles,
        _column_line(
            ("size", "count", "type", "redop", "root"),
            names,
            f"{'timestamp':>19}" if stamps else "",
        ),
        _column_line(
            ("(B)", "(elements)", "", "", ""),
            units,
            f"{TIME_FORMAT:>19}" if stamps else "",
        ),
    ]


def _column_line(left: tuple[str, ...], half: tuple[str, ...], stamp: str) -> str:
    size, count, kind, op, root = left
    widths = (7, 6, 6, 6, 7, 7, 7, 7)
    halves = "".join(f"  {text:>{width}}" for text, width in zip(half, widths)) * 2
    return f"# {size:>10}  {count:>12}  {kind:>8}  {op:>6}  {root:>6}{halves} {stamp}"


def line_text(line: Line, options: Options) -> str:
    """One line of the table."""
    text = (
        f"{line.size:12d}  {line.count:12d}  {line.type_name:>8}  {line.op_name:>6}  "
        f"{line.root:6d}"
        f"{_half(line.out_of_place, options)}{_half(line.in_place, options)}"
    )
    if options.report_timestamps:
        text += f"{time.strftime(TIME_FORMAT):>21}"
    return text


def _half(timing: Optional[Timing], options: Options) -> str:
    if timing is None:
        missing = f"  {'N/A':>7}  {'N/A':>6}  {'N/A':>6}  {'N/A':>5}"
        return missing + f"  {'N/A':>7}" * (4 if options.per_iter_timing else 0)
    # One column short: so it is in nccl-tests.
    wrong = "  N/A" if timing.wrong is None else f"{float(timing.wrong):6g}"
    text = (
        f"  {number(timing.time_us, 7)}  {number(timing.algbw, 6)}  {number(timing.busbw, 6)}"
        f"  {wrong}"
    )
    each = timing.iterations
    if each is None:
        return text
    figures = (each.min_us, each.max_us, each.p99_us, each.cv_percent)
    return text + "".join(f"  {number(figure, 7)}" for figure in figures)


def footer(program: str, failures: int, average_busbw: float) -> list[str]:
    """The lines below the table."""
    verdict = "FAILED" if failures else "OK"
    return [
        f"# {'Out of bounds values':<20} : {failures} {verdict}",
        f"# {'Avg bus bandwidth':<20} : {average_busbw:g} ",
        "#",
        f"# Collective test concluded: {program}",
        "#",
        "",
    ]
