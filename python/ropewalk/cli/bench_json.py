"""The JSON of `ropewalk bench -J`: the keys and types of nccl-tests 2.19's file, version 3."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any, Final, Optional

from ropewalk.cli.bench_plan import Options
from ropewalk.cli.bench_table import TIME_FORMAT, Device, Line, Timing

FILE_VERSION: Final = 3
# The environment is recorded as far as it bears on the result. nccl-tests records all of it; that
# puts passwords of other programs into files that people attach to reports.
_RECORDED: Final = ("ROPEWALK_", "NCCL_", "OMPI_", "PMI", "SLURM_", "OMP_", "CUDA_", "UCX_")
_RECORDED_NAMES: Final = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR")
_SECRET: Final = ("SECRET", "TOKEN", "PASSWORD", "KEY", "RENDEZVOUS")


def create(path: Path) -> tuple[Path, Any]:
    """Opens `path`, or PATH.0, PATH.1 and so on when it exists, so that no result is lost.

    Raises:
        OSError: the file cannot be made.
    """
    tried, attempt = path, 0
    while True:
        try:
            return tried, tried.open("x")
        except FileExistsError:
            tried = path.with_name(f"{path.name}.{attempt}")
            attempt += 1


class Report:
    """Collects a run and writes it at its end."""

    def __init__(self, arguments: list[str], version_code: int) -> None:
        """Notes the start time, the command and the environment."""
        self._document: dict[str, Any] = {
            "version": FILE_VERSION,
            "start_time": time.strftime(TIME_FORMAT),
            "args": arguments,
            "env": _environment(),
            "nccl_version": version_code,
        }
        self._results: list[dict[str, Any]] = []

    def configure(
        self, options: Options, devices: list[Device], emulation: Optional[dict[str, Any]] = None
    ) -> None:
        """Notes the flags and where the ranks run; `emulation` is a key that nccl-tests has not."""
        if emulation is not None:
            self._document["emulation"] = emulation
        # Also no key of nccl-tests', whose buffers always move.
        self._document["buffers"] = {"hot": options.hot, "region_bytes": options.region}
        step = (
            {"step_factor": options.stepfactor}
            if options.stepfactor > 1
            else {"step_bytes": options.stepbytes}
        )
        self._document["config"] = {
            "nthreads": options.nthreads,
            "ngpus": options.ngpus,
            "minimum_bytes": options.minbytes,
            "maximum_bytes": options.maxbytes,
            **step,
            "warmup_iters": options.warmup_iters,
            "iterations": options.iters,
            "aggregated_iterations": options.agg_iters,
            "validation": options.check,
            "graph": options.graphs,
            "blocking_collectives": _truth(bool(options.blocking)),
            "per_iter_timing": _truth(options.per_iter_timing),
            "per_iter_skip": options.per_iter_skip,
            "parallel_init": _truth(options.parallel_init),
            "devices": [
                {
                    "rank": device.rank,
                    "group": device.group,
                    "pid": device.pid,
                    "hostname": device.hostname,
                    "device": device.device,
                    "device_hex": device.device_hex,
                    "device_info": device.info,
                }
                for device in devices
            ],
        }

    def add(self, line: Line, options: Options) -> None:
        """Adds a line of the table."""
        self._results.append(
            {
                "size": line.size,
                "count": line.count,
                "type": line.type_name,
                "redop": line.op_name,
                "root": f"{line.root:6d}",
                "out_of_place": _half(line.out_of_place, options),
                **_per_iteration("out_of_place_per_iter", line.out_of_place),
                "in_place": _half(line.in_place, options),
                **_per_iteration("in_place_per_iter", line.in_place),
                "actual_iterations": options.iters,
                "experiment_name": "",
            }
        )

    def finish(self, stream: Any, failures: int, average_busbw: float, error: str = "") -> None:
        """Writes the file and closes it."""
        self._document.update(
            results=self._results,
            out_of_bounds={"count": failures, "okay": _truth(failures == 0)},
            average_bus_bandwidth={"bandwidth": round(average_busbw, 6), "okay": "unchecked"},
            errors=[error],
            end_time=time.strftime(TIME_FORMAT),
        )
        with stream:
            json.dump(self._document, stream)
            stream.write("\n")


def _truth(value: bool) -> str:
    return "true" if value else "false"  # nccl-tests writes truth values as strings


def _half(timing: Optional[Timing], options: Options) -> Optional[dict[str, Any]]:
    if timing is None:
        return None
    return {
        "cpu_time" if options.report_cputime else "time": round(timing.time_us, 6),
        "alg_bw": round(timing.algbw, 6),
        "bus_bw": round(timing.busbw, 6),
        "nwrong": None if timing.wrong is None else float(timing.wrong),
    }


def _per_iteration(key: str, timing: Optional[Timing]) -> dict[str, Any]:
    """The key that -I adds, or nothing."""
    each = None if timing is None else timing.iterations
    if each is None:
        return {}
    figures: dict[str, Any] = {
        "skipped_iterations": each.skipped,
        "min_us": each.min_us,
        "max_us": each.max_us,
        "avg_us": each.avg_us,
        "p50_us": each.p50_us,
        "p95_us": each.p95_us,
        "p99_us": each.p99_us,
        "stdev_us": each.stdev_us,
        "cv_pct": each.cv_percent,
        "times_us": each.times_us,
    }
    if len(each.per_process_us) > 1:
        figures["per_process_max_times_us"] = each.per_process_us
    return {key: figures}


def _environment() -> list[str]:
    return [
        f"{name}={value}"
        for name, value in os.environ.items()
        if (name.startswith(_RECORDED) or name in _RECORDED_NAMES)
        and not any(word in name for word in _SECRET)
    ]
