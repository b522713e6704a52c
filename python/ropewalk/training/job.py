"""What one rank of a training run is told, as JSON on its command line."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass


@dataclass(frozen=True)
class Job:
    """One network, trained over one backend."""

    model: str
    backend: str
    """PyTorch's name of the backend; "none": every rank for itself, without communication"""
    batch: int
    """images of a step, on each rank"""
    image: int
    """edge of an image, pixels"""
    steps: int
    warmup: int
    """steps before those that are timed"""
    precision: str
    device: str
    """"cpu" or "cuda"""
    rank: int
    size: int
    local_rank: int
    threads: int
    """threads of PyTorch on the CPU"""
    store: str
    """"HOST PORT" of the TCPStore where the ranks meet"""
    timeout: float
    """seconds that an operation, and joining, may take"""

    def text(self) -> str:
        """As JSON."""
        return json.dumps(asdict(self))


def from_text(text: str) -> Job:
    """What `text` gave."""
    return Job(**json.loads(text))
