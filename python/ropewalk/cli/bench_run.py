"""What a thread does with its ranks in `ropewalk bench`: measures case by case; rank 0 reports."""

from __future__ import annotations

import collections
import contextlib
import ctypes
import dataclasses
import os
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable, Optional

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from ropewalk import _library
from ropewalk.cli import bench_table, console
from ropewalk.cli.bench_iterations import summarize
from ropewalk.cli.bench_json import Report, create
from ropewalk.cli.bench_plan import Case, Cases, Operation, Options, data_type
from ropewalk.cli.bench_table import Device, Line, Timing
from ropewalk.communicator import Communicator
from ropewalk.groups import group
from ropewalk.measure import measure

_DEVICE_BYTES = 512  # room for one rank's line in the exchange of devices
# More than the last cache of a processor, or of a GPU, holds. The ranks of a host share its caches:
# from so many on, each needs a part of it.
_REGION_BYTES = 64 << 20
_RANKS_WITH_WHOLE_REGIONS = 8


class Outputs:
    """Where a run goes besides standard output."""

    def __init__(
        self, json_path: Optional[Path], plot_path: Optional[Path], arguments: list[str]
    ) -> None:
        """Notes the paths and, for the JSON, the command line."""
        self.json_path = json_path
        self.plot_path = plot_path
        self.arguments = arguments


def run(comms: list[Communicator], operation: Operation, options: Options, outputs: Outputs) -> int:
    """Runs all cases on ranks of one communicator. Returns the exit status.

    Every thread of every process calls for its own ranks; that of rank 0 prints.
    """
    size, prints = comms[0].size, comms[0].rank == 0
    major, minor, patch = _library.version()
    version_code = major * 10000 + minor * 100 + patch
    report, stream = None, None
    if prints and outputs.json_path is not None:
        try:
            path, stream = create(outputs.json_path)
        except OSError as error:
            console.fail(f"-J {outputs.json_path}: {error.strerror}", console.USAGE)
        report = Report(outputs.arguments, version_code)
        _say(f"# Writing JSON output to {path}")

    devices = _devices(comms)
    options, reduced = _within_memory(comms, devices, options)
    options = dataclasses.replace(options, region=_region(comms, devices, options))
    emulation = comms[0].emulation
    if emulation is not None:
        options = dataclasses.replace(options, slowdown=emulation["slowdown"])
    if prints:
        for text in bench_table.head(operation.program, version_code, options):
            _say(text)
        for device in devices:
            _say(device.line())
        if emulation is not None:
            for text in bench_table.emulated(emulation):
                _say(text)
        if options.hot:
            for text in bench_table.HOT:
                _say(text)
        if reduced:
            _say("#")
            _say(f"# Reducing maxBytes to {options.maxbytes} due to memory limitation")
        for text in bench_table.columns(options):
            _say(text)
        if report is not None:
            report.configure(options, devices, emulation)

    lines: list[Line] = []
    planned = Cases(operation, options, size)
    with _progress(operation.name, len(planned), shown=prints) as advance:
        for case in planned:
            line = _measure_case(comms, operation, options, case)
            lines.append(line)
            if prints:
                advance(bench_table.line_text(line, options))
                if report is not None:
                    report.add(line, options)

    timings = [half for line in lines for half in (line.out_of_place, line.in_place) if half]
    failures = sum(1 for timing in timings if timing.wrong)
    average = sum(timing.busbw for timing in timings) / len(timings) if timings else 0.0
    if prints:
        for text in bench_table.footer(operation.program, failures, average):
            _say(text)
        if report is not None:
            report.finish(stream, failures, average)
        if outputs.plot_path is not None:
            from ropewalk.cli import bench_plot  # Matplotlib takes a second to load

            bench_plot.draw(operation, lines, size, outputs.plot_path)
    return console.WRONG if failures else console.OK


def _say(text: str) -> None:
    print(text, flush=True)  # flushed: a reader sees each line when it is measured


def _measure_case(
    comms: list[Communicator], operation: Operation, options: Options, case: Case
) -> Line:
    element = data_type(case.type_name)
    size = comms[0].size
    count = operation.elements(case.size, element.size, size)

    def half(in_place: bool) -> Timing:
        found = measure(
            comms,
            operation.name,
            count,
            element,
            op="sum" if case.op_name == "none" else case.op_name,
            root=max(case.root, 0),
            in_place=in_place,
            warmup=options.warmup_iters,
            iterations=options.iters,
            operations=options.agg_iters,
            check_rounds=options.check,
            barrier=options.blocking if options.blocking in (1, 3) else 0,
            unalign=options.unalign,
            per_iteration=options.per_iter_timing,
            device=comms[0].device is not None,
            graphs=options.graphs,
            registered=options.registered,
            region=options.region,
            period=options.period,
        )
        seconds = {
            0: found.seconds_rank0,
            1: found.seconds_avg,
            2: found.seconds_min,
            3: found.seconds_max,
        }[options.average] / options.slowdown
        algbw, busbw = operation.bandwidths(count, element.size, seconds, size)
        iterations = None
        if options.per_iter_timing:
            scale = 1e6 / options.slowdown
            per_rank = _of_all_ranks(comms, [time * scale for time in found.iteration_seconds])
            iterations = summarize(per_rank, options.per_iter_skip, options.ranks_each)
        wrong = found.wrong if options.check else None
        return Timing(seconds * 1e6, algbw, busbw, wrong, iterations)

    return Line(
        operation.bytes(count, element.size, size),
        count,
        case.type_name,
        case.op_name,
        case.root,
        half(False),
        half(True) if operation.in_place else None,
    )


