"""`ropewalk bench`: time an operation, in nccl-tests' words."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Optional

import typer

from ropewalk import joining
from ropewalk.cli import (
    bench_device,
    bench_ranks,
    bench_run,
    bench_schedule,
    console,
    emulation,
    launch,
    process_ranks,
)
from ropewalk.cli.bench_plan import OPERATIONS, OPERATORS, TYPES, Options, find_type
from ropewalk.communicator import Communicator

HELP = """
Time a collective operation and verify its result.

The flags, the table and the JSON are those of nccl-tests 2.19, so that scripts which read one read
the other. The memory is that of GPUs where there is one for each rank, else host memory; --device
chooses. As in nccl-tests, each operation takes other memory than the one before, here within 64 MiB
of input and as much of output, so that data comes from memory; with --hot it comes from caches.

\b
Operations: all_reduce, all_gather, reduce_scatter, broadcast, reduce, all_to_all, gather, scatter,
sendrecv.

Without a launcher, --ranks N starts N local processes, one for each GPU when N is not given. Under
torchrun, mpirun or srun the processes are the launcher's, and --ranks is not given. Each process is
one rank; with -t T and -g G it has T threads, each of which drives G ranks by one group call for
each operation. Then there is one process, unless --ranks or a launcher says otherwise.

Examples:

\b
  ropewalk bench all_reduce
      32 MiB over all GPUs of this host, or over 2 local ranks on host memory
  ropewalk bench all_reduce -g 8 -b 8 -e 128M -f 2
      8 B to 128 MiB, doubling, over 8 GPUs that one thread of one process drives
  ropewalk bench all_reduce --ranks 4 -b 8 -e 64M -f 2
      8 B to 64 MiB, doubling, over 4 local ranks
  ropewalk bench reduce_scatter -d bfloat16 -o max -b 1K -e 1M -f 4
      another type and operator
  ropewalk bench all_reduce -b 8 -e 64M -f 2 -J run.json --plot run.svg
      also as JSON and as a picture
  ropewalk bench broadcast -r -1 -n 100 -w 10
      every rank as root in turn, 100 iterations after 10 to warm up
  ropewalk bench all_reduce -b 64K -e 64K -n 1000 -I 1 -z 3
      each iteration timed, and started by all ranks together
  mpirun -n 8 ropewalk bench all_to_all -e 1M -b 8 -f 2
      ranks started by a launcher
  ropewalk bench all_reduce --set ALGORITHM=ring --pin
      a fixed algorithm, each rank bound to a core
  ropewalk bench all_reduce -b 8 -e 1M -f 2 --hot
      the same buffers again and again, as a program has that works on few data
  ropewalk bench all_reduce --device cuda --graph -b 8 -e 64K -f 2
      on GPUs, 20 operations in one CUDA graph
  ropewalk bench broadcast --emulate dgx1v --gpus 0,1,3 -b 1M -e 64M -f 4
      on three GPUs of a DGX-1 that need not be there: local ranks over links slowed down
  ropewalk bench all_reduce --emulate dgx2 -b 1G -e 1G --period 64M
      16 ranks with 1 GiB each in 4 GiB of memory: their data repeats every 64 MiB
  ropewalk bench --schedule ring.txt -b 1M -e 64M -f 2
      a schedule from `ropewalk schedule make`, or your own; its file says the number of ranks

