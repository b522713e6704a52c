"""`ropewalk microbench`: the patterns that a packing of trees takes for granted, timed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Final, Optional

import typer
from rich.table import Table

from ropewalk import joining, schedule
from ropewalk.cli import bench_device, bench_schedule, console, launch, process_ranks
from ropewalk.cli.bench import parse_size
from ropewalk.communicator import Communicator
from ropewalk.measure import measure
from ropewalk.types import DATA_TYPES

PATTERNS: Final = {
    "chain": ("forward", "reduce-forward", "reduce-broadcast"),
    "fan-in": ("forward", "reduce-forward", "reduce-broadcast"),
    "fan-out": ("forward", "reduce-broadcast"),
    "mimo": ("forward", "reduce-broadcast"),
    "multi-chain": ("forward", "reduce-forward", "reduce-broadcast"),
}
_COLLECTIVE: Final = {"reduce-forward": "reduce", "reduce-broadcast": "all_reduce"}

HELP = """
Time the patterns that a packing of trees takes for granted.

A plan of many trees assumes that the links of a rank are independent, that forwarding costs no
bandwidth, and that both directions of a link work at once. Each pattern tests one of these. They
run as checked schedules over local ranks (or a launcher's), and every result is verified.

\b
chain        ranks in a row: 0 -> 1 -> ... ; --ranks 2:8 is chains of 2 to 8 ranks
fan-in       --width sources -> a centre -> a sink
fan-out      a source -> a centre -> --width sinks
mimo         --width leaves around a centre, each with one stream in and one out
multi-chain  --width chains of --length ranks that meet at one rank

\b
forward           data is handed on unchanged
reduce-forward    every rank adds its own and hands the sum on
reduce-broadcast  sums go one way, results the other way at the same time

The last column is what the busiest link carried, in GB/s.

Examples:

\b
  ropewalk microbench chain --ranks 2:4
      all three tests on chains of 2, 3 and 4 ranks
  ropewalk microbench fan-in --width 1:3 -b 1M -e 64M -f 4
  ropewalk microbench mimo --width 2 --test forward --json
  ropewalk microbench multi-chain --width 2 --length 2 --test reduce-forward
  ropewalk microbench chain --ranks 2 --device cuda -b 64M -e 256M
      between GPUs

Exit status: 0 when all results are right, 1 when one is wrong, 2 for a wrong command line, another
value when a rank failed or was killed.
"""


@dataclass(frozen=True)
class Case:
    """One schedule."""

    pattern: str
    test: str
    width: int
    length: int

    @property
    def ranks(self) -> int:
        """As src/schedule/microbench.h has it."""
        return {
            "chain": self.length,
            "mimo": self.width + 1,
            "multi-chain": 1 + self.width * self.length,
        }.get(self.pattern, self.width + 2)

    def streams(self) -> int:
        """Units of the call on the busiest link."""
        gathers = self.pattern == "fan-in" and self.test == "forward"
        return self.width + 1 if gathers else 1


@dataclass(frozen=True)
class Result:
    """One line of the table."""

    pattern: str
    test: str
    ranks: int
    width: int
    length: int
    bytes: int
    time_us: float
    algbw_gbps: float
    link_gbps: float
    wrong: Optional[int]


def _span(flag: str, text: str, low: int) -> range:
    """1 or 1:4."""
    first, colon, last = text.partition(":")
    last = last if colon else first
    if not (first.isdigit() and last.isdigit() and len(first) < 6 and len(last) < 6):
        console.fail(f'{flag} "{text}": write a number or a span such as 2:8', console.USAGE)
    if not low <= int(first) <= int(last):
        console.fail(f"{flag} {text}: must rise, from {low} or more", console.USAGE)
    return range(int(first), int(last) + 1)


def _cases(
    pattern: str, tests: tuple[str, ...], ranks: range, width: range, length: int
) -> list[Case]:
    if pattern == "chain":
        return [Case(pattern, test, 1, n) for test in tests for n in ranks]
    return [Case(pattern, test, w, length) for test in tests for w in width]


def _sizes(smallest: int, largest: int, factor: int) -> Iterator[int]:
    size = max(smallest, 4)
    while size <= largest:
        yield size
        size *= factor


def _run_case(comm: Communicator, case: Case, sizes: list[int], options: dict[str, int]) -> Any:
    """This rank's part; a list of results, or an exit status."""
    text = schedule.microbench(case.pattern, case.test, width=case.width, length=case.length)
    given = bench_schedule.Given.of(f"{case.pattern}.{case.test}", text)
    use = given.use([comm])
    if use.status != console.OK:
        return use.status
    results = []
    for size in sizes:
        count = size // 4
        found = measure(
            comm,
            given.collective,
            count,
            DATA_TYPES["float32"],
            root=given.root,
            warmup=options["warmup"],
            iterations=options["iters"],
            check_rounds=options["check"],
            device=comm.device is not None,
            graphs=options["graphs"] if comm.device is not None else 0,
        )
        rate = count * 4 / found.seconds_avg / 1e9 if found.seconds_avg > 0 else 0.0
        wrong = found.wrong if options["check"] else None
        results.append(
            Result(
                case.pattern,
                case.test,
                case.ranks,
                case.width,
                case.length,
                count * 4,
                found.seconds_avg * 1e6,
                rate,
                rate * case.streams(),
                wrong,
            )
        )
    return results


def _print(results: list[Result], as_json: bool) -> None:
    if as_json:
        print(json.dumps([asdict(result) for result in results], indent=2), flush=True)
        return
    out = console.output()
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in (
        "pattern",
        "test",
        "ranks",
        "width",
        "bytes",
        "time us",
        "GB/s",
        "link GB/s",
        "wrong",
    ):
        table.add_column(name, justify="left" if name in ("pattern", "test") else "right")
    for result in results:
        table.add_row(
            result.pattern,
            result.test,
            str(result.ranks),
            "" if result.pattern == "chain" else str(result.width),
            str(result.bytes),
            f"{result.time_us:.2f}",
            f"{result.algbw_gbps:.3f}",
            f"{result.link_gbps:.3f}",
            "N/A" if result.wrong is None else str(result.wrong),
        )
    out.print(table)


def microbench(
    pattern: Annotated[
        str, typer.Argument(metavar="PATTERN", help="The pattern: " + ", ".join(PATTERNS) + ".")
    ],
    test: Annotated[
        str, typer.Option("--test", help="forward, reduce-forward, reduce-broadcast, or all.")
    ] = "all",
    ranks: Annotated[
        str, typer.Option("--ranks", metavar="N[:M]", help="Ranks of a chain, or a span of them.")
    ] = "2:4",
    width: Annotated[
        str,
        typer.Option(
            "--width", metavar="N[:M]", help="Sources, sinks, leaves or chains, or a span of them."
        ),
    ] = "1:3",
    length: Annotated[
        int, typer.Option("--length", help="Ranks in each chain of multi-chain.")
    ] = 2,
    minbytes: Annotated[
        str, typer.Option("-b", "--minbytes", help="Smallest size in bytes.")
    ] = "1M",
    maxbytes: Annotated[
        str, typer.Option("-e", "--maxbytes", help="Largest size in bytes.")
    ] = "16M",
    stepfactor: Annotated[
        int, typer.Option("-f", "--stepfactor", help="Factor between sizes.")
    ] = 4,
    iters: Annotated[int, typer.Option("-n", "--iters", help="Timed iterations.")] = 20,
    warmup_iters: Annotated[
        int, typer.Option("-w", "--warmup_iters", help="Iterations before, at each size.")
    ] = 2,
    check: Annotated[
        int, typer.Option("-c", "--check", help="Verified rounds per line; 0 verifies nothing.")
    ] = 1,
    device: Annotated[
        Optional[str],
        typer.Option(
            "--device", metavar="WHERE", help="host (the default) or cuda: a GPU for each rank."
        ),
    ] = None,
    graphs: Annotated[
        int,
        typer.Option("-G", "--cudagraph", help="With cuda: launches of a graph of all iterations."),
    ] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    pin: Annotated[
        bool, typer.Option("--pin", help="Bind each local rank to one core, in turns.")
    ] = False,
    set_: console.SettingOption = None,
) -> None:
    """See HELP."""
    if pattern not in PATTERNS:
        known = ", ".join(PATTERNS)
        console.fail(f'unknown pattern "{pattern}"; known are {known}', console.USAGE)
    if device not in (None, "host", "cuda"):
        console.fail(f'--device "{device}": known are host, cuda', console.USAGE)
    if test != "all" and test not in PATTERNS[pattern]:
        known = ", ".join(PATTERNS[pattern])
        console.fail(f'{pattern} has no test "{test}"; it has {known}', console.USAGE)
    for flag, value, low in (("-f", stepfactor, 2), ("-n", iters, 1), ("--length", length, 1)):
        if value < low:
            console.fail(f"{flag} {value}: must be {low} or more", console.USAGE)
    for flag, value in (("-w", warmup_iters), ("-c", check), ("-G", graphs)):
        if value < 0:
            console.fail(f"{flag} {value}: must be 0 or more", console.USAGE)
    sizes = list(_sizes(parse_size(minbytes, "-b"), parse_size(maxbytes, "-e"), stepfactor))
    if not sizes:
        console.fail(f"-b {minbytes} is larger than -e {maxbytes}", console.USAGE)
    tests = PATTERNS[pattern] if test == "all" else (test,)
    cases = _cases(pattern, tests, _span("--ranks", ranks, 2), _span("--width", width, 1), length)
    most = max(case.ranks for case in cases)
    options = {"warmup": warmup_iters, "iters": iters, "check": check, "graphs": graphs}
    launched = launch.launched_processes()
    site = bench_device.choose(device or "host", launch.processes_here() if launched > 1 else most)
    if graphs and not site.gpus:
        console.fail(f"-G {graphs}: needs --device cuda", console.USAGE)

    def body(comm: Communicator) -> int:
        results: list[Result] = []
        if site.gpus:
            comm.attach(joining.device_number("cuda", comm.rank))
        for case in cases:
            part = comm.split(0 if comm.rank < case.ranks else None)
            if part is None:
                continue
            with part:
                found = _run_case(part, case, sizes, options)
            if isinstance(found, int):
                return found
            results += found
        if comm.rank == 0:
            _print(results, as_json)
        return console.WRONG if any(result.wrong for result in results) else console.OK

    if launched > 1:
        if launched < most:
            console.fail(f"{pattern}: needs {most} ranks, there are {launched}", console.USAGE)
        console.apply_settings(set_)
        with console.reported(), joining.init() as comm:
            if pin:
                process_ranks.pin(comm.rank)
            status = body(comm)
    else:
        if most > 4096:
            console.fail(f"{pattern}: {most} ranks; at most 4096 start here", console.USAGE)
        status = launch.run_local(
            most,
            lambda comms: body(comms[0]),
            prepare=lambda: console.apply_settings(set_),
            pinned=pin,
        )
    raise typer.Exit(status)
