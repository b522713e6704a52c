"""The processes of `ropewalk train`: a new one for each rank, model and backend.

New ones, since a library reads its environment once: so NCCL with and without a plugin, and
networks of Ropewalk's, can be compared in one run. They meet at a store that the first of the
launcher's processes has (or this process, with --ranks), under a name of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Callable, Final, Optional

from ropewalk.cli import console, launch
from ropewalk.cli.train_backends import Backend
from ropewalk.training.job import Job

# A rank whose peer died learns so by itself; then it is ended.
_GRACE_SECONDS: Final = 10.0
_DIGITS: Final = (
    "ROPEWALK_LOCAL_RANK",
    "LOCAL_RANK",
    "OMPI_COMM_WORLD_LOCAL_RANK",
    "SLURM_LOCALID",
)


@dataclass
class Ranks:
    """Those of the job that are started from this process."""

    first: int
    """the first one's rank; the others follow"""
    here: int
    size: int
    on_host: int
    """ranks on this host, whoever started them"""
    _store: Any
    _host: str
    _runs: int = 0

    @property
    def shows(self) -> bool:
        """Whether this process has rank 0, and so what is printed."""
        return self.first == 0

    def run(self, job: Job, backend: Backend, step: Callable[[int], None]) -> list[dict[str, Any]]:
        """Runs all ranks; returns what each measured (where rank 0 is; else nothing).

        Ends the command when one fails.
        """
        self._runs += 1
        with self._meeting_place() as place:
            job = replace(job, store=place, size=self.size, backend=backend.torch_name)
            return _run_here(
                [
                    replace(job, rank=self.first + i, local_rank=self._local(i))
                    for i in range(self.here)
                ],
                {**os.environ, **backend.environment},
                backend.label,
                step,
            )

    def run_one(
        self, job: Job, backend: Backend, step: Callable[[int], None]
    ) -> list[dict[str, Any]]:
        """The same with rank 0 alone: other processes go on at once, and wait in the next run()."""
        if not self.shows:
            return []
        import torch.distributed as dist

        store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        job = replace(
            job, store=f"127.0.0.1 {store.port}", size=1, backend=backend.torch_name, rank=0,
            local_rank=self._local(0),
        )  # fmt: skip
        return _run_here([job], {**os.environ, **backend.environment}, backend.label, step)

    def _local(self, place: int) -> int:
        if self.here > 1:
            return place
        for name in _DIGITS:
            if os.environ.get(name, "").isdigit():
                return int(os.environ[name])
        return self.first % max(1, self.on_host)

    @contextlib.contextmanager
    def _meeting_place(self) -> Iterator[str]:
        """A store for one run: nothing of the last one is found in it."""
        import torch.distributed as dist

        key = f"ropewalk/train/{self._runs}"
        if self.shows:
            store = dist.TCPStore(self._host, 0, is_master=True, wait_for_workers=False)
            text = f"{self._host} {store.port}"
            if self._store is not None:
                self._store.set(key, text)
            yield text
            if self._store is not None:  # the others' ranks may still be leaving
                for other in range(1, self.size):
                    self._store.get(f"{key}/left/{other}")
            del store
        else:
            yield self._store.get(key).decode()
            self._store.set(f"{key}/left/{self.first}", "")


def find(ranks: Optional[int]) -> Ranks:
    """From --ranks, or the launcher's environment."""
    launched = launch.launched_processes()
    if launched > 1 and ranks is not None:
        console.fail(f"--ranks: a launcher started {launched} ranks already", console.USAGE)
    if ranks is not None or launched <= 1:
        here = 2 if ranks is None else ranks
        if not 1 <= here <= 4096:
            console.fail(f"--ranks {here}: must be 1 to 4096", console.USAGE)
        return Ranks(0, here, here, here, None, "127.0.0.1")
    from torch.distributed import rendezvous

    url = "env://" if "MASTER_ADDR" in os.environ and "RANK" in os.environ else "ropewalk://"
    with console.reported():
        if url == "ropewalk://":
            from ropewalk.torch_autoload import register

            register()
        store, rank, size = next(rendezvous(url))
    from ropewalk.torch_joining import _own_name

    host = os.environ.get("MASTER_ADDR") or _own_name()
    return Ranks(rank, 1, size, launch.processes_here(), store, host)


def _run_here(
    jobs: list[Job], environment: dict[str, str], label: str, step: Callable[[int], None]
) -> list[dict[str, Any]]:
    reader, writer = os.pipe()
    running: list[subprocess.Popen[bytes]] = []
    result: list[dict[str, Any]] = []
    try:
        for job in jobs:
            running.append(
                subprocess.Popen(
                    [sys.executable, "-m", "ropewalk.training.rank", job.text(), str(writer)],
                    env=environment,
                    pass_fds=[writer],
                    stdin=subprocess.DEVNULL,
                )
            )
        os.close(writer)
        writer = -1
        pending, deadline = b"", float("inf")
        failed: Optional[tuple[int, int]] = None
        open_ = True
        while open_ or any(each.poll() is None for each in running):
            if open_ and select.select([reader], [], [], 0.05)[0]:
                got = os.read(reader, 1 << 16)
                open_ = bool(got)
                *lines, pending = (pending + got).split(b"\n")
                for line in lines:
                    told = json.loads(line)
                    if "step" in told:
                        step(told["step"])
                    else:
                        result = told["result"]
            elif not open_:
                time.sleep(0.02)
            if failed is None:
                for place, each in enumerate(running):
                    if each.poll():
                        failed = (jobs[place].rank, each.returncode)
                        deadline = time.monotonic() + _GRACE_SECONDS
                        break
            if time.monotonic() > deadline:
                break
        failed = failed or next(
            ((jobs[i].rank, each.returncode) for i, each in enumerate(running) if each.returncode),
            None,
        )
        if failed is not None:
            rank, status = failed
            how = f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"
            console.fail(f"{jobs[0].model} over {label}: rank {rank} {how}")
        return result
    finally:
        for each in running:
            if each.poll() is None:
                each.kill()
            each.wait()
        os.close(reader)
        if writer >= 0:
            os.close(writer)