def _of_all_ranks(comms: list[Communicator], numbers: list[float]) -> list[list[float]]:
    """The numbers of each rank; those of a thread have the same, and every rank as many."""
    mine: Any = (ctypes.c_double * len(numbers))(*numbers)
    wholes: list[Any] = [(ctypes.c_double * (len(numbers) * comm.size))() for comm in comms]
    with group():
        for comm, whole in zip(comms, wholes):
            comm.all_gather(mine, out=whole)
    whole = wholes[0]
    return [list(whole[i : i + len(numbers)]) for i in range(0, len(whole), len(numbers))]


@contextlib.contextmanager
def _progress(name: str, total: int, *, shown: bool) -> Iterator[Callable[[str], None]]:
    """Gives a function that prints a line and moves the bar, if standard error is a terminal.

    The bar is redrawn between measurements only: a thread that redraws it would take a core from
    the rank that is measured.
    """
    if not (shown and sys.stderr.isatty()):
        yield _say
        return
    bar = Progress(
        TextColumn(name),
        BarColumn(),
        MofNCompleteColumn(),
        console=console.note(),
        auto_refresh=False,
        transient=True,
        redirect_stdout=False,
        redirect_stderr=False,
    )
    task = bar.add_task(name, total=total)

    def advance(text: str) -> None:
        bar.stop()  # the bar leaves the terminal's last line, which the text takes
        _say(text)
        bar.advance(task)
        bar.start()
        bar.refresh()

    bar.start()
    try:
        bar.refresh()
        yield advance
    finally:
        bar.stop()


def _cpu_name() -> str:
    with contextlib.suppress(OSError), Path("/proc/cpuinfo").open() as lines:
        for line in lines:
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return os.uname().machine


def _gpu(device: int) -> dict[str, Any]:
    described: dict[str, Any] = _library.json_of(_library.library().rwDeviceDescribe, device)
    return described


def _place(comm: Communicator) -> bytes:
    """Where a rank runs: process, host, and number, bus and name of its device."""
    parts = [str(os.getpid()), socket.gethostname().partition(".")[0]]
    if comm.device is None:
        emulation = comm.emulation
        info = f"{_cpu_name()}, host memory"
        if emulation is not None:
            info = f"{emulation['gpus'][comm.rank]} of {emulation['machine']}, emulated"
        parts += ["", "", info]
    else:
        gpu = _gpu(comm.device)
        parts += [str(comm.device), gpu["bus_id"].lower()[:10], gpu["name"]]
    return "\n".join(parts).encode()[:_DEVICE_BYTES]


def _devices(comms: list[Communicator]) -> list[Device]:
    """Where all ranks run; every thread gets the list."""
    wholes = [bytearray(_DEVICE_BYTES * comm.size) for comm in comms]
    for comm, whole in zip(comms, wholes):
        mine = _place(comm)
        begin = comm.rank * _DEVICE_BYTES
        whole[begin : begin + len(mine)] = mine
    with group():
        for comm, whole in zip(comms, wholes):
            comm.all_gather(whole)
    devices: list[Device] = []
    on_host: dict[str, int] = {}
    for rank in range(comms[0].size):
        raw = bytes(wholes[0][rank * _DEVICE_BYTES : (rank + 1) * _DEVICE_BYTES])
        pid, hostname, number, bus, info = raw.rstrip(b"\0").decode("utf-8", "replace").split("\n")
        index = on_host.get(hostname, 0)
        on_host[hostname] = index + 1
        device = Device(rank, int(pid), hostname, index, info)
        if number:
            device = dataclasses.replace(device, device=int(number), device_hex=bus)
        devices.append(device)
    return devices


def _within_memory(
    comms: list[Communicator], devices: list[Device], options: Options
) -> tuple[Options, bool]:
    """Lowers the largest size to what the hosts can hold: input, output and expected value."""
    here = devices[comms[0].rank].hostname
    neighbours = sum(1 for device in devices if device.hostname == here)
    limits: list[Any] = []
    for comm in comms:
        room = _available_bytes() // neighbours // 4
        if options.period:
            # One whole output; of the other buffers, and of what is compared with them, a period.
            room = max(room, _available_bytes() // 2 - 4 * options.period * neighbours)
        if comm.device is not None:
            # As nccl-tests has it: the rest is for the library, and for what the driver holds back.
            room = min(room, int(_gpu(comm.device)["free_bytes"] * 0.9) // 2)
            if options.registered:
                # The others may hold the buffers of the size before until the next are made.
                room //= 2
        limits.append((ctypes.c_int64 * 1)(room))
    with group():
        for comm, limit in zip(comms, limits):
            comm.all_reduce(limit, "min")
    largest = max(int(limits[0][0]), 1)
    if options.maxbytes <= largest:
        return options, False
    values = {**vars(options), "maxbytes": largest, "minbytes": min(options.minbytes, largest)}
    return Options(**values), True


def _region(comms: list[Communicator], devices: list[Device], options: Options) -> int:
    """The bytes through which buffers move, the same on all ranks."""
    if options.hot:
        return 0
    hosts = collections.Counter(device.hostname for device in devices)
    crowd = 1 if comms[0].device is not None else max(hosts.values())
    return _REGION_BYTES * _RANKS_WITH_WHOLE_REGIONS // max(crowd, _RANKS_WITH_WHOLE_REGIONS)


def _available_bytes() -> int:
    with contextlib.suppress(OSError, ValueError), Path("/proc/meminfo").open() as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return 1 << 62
