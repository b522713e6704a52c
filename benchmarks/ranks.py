"""Starts the ranks of a program that joins by torchrun's variables."""

from __future__ import annotations

import os
import socket
import subprocess
from pathlib import Path

from machine import LaunchError


def start_ranks(
    program: Path, arguments: list[str], environments: list[dict[str, str]], limit_s: float = 300
) -> str:
    """One rank for each of `environments`, which are added to the caller's; what rank 0 printed."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    size = str(len(environments))
    ranks = []
    for rank, extra in enumerate(environments):
        environment = os.environ | {"RANK": str(rank), "WORLD_SIZE": size, "LOCAL_RANK": str(rank)}
        environment |= {"LOCAL_WORLD_SIZE": size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        ranks.append(
            subprocess.Popen(
                [str(program), *arguments],
                env=environment | extra,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
    try:
        outputs = [rank.communicate(timeout=limit_s) for rank in ranks]
    except subprocess.TimeoutExpired:
        raise LaunchError(f"{program}: not done after {limit_s:g} s") from None
    finally:
        for each in ranks:
            if each.poll() is None:
                each.kill()
                each.wait()
    if any(each.returncode for each in ranks):
        raise LaunchError(f"{program}: {' / '.join(each[1].strip() for each in outputs)}")
    return outputs[0][0]


def as_two_hosts(net: str) -> list[dict[str, str]]:
    """The environments of two ranks, each as if on a host of its own."""
    return [{"ROPEWALK_HOST_ID": f"host{rank}", "ROPEWALK_NET": net} for rank in range(2)]
