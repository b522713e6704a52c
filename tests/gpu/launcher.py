"""Starts a script as one or several processes on Ropewalk's libnccl.so.2.

python tests/gpu/launcher.py N SCRIPT [ARGUMENT...] does it by hand; $RW_NCCL_LIBRARY names the
library, else it is the one in $RW_BUILD_DIR or build/release.
"""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent


def library() -> Path:
    named = os.environ.get("RW_NCCL_LIBRARY")
    if named:
        return Path(named).resolve()
    return ROOT / os.environ.get("RW_BUILD_DIR", "build/release") / "libnccl.so.2"


def gpus() -> int:
    try:
        listing = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return len(listing.stdout.splitlines())


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def lost_after_kill(processes: list[subprocess.Popen[str]], limit_s: float) -> tuple[float, str]:
    """Kills the second of two ranks once both have printed that they are waiting. The seconds until
    the first one had PeerLostError, and its words. Ends both."""
    try:
        for process in processes:
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("waiting"):
                    break
        time.sleep(0.5)
        killed = time.time()
        processes[1].kill()
        said = processes[0].communicate(timeout=limit_s)[0]
        found = re.search(r"PeerLostError at ([0-9.]+): (.*)", said)
        assert found, said
        return float(found.group(1)) - killed, found.group(2)
    finally:
        for process in processes:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Ended:
    """How one process ended."""

    rank: int
    status: int
    output: str


def host_of(rank: int, ranks: int, hosts: int) -> dict[str, str]:
    """NCCL's variable for what host a rank is on; nothing where there is one."""
    return {} if hosts == 1 else {"NCCL_HOSTID": f"host{rank * hosts // ranks}"}


def run(
    ranks: int,
    script: str,
    *arguments: str,
    limit_s: float = 240,
    ours: bool = True,
    hosts: int = 1,
) -> list[Ended]:
    """Runs `script` of this folder in `ranks` processes with torchrun's variables.

    Without `ours` they run on the library that they find by themselves. As far as it knows they are
    on so many `hosts`, the first of which have more if they cannot have equally many.

    What has not ended after `limit_s` is killed, and so is the rest once a process has failed for
    20 s.
    """
    common = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(free_port()),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks),
        "PYTHONUNBUFFERED": "1",
        "RW_NCCL_LIBRARY": str(library()),
    }
    if ours:
        common["LD_PRELOAD"] = str(library())
    processes = [
        subprocess.Popen(
            [sys.executable, str(HERE / script), *arguments],
            env={
                **common,
                "RANK": str(rank),
                "LOCAL_RANK": str(rank),
                **host_of(rank, ranks, hosts),
            },
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        for rank in range(ranks)
    ]
    end = time.monotonic() + limit_s
    try:
        while any(process.poll() is None for process in processes):
            if any(process.poll() not in (None, 0) for process in processes):
                end = min(end, time.monotonic() + 20)
            if time.monotonic() > end:
                break
            time.sleep(0.05)
    finally:
        for process in processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
    return [
        Ended(rank, process.wait(), process.communicate()[0])
        for rank, process in enumerate(processes)
    ]


def main() -> int:
    ended = run(int(sys.argv[1]), *sys.argv[2:])
    for one in ended:
        print(f"--- rank {one.rank}: exit status {one.status}\n{one.output}", end="")
    return 0 if all(one.status == 0 for one in ended) else 1


if __name__ == "__main__":
    sys.exit(main())
