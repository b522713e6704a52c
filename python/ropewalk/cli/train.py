"""`ropewalk train`: what a training step takes over each network."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated, Any, Final, Optional

import typer
from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from ropewalk import __version__
from ropewalk.cli import bench_json, console, train_backends, train_ranks
from ropewalk.cli.train_backends import Backend
from ropewalk.training.figures import Baseline, Figures, of_ranks
from ropewalk.training.job import Job

HELP = """
Train networks with synthetic data, and tell what a step takes over each backend.

Distributed data-parallel training by PyTorch's DistributedDataParallel: every rank has the whole
network and its own images, and gradients are summed by all-reduce while backward computation goes
on. The table has, for each model and backend: the batch time of the slowest rank (median and 95th
percentile), the time in which collectives were under way, what of it backward computation did not
hide, images per second of all ranks, and the scaling efficiency: the rate over the number of ranks
times that of one rank which runs alone. The row (none) has as many ranks that compute at once and
do not communicate: what its efficiency is below 1 is the host's, not the network's.

\b
Models: resnet50, efficientnet_b0, mobilenet_v3_large.
Backends: ropewalk, nccl, nccl+plugin (NCCL over Ropewalk's network plugin), gloo. Settings of
Ropewalk follow a colon: ropewalk:NET=tcp.

Without a launcher, --ranks N starts N local ranks. Under torchrun, mpirun or srun the ranks are the
launcher's. Each rank, model and backend has a process of its own.

Examples:

\b
  ropewalk train --model mobilenet_v3_large --device cpu --batch 2 --image 64 --steps 5
      two local ranks on the CPU, over Ropewalk and Gloo
  ropewalk train --model resnet50,efficientnet_b0 --device cuda --backend ropewalk,nccl -J run.json
      all in turn, also as JSON
  torchrun --nproc-per-node 8 --no-python ropewalk train --device cuda --plot run.svg
      ranks started by a launcher, and a chart

Exit status: 0 when all ranks of each run ended with the same parameters, 1 when not, 2 for a wrong
command line, another value when a rank failed.
"""

_MODELS: Final = ("resnet50", "efficientnet_b0", "mobilenet_v3_large")


def train(
    model: Annotated[str, typer.Option("--model", help="Models, with commas between.")] = ",".join(
        _MODELS
    ),
    backend: Annotated[
        Optional[str],
        typer.Option(
            "--backend",
            help="Backends, with commas between; ropewalk,gloo on CPUs, ropewalk,nccl on GPUs.",
        ),
    ] = None,
    device: Annotated[
        Optional[str], typer.Option("--device", help="cpu or cuda (cuda where there is a GPU).")
    ] = None,
    ranks: Annotated[
        Optional[int], typer.Option("--ranks", help="Start this many local ranks (2).")
    ] = None,
    batch: Annotated[int, typer.Option("--batch", help="Images of a step, on each rank.")] = 32,
    image: Annotated[int, typer.Option("--image", help="Edge of an image, pixels.")] = 224,
    steps: Annotated[int, typer.Option("--steps", help="Steps that are timed.")] = 20,
    warmup: Annotated[
        int, typer.Option("--warmup", help="Steps before, in the first of which buckets change.")
    ] = 5,
    rounds: Annotated[int, typer.Option("--rounds", help="How often the backends take turns.")] = 1,
    precision: Annotated[
        str, typer.Option("--precision", help="float32, or bfloat16 by PyTorch's autocast.")
    ] = "float32",
    timeout: Annotated[
        float, typer.Option("--timeout", help="Seconds that joining or an operation may take.")
    ] = 300.0,
    json_file: Annotated[
        Optional[Path], typer.Option("-J", "--json", help="Write the figures to this file.")
    ] = None,
    plot: Annotated[
        Optional[Path], typer.Option("--plot", help="Draw them (.svg, .png, .pdf).")
    ] = None,
    set_: console.SettingOption = None,
) -> None:
    """See HELP."""
    models = _models(model)
    for flag, value, low in (
        ("--batch", batch, 1),
        ("--image", image, 1),
        ("--steps", steps, 1),
        ("--warmup", warmup, 1),
        ("--rounds", rounds, 1),
    ):
        if value < low:
            console.fail(f"{flag} {value}: must be {low} or more", console.USAGE)
    if not timeout > 0:
        console.fail(f"--timeout {timeout:g}: must be above 0", console.USAGE)
    if batch * (-(-image // 32)) ** 2 < 2:
        console.fail(
            f"--batch {batch} --image {image}: the last layers would have one value of each "
            "channel, which cannot be normalized; take --batch 2 or --image 64",
            console.USAGE,
        )
    if precision not in ("float32", "bfloat16"):
        console.fail(f'--precision "{precision}" is none of float32, bfloat16', console.USAGE)
    if importlib.util.find_spec("torch") is None:
        console.fail('PyTorch is not installed: pip install "ropewalk[torch]"', console.USAGE)
    console.apply_settings(set_)
    for entry in [*console.pending_settings, *(set_ or [])]:  # for the processes of the ranks
        name, _, value_ = entry.partition("=")
        os.environ["ROPEWALK_" + name.upper().removeprefix("ROPEWALK_")] = value_
    chosen = _device(device)
    backends = train_backends.parse(
        backend or ("ropewalk,gloo" if chosen == "cpu" else "ropewalk,nccl"), chosen
    )
    stream: Any = None
    if plot is not None and plot.suffix not in (".svg", ".png", ".pdf"):
        console.fail(f"--plot {plot}: must end in .svg, .png or .pdf", console.USAGE)
    found = train_ranks.find(ranks)
    if json_file is not None and found.shows:
        try:
            json_file, stream = bench_json.create(json_file)
        except OSError as error:
            console.fail(f"{json_file}: {error.strerror}", console.USAGE)
    job = Job(
        model="", backend="", batch=batch, image=image, steps=steps, warmup=warmup,
        precision=precision, device=chosen, rank=0, size=found.size, local_rank=0,
        threads=_threads(found.on_host), store="", timeout=timeout,
    )  # fmt: skip
    started = time.strftime("%Y-%m-%dT%H:%M:%S%z")
    results, baselines, sizes = _measure(found, job, models, backends, rounds)
    if not found.shows:
        return
    _print(results, baselines, job)
    if stream is not None:
        _write(stream, results, baselines, sizes, job, started, rounds)
    if plot is not None:
        from ropewalk.cli import train_plot

        where = f"{found.size} ranks, batch {batch} of {image}x{image}, {precision}, {chosen}"
        try:
            train_plot.draw(results, baselines, f"A training step: {where}", plot)
        except OSError as error:
            console.fail(f"{plot}: {error.strerror}", console.USAGE)
    if not all(each.consistent for of in results.values() for each in of.values()):
        console.fail("ranks ended with different parameters", console.WRONG)


def _models(text: str) -> list[str]:
    names = [each.strip() for each in text.split(",")]
    for name in names:
        if name not in _MODELS:
            console.fail(f'--model "{name}" is none of {", ".join(_MODELS)}', console.USAGE)
        if names.count(name) > 1:
            console.fail(f'--model: "{name}" is named twice', console.USAGE)
    return names


def _device(given: Optional[str]) -> str:
    if given not in (None, "cpu", "cuda"):
        console.fail(f'--device "{given}" is none of cpu, cuda', console.USAGE)
    if given == "cpu":
        return given
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if given == "cuda":
        console.fail("--device cuda: PyTorch finds no GPU here", console.USAGE)
    return "cpu"


def _threads(ranks_here: int) -> int:
    """Of PyTorch in a rank: more than its share of the cores would starve the communication."""
    text = os.environ.get("OMP_NUM_THREADS", "")
    if text.isdigit() and int(text) > 0:
        return int(text)
    return max(1, len(os.sched_getaffinity(0)) // max(1, ranks_here))


def _measure(
    found: train_ranks.Ranks, job: Job, models: list[str], backends: list[Backend], rounds: int
) -> tuple[dict[str, dict[str, Figures]], dict[str, Baseline], dict[str, dict[str, Any]]]:
    """Of each model: figures of each backend, batch times without communication, sizes."""
    runs = [train_backends.one_rank(), train_backends.baseline(), *backends]
    if job.size == 1:
        del runs[0]  # it is the other one
    measured: dict[str, dict[str, list[list[dict[str, Any]]]]] = {
        model: {run.label: [] for run in runs} for model in models
    }
    with _Shown(len(models) * rounds * len(runs) * (job.steps + job.warmup), found.shows) as shown:
        for turn in range(rounds):
            for model in models:
                for run in runs:
                    shown.begin(
                        f"{model} over {run.label}" + (f", round {turn + 1}" if rounds > 1 else "")
                    )
                    start = found.run_one if run.label == train_backends.ONE_RANK else found.run
                    got = start(replace(job, model=model), run, shown.step)
                    measured[model][run.label].append(got)
    if not found.shows:
        return {}, {}, {}
    results: dict[str, dict[str, Figures]] = {}
    baselines: dict[str, Baseline] = {}
    sizes: dict[str, dict[str, Any]] = {}
    for model in models:
        one_rank, at_once = (
            of_ranks(measured[model][run.label], job.batch, None, together=False).batch_median
            for run in (runs[0], train_backends.baseline())
        )
        baselines[model] = Baseline(one_rank, at_once)
        results[model] = {
            run.label: of_ranks(
                measured[model][run.label], job.batch, baselines[model], together=True
            )
            for run in backends
        }
        any_rank = measured[model][backends[0].label][0][0]
        sizes[model] = {key: any_rank[key] for key in ("parameters", "bucket_bytes")}
    return results, baselines, sizes


class _Shown:
    """Progress: a bar on a terminal, one line for each run in a pipe."""

    def __init__(self, steps: int, wanted: bool) -> None:
        self._wanted = wanted
        self._bar: Optional[Progress] = None
        self._steps = steps
        self._done = 0

    def __enter__(self) -> _Shown:
        error = console.note()
        if self._wanted and error.is_terminal:
            self._bar = Progress(
                TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), console=error,
                transient=True,
            )  # fmt: skip
            self._bar.start()
            self._task = self._bar.add_task("", total=self._steps)
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def begin(self, what: str) -> None:
        if self._bar is not None:
            self._bar.update(self._task, description=what)
        elif self._wanted:
            print(f"ropewalk: {what}", file=sys.stderr, flush=True)

    def step(self, _number: int) -> None:
        self._done += 1
        if self._bar is not None:
            self._bar.update(self._task, completed=self._done)


def _print(
    results: dict[str, dict[str, Figures]], baselines: dict[str, Baseline], job: Job
) -> None:
    out = console.output()
    out.print(
        f"{job.size} ranks, batch {job.batch} of {job.image}x{job.image}, {job.precision}, "
        f"{job.device}; times in ms, of the slowest rank",
        highlight=False,
    )
    table = Table(box=box.SIMPLE_HEAD if out.is_terminal else None, pad_edge=False)
    # A narrow terminal folds names: cut ones could not be told apart.
    table.add_column("model", overflow="fold")
    table.add_column("backend", overflow="fold")
    for name in ("batch", "p95", "collectives", "exposed", "images/s", "efficiency"):
        table.add_column(name, justify="right")
    for model, of in results.items():
        without = baselines[model]
        for label, ranks, seconds in (
            ("(one rank)", 1, without.one_rank),
            ("(none)", job.size, without.at_once),
        ):
            table.add_row(
                model,
                label,
                f"{1e3 * seconds:.1f}",
                "",
                "",
                "",
                f"{job.batch * ranks / seconds:.1f}",
                f"{without.one_rank / seconds:.3f}",
            )
        for label, each in of.items():
            table.add_row(
                model,
                label,
                f"{1e3 * each.batch_median:.1f}",
                f"{1e3 * each.batch_p95:.1f}",
                f"{1e3 * each.collectives:.1f}",
                f"{1e3 * each.exposed:.1f}",
                f"{each.images_per_second:.1f}",
                "" if each.efficiency is None else f"{each.efficiency:.3f}",
            )
    out.print(table)


def _write(
    stream: Any,
    results: dict[str, dict[str, Figures]],
    baselines: dict[str, Baseline],
    sizes: dict[str, dict[str, Any]],
    job: Job,
    started: str,
    rounds: int,
) -> None:
    import torch

    document = {
        "version": 1,
        "ropewalk": __version__,
        "pytorch": torch.__version__,
        "start_time": started,
        "args": sys.argv,
        "unit": "seconds",
        "ranks": job.size,
        "rounds": rounds,
        **{key: getattr(job, key) for key in ("batch", "image", "steps", "warmup", "precision")},
        **{key: getattr(job, key) for key in ("device", "threads")},
        "results": [
            {
                "model": model,
                **sizes[model],
                "one_rank": baselines[model].one_rank,
                "without_communication": baselines[model].at_once,
                "backends": {label: asdict(each) for label, each in of.items()},
            }
            for model, of in results.items()
        ],
    }
    with stream:
        json.dump(document, stream, indent=1)
        stream.write("\n")