Exit status: 0 when all results are right, 1 when one is wrong, 2 for a wrong command line, another
value when a rank failed or was killed.
"""


_PERIOD_GRANULARITY = 64 << 10
_PERIODIC = ("all_reduce", "broadcast", "reduce")


def parse_size(text: str, flag: str) -> int:
    """Bytes from "8", "64K", "1.5M", "2G": powers of 1024, as nccl-tests has it."""
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
    digits, unit = text.strip(), 1
    if digits[-1:].upper() in units:
        unit, digits = units[digits[-1].upper()], digits[:-1]
    try:
        size = float(digits) * unit
    except ValueError:
        size = -1
    if not 0 <= size < 2**63:
        console.fail(f'{flag} "{text}" is not a size; write 8, 64K, 1.5M or 2G', console.USAGE)
    return int(size)


def _number(flag: str, value: int, low: int, high: Optional[int] = None) -> int:
    if value < low or (high is not None and value > high):
        wanted = f"{low} to {high}" if high is not None else f"{low} or more"
        console.fail(f"{flag} {value}: must be {wanted}", console.USAGE)
    return value


def _only(flag: str, value: int, accepted: int, why: str) -> None:
    """Refuses a flag of nccl-tests that host memory or this version has no meaning for."""
    if value != accepted:
        console.fail(f"{flag} {value}: {why}", console.USAGE)


def _of_schedule(
    given: bench_schedule.Given, operation: Optional[str], root: int
) -> tuple[str, int]:
    """Operation and root of a schedule; what the command line says must agree."""
    named = None if operation is None else operation.replace("-", "_")
    for what, wanted, own in (("OP", named, given.collective), ("-r", root or None, given.root)):
        if wanted is not None and wanted != own:
            console.fail(f"{what} {wanted}: {given.name} is for {own}", console.USAGE)
    return given.collective, given.root


def bench(
    operation: Annotated[
        Optional[str],
        typer.Argument(metavar="[OP]", help="The operation: " + ", ".join(OPERATIONS) + "."),
    ] = None,
    ranks: Annotated[
        Optional[int],
        typer.Option(
            "--ranks",
            help=f"Start this many local processes (one per GPU; {bench_ranks.DEFAULT} on hosts).",
        ),
    ] = None,
    device: Annotated[
        Optional[str],
        typer.Option("--device", help="Memory to work on: host or cuda (cuda where it can)."),
    ] = None,
    graph: Annotated[
        bool, typer.Option("--graph", help="Capture the iterations in a CUDA graph; as -G 1.")
    ] = False,
    schedule: Annotated[
        Optional[Path],
        typer.Option(
            "--schedule", help="Run this schedule; operation, ranks and root are its own."
        ),
    ] = None,
    pin: Annotated[
        bool, typer.Option("--pin", help="Bind each thread with ranks to one core, in turns.")
    ] = False,
    minbytes: Annotated[
        str, typer.Option("-b", "--minbytes", help="Smallest size in bytes.")
    ] = "32M",
    maxbytes: Annotated[
        str, typer.Option("-e", "--maxbytes", help="Largest size in bytes.")
    ] = "32M",
    stepbytes: Annotated[
        str, typer.Option("-i", "--stepbytes", help="Step between sizes in bytes.")
    ] = "1M",
    stepfactor: Annotated[
        int, typer.Option("-f", "--stepfactor", help="Factor between sizes; over 1 it rules.")
    ] = 1,
    iters: Annotated[
        Optional[int],
        typer.Option("-n", "--iters", help="Timed iterations; 20 unless given, emulated 3."),
    ] = None,
    agg_iters: Annotated[
        int,
        typer.Option("-m", "--agg_iters", help="Operations in one iteration."),
    ] = 1,
    warmup_iters: Annotated[
        int, typer.Option("-w", "--warmup_iters", help="Iterations before, at each size.")
    ] = 1,
    run_cycles: Annotated[
        int, typer.Option("-N", "--run_cycles", help="Run and print everything so often.")
    ] = 1,
    check: Annotated[
        int, typer.Option("-c", "--check", help="Verified rounds per line; 0 verifies nothing.")
    ] = 1,
    op: Annotated[
        str, typer.Option("-o", "--op", help="Operator: " + ", ".join(OPERATORS) + ", or all.")
    ] = "sum",
    datatype: Annotated[
        str, typer.Option("-d", "--datatype", help="Type: " + ", ".join(TYPES) + ", or all.")
    ] = "float",
    root: Annotated[
        int, typer.Option("-r", "--root", help="Root of rooted operations; -1: all in turn.")
    ] = 0,
    blocking: Annotated[
        int,
        typer.Option(
            "-z",
            "--blocking",
            help="1: a barrier after each operation; 2: none; 3: after each iteration, untimed.",
        ),
    ] = 0,
    average: Annotated[
        int,
        typer.Option(
            "-a", "--average", help="Time shown: 0 of rank 0, 1 mean, 2 least, 3 most of ranks."
        ),
    ] = 1,
    timeout: Annotated[
        int, typer.Option("-T", "--timeout", help="Seconds that an operation may take; 0: ever.")
    ] = -1,
    output_file: Annotated[
        Optional[Path],
        typer.Option("-J", "--output_file", help="Write the results to this .json file too."),
    ] = None,
    plot: Annotated[
        Optional[Path],
        typer.Option("--plot", help="Draw bandwidth and latency over size (.svg, .png, .pdf)."),
    ] = None,
    report_cputime: Annotated[
        int,
        typer.Option(
            "-C", "--report_cputime", help="1: name the time cputime; on hosts it is the same."
        ),
    ] = 0,
    report_timestamps: Annotated[
        int,
        typer.Option("-S", "--report_timestamps", help="1: end each line with the time of day."),
    ] = 0,
    parallel_init: Annotated[
        int, typer.Option("-p", "--parallel_init", help="Ranks always join at once; 0 or 1.")
    ] = 0,
    stream_null: Annotated[
        int, typer.Option("-y", "--stream_null", help="GPUs work on a stream of their own; only 0.")
    ] = 0,
    local_register: Annotated[
        int,
        typer.Option(
            "-R", "--local_register", help="2: register buffers on GPUs first; 1 changes nothing."
        ),
    ] = 0,
    nthreads: Annotated[
        Optional[int],
        typer.Option("-t", "--nthreads", help="Threads in each process; 1 unless given."),
    ] = None,
    ngpus: Annotated[
        Optional[int],
        typer.Option("-g", "--ngpus", help="Ranks of each thread, a GPU for each; 1 unless given."),
    ] = None,
    cudagraph: Annotated[
        int,
        typer.Option(
            "-G", "--cudagraph", help="Capture the iterations in a CUDA graph, launched N times."
        ),
    ] = 0,
    cta_policy: Annotated[
        int, typer.Option("-x", "--cta_policy", help="NCCL's own; not given.")
    ] = -1,
    device_implementation: Annotated[
        int, typer.Option("-D", "--device_implementation", help="NCCL's own; only 0.")
    ] = 0,
    device_cta_count: Annotated[
        int, typer.Option("-V", "--device_cta_count", help="NCCL's own; not given.")
    ] = -1,
    memory: Annotated[int, typer.Option("-M", "--memory", help="GPU memory report; only 0.")] = 0,
    unalign: Annotated[
        int,
        typer.Option("-u", "--unalign", help="Elements by which buffers are off a page's start."),
    ] = 0,
    per_iter_timing: Annotated[
        int,
        typer.Option(
            "-I", "--per_iter_timing", help="1: also least, most and spread of the iterations."
        ),
    ] = 0,
    per_iter_skip: Annotated[
        int,
        typer.Option("-K", "--per_iter_skip", help="First iterations that -I's figures leave out."),
    ] = 0,
    hot: Annotated[
        bool,
        typer.Option(
            "--hot", help="The same buffers each time, from caches; else they move through 64 MiB."
        ),
    ] = False,
    period: Annotated[
        str,
        typer.Option(
            "--period",
            help="Host memory, out of place: long buffers repeat so many bytes of memory; 0: none.",
        ),
    ] = "0",
    emulate: emulation.EmulateOption = None,
    gpus: emulation.GpusOption = None,
    slowdown: emulation.SlowdownOption = None,
    set_: console.SettingOption = None,
) -> None:
    """See HELP."""
    given_schedule = None if schedule is None else bench_schedule.Given.read(schedule)
    if given_schedule is not None:
        operation, root = _of_schedule(given_schedule, operation, root)
    if operation is None:
        console.fail("OP is missing: which operation? For example: bench all_reduce", console.USAGE)
    wanted = {"alltoall": "all_to_all"}.get(operation, operation.replace("-", "_"))
    if wanted not in OPERATIONS:
        known = ", ".join(OPERATIONS)
        console.fail(f'unknown operation "{operation}"; known are {known}', console.USAGE)
    ncclish = "chooses among NCCL's own kernels; see `ropewalk config` for the settings here"
    _only("-x", cta_policy, -1, ncclish)
    _only("-D", device_implementation, 0, ncclish)
    _only("-V", device_cta_count, -1, ncclish)
    _only("-M", memory, 0, "no memory report by this version; ROPEWALK_DEBUG=INFO tells it")
    _only("-y", stream_null, 0, "the default stream is not measured by this version")
    each = max(nthreads or 1, 1) * max(ngpus or 1, 1)
    emulated = emulation.find(emulate, gpus, slowdown, None if ranks is None else ranks * each)
    if emulated is not None:
        if device == "cuda":
            console.fail("--device cuda: --emulate runs on host memory", console.USAGE)
        if len(emulated.gpus) % each:
            console.fail(
                f"-t and -g: {len(emulated.gpus)} GPUs are no multiple of {each} ranks",
                console.USAGE,
            )
        ranks, device = len(emulated.gpus) // each, "host"
    ranks_of = bench_ranks.find(ranks, nthreads, ngpus, given_schedule)
    if device not in (None, "host", "cuda"):
        console.fail(f'--device "{device}": known are host, cuda', console.USAGE)
    iters = iters if iters is not None else 20 if emulated is None else 3
    graphs = max(_number("-G", cudagraph, 0), int(graph))
    if graphs and per_iter_timing:
        console.fail("-I 1: iterations in a graph (-G) have no times of their own", console.USAGE)
    if per_iter_skip != 0:
        if not per_iter_timing:
            console.fail(f"-K {per_iter_skip}: belongs to -I 1", console.USAGE)
        _number("-K", per_iter_skip, 0, iters - 1)
    for flag, value, high in (
        ("-I", per_iter_timing, 1),
        ("-C", report_cputime, 1),
        ("-S", report_timestamps, 1),
        ("-p", parallel_init, 1),
        ("-R", local_register, 2),
    ):
        _number(flag, value, 0, high)
    type_name = "all" if datatype == "all" else find_type(datatype)
    if type_name is None:
        console.fail(f'-d: unknown type "{datatype}"; known: {", ".join(TYPES)}', console.USAGE)
    if op not in OPERATORS and op != "all":
        console.fail(f'-o: unknown operator "{op}"; known: {", ".join(OPERATORS)}', console.USAGE)
    options = Options(
        nthreads=ranks_of.threads,
        ngpus=ranks_of.per_thread,
        minbytes=parse_size(minbytes, "-b"),
        maxbytes=parse_size(maxbytes, "-e"),
        stepbytes=parse_size(stepbytes, "-i"),
        stepfactor=_number("-f", stepfactor, 0),
        iters=_number("-n", iters, 1),
        agg_iters=_number("-m", agg_iters, 1),
        warmup_iters=_number("-w", warmup_iters, 0),
        run_cycles=_number("-N", run_cycles, 1),
        check=_number("-c", check, 0),
        op=op,
        datatype=type_name,
        root=_number("-r", root, -1),
        blocking=_number("-z", blocking, 0, 3),
        average=_number("-a", average, 0, 3),
        unalign=_number("-u", unalign, 0, 1 << 20),
        per_iter_timing=bool(per_iter_timing),
        per_iter_skip=per_iter_skip,
        parallel_init=bool(parallel_init),
        report_cputime=bool(report_cputime),
        report_timestamps=bool(report_timestamps),
        graphs=graphs,
        registered=local_register == 2,
        hot=hot,
        period=parse_size(period, "--period"),
    )
    if options.period % _PERIOD_GRANULARITY:
        console.fail(f"--period {period}: must be a multiple of 64K", console.USAGE)
    if options.period and (wanted not in _PERIODIC or options.root < 0 or options.unalign):
        console.fail(
            f"--period {period}: is for {', '.join(_PERIODIC)}, with one root and without -u",
            console.USAGE,
        )
    if options.minbytes > options.maxbytes:
        console.fail(f"-b {minbytes} is larger than -e {maxbytes}", console.USAGE)
    if output_file is not None and output_file.suffix.lower() != ".json":
        console.fail(f"-J {output_file}: must end in .json", console.USAGE)
    if plot is not None and plot.suffix.lower() not in (".svg", ".png", ".pdf"):
        console.fail(f"--plot {plot}: must end in .svg, .png or .pdf", console.USAGE)
    for flag, path in (("-J", output_file), ("--plot", plot)):
        # Looked at before any rank starts; the measurement may take long.
        if path is not None and not os.access(path.parent, os.W_OK | os.X_OK):
            console.fail(f"{flag} {path}: cannot write into {path.parent}", console.USAGE)
    outputs = bench_run.Outputs(output_file, plot, sys.argv)
    chosen = OPERATIONS[wanted]
    if options.period:
        chosen = replace(chosen, in_place=False)
    given = console.waiting_for_plans(
        [*([] if emulated is None else emulated.settings()), *(set_ or [])]
    )
    if timeout >= 0:
        given.append(f"TIMEOUT={timeout}s")

    if given_schedule is not None and device is None:
        device = "host"  # what its file describes are ranks, not GPUs
    site = bench_device.choose(device, ranks_of.here, ranks_of.describe())
    if given_schedule is not None and not site.gpus:
        given = [*given_schedule.settings(), *given]
    if graphs and not site.gpus:
        console.fail(f"-G {graphs}: needs CUDA; {site.why_host}", console.USAGE)
    if options.period and site.gpus:
        console.fail(f"--period {period}: is for host memory (--device host)", console.USAGE)
    if local_register == 1:
        print(
            "# -R 1: a buffer that only its own rank registers changes nothing here; see -R 2",
            file=sys.stderr,
        )
    if options.registered and not site.gpus:
        print("# -R 2: memory of the host needs no registration", file=sys.stderr)
        options = replace(options, registered=False)
    if site.note:
        print(f"# {site.note}", file=sys.stderr)
    processes = ranks_of.processes or site.gpus or bench_ranks.DEFAULT
    if options.root >= processes * ranks_of.each:
        console.fail(f"-r {root}: there are {processes * ranks_of.each} ranks", console.USAGE)

    def body(comms: list[Communicator]) -> int:
        if site.gpus:
            ranks_of.attach(comms)
        operation = chosen
        if given_schedule is not None:
            use = given_schedule.use(comms)
            if use.status != console.OK:
                return use.status
            operation = replace(chosen, in_place=chosen.in_place and use.in_place)
        return process_ranks.in_threads(
            comms,
            ranks_of.threads,
            lambda driven: bench_run.run(driven, operation, options, outputs),
            pinned=pin,
        )

    if ranks_of.by_launcher:
        console.apply_settings(given)
        with console.reported():
            comms = joining.init_ranks(ranks_of.each)
            with process_ranks.leaving(comms):
                if pin:
                    process_ranks.pin(
                        comms[0].rank // ranks_of.each * ranks_of.threads, ranks_of.threads
                    )
                status = body(comms)
    else:
        status = launch.run_local(
            processes,
            body,
            prepare=lambda: console.apply_settings(given),
            pinned=pin,
            ranks_each=ranks_of.each,
            threads_each=ranks_of.threads,
        )
    raise typer.Exit(status)
