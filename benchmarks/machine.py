"""Facts about the machine and the source to keep with a benchmark's result; starting its
programs."""

from __future__ import annotations

import contextlib
import os
import platform
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


class LaunchError(Exception):
    """A program could not be started, failed, or ran past its time; `output` is what it printed."""

    def __init__(self, message: str, output: str = "") -> None:
        super().__init__(message)
        self.output = output


def end_programs_on_sigterm() -> None:
    """Turns SIGTERM into an exception, so that programs of run_program are ended too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


def run_program(
    command: list[str], environment: dict[str, str] | None = None, limit_s: float = 300
) -> str:
    """Standard output of `command`, started with `environment` on top of the caller's.

    The program gets a process group of its own. When `limit_s` passes, the group gets SIGTERM, then
    SIGKILL, so that no rank outlives its launcher.
    """
    try:
        process = subprocess.Popen(
            command,
            env=os.environ | (environment or {}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
    except OSError as error:
        raise LaunchError(f"{command[0]}: {error.strerror}") from error
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        output, errors = _end(process)
        raise LaunchError(f"{' '.join(command)}: not done after {limit_s:g} s", output) from None
    except BaseException:
        _end(process)
        raise
    if process.returncode != 0:
        last = " / ".join((errors or output).strip().splitlines()[-3:])
        raise LaunchError(f"{' '.join(command)}: exit status {process.returncode}: {last}", output)
    return output


def _end(process: subprocess.Popen[str]) -> tuple[str, str]:
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        try:
            return process.communicate(timeout=5)
        except subprocess.TimeoutExpired:
            continue
    return process.communicate()


def _first_match(path: str, key: str) -> str:
    try:
        for line in Path(path).read_text().splitlines():
            if line.startswith(key):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return "unknown"


def _read(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return "unknown"


def commit() -> str:
    """The commit of the source, with "+changes" when the tree differs from it."""
    try:
        name = run_program(["git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD"]).strip()
        status = ["git", "-C", str(ROOT), "status", "--porcelain", "--untracked-files=no"]
        return name + ("+changes" if run_program(status).strip() else "")
    except LaunchError:
        return "unknown"


def _processor_numbers() -> str:
    """What tells processors apart whose names a hypervisor shortens to "AMD EPYC" and the like."""
    keys = {"family": "cpu family", "model": "model\t", "stepping": "stepping"}
    numbers = {name: _first_match("/proc/cpuinfo", key) for name, key in keys.items()}
    return ", ".join(f"{name} {number}" for name, number in numbers.items())


def _caches(cpu: int) -> str:
    """Kind and size of each cache of a CPU; a shared one is counted whole."""
    found = []
    for folder in sorted(Path(f"/sys/devices/system/cpu/cpu{cpu}/cache").glob("index*")):
        level, kind, size = (_read(str(folder / name)) for name in ("level", "type", "size"))
        letter = {"Data": "d", "Instruction": "i"}.get(kind, "")
        found.append(f"L{level}{letter} {size}")
    return ", ".join(found) or "unknown"


def describe() -> dict[str, object]:
    """What a reader must know to judge the numbers."""
    return {
        "processor": _first_match("/proc/cpuinfo", "model name"),
        "processor_numbers": _processor_numbers(),
        "caches": _caches(min(os.sched_getaffinity(0))),
        "cpus": len(os.sched_getaffinity(0)),
        "memory": _first_match("/proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "system": _read("/etc/os-release").split('PRETTY_NAME="')[-1].split('"')[0],
        "hypervisor": "hypervisor" in _first_match("/proc/cpuinfo", "flags").split(),
        "huge_pages": _read("/sys/kernel/mm/transparent_hugepage/enabled"),
        "python": platform.python_version(),
    }


def load_average() -> float:
    """Load average: mean number of running and runnable processes in the last minute."""
    return os.getloadavg()[0]


def pick_cpus(count: int) -> list[int]:
    """`count` allowed CPUs that share no core; fewer when the machine has fewer."""
    chosen: list[int] = []
    cores: set[str] = set()
    for cpu in sorted(os.sched_getaffinity(0)):
        siblings = _read(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list")
        core = str(cpu) if siblings == "unknown" else siblings
        if core not in cores:
            cores.add(core)
            chosen.append(cpu)
        if len(chosen) == count:
            break
    return chosen
