"""Which memory `ropewalk bench` works on.

The GPUs are counted in a process of its own: the ranks are forked from this one, and CUDA does not
survive a fork.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from typing import Optional

from ropewalk.cli import console

_COUNT = """
import ropewalk
print(ropewalk.device_count(), ropewalk.why_no_device())
"""


@dataclass(frozen=True)
class Site:
    """The choice."""

    gpus: int
    """GPUs of this host, one for each rank; 0: the ranks work on host memory"""
    why_host: str = ""
    """why they work on host memory"""
    note: str = ""
    """what the user may want to know, though the choice is the default"""


def count_gpus() -> tuple[int, str]:
    """GPUs that a process started here sees, and why there are none."""
    done = subprocess.run([sys.executable, "-c", _COUNT], capture_output=True, text=True)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines()
        return 0, lines[-1] if lines else f"counting the GPUs ended with {done.returncode}"
    count, _, reason = done.stdout.strip().partition(" ")
    return int(count), reason


def choose(device: Optional[str], ranks: Optional[int], how: str = "") -> Site:
    """The memory to work on.

    Args:
        device: what the user asked for: "host", "cuda", or None.
        ranks: ranks on this host; None: as many as there are GPUs.
        how: where they come from, in words.
    """
    if device == "host":
        return Site(0, "--device host was given")
    gpus, reason = count_gpus()
    if gpus and ranks is not None and ranks > gpus:
        reason = f"there are {gpus} GPUs for {ranks} ranks{how and f' ({how})'}"
    if not reason and gpus:
        return Site(gpus)
    if device == "cuda":
        console.fail(f"--device cuda: {reason}", console.USAGE)
    note = f"host memory: {reason}" if gpus else ""
    return Site(0, reason, note)
