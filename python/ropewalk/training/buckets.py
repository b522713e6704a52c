"""When each bucket of gradients is handed to a collective, and when its sum is there.

A communication hook of DistributedDataParallel does what DDP does without one (divide by the number
of ranks, all-reduce), and notes the times: by the CPU's clock, or by CUDA's events. Beside the last
bucket nothing is left to compute: it is an operation that is waited for at once (async_op=False),
which backends may run on the stream that computes.
"""

from __future__ import annotations

import time
from typing import Any

import torch
import torch.distributed as dist


class Buckets:
    """Notes the buckets of one step after the other."""

    def __init__(self, device: str) -> None:
        """For gradients on `device`, "cpu" or "cuda"."""
        self._cuda = device == "cuda"
        self._spans: list[list[Any]] = []
        self.bytes: list[int] = []
        """of each bucket of the last step, in the order of reduction"""

    def begin(self) -> None:
        """A step begins."""
        self._spans = []
        self.bytes = []

    def hook(self, _state: Any, bucket: Any) -> Any:
        """For DistributedDataParallel.register_comm_hook."""
        tensor = bucket.buffer()
        self.bytes.append(tensor.numel() * tensor.element_size())
        tensor.div_(dist.get_world_size())
        span: list[Any] = [self._stamp(), None]
        self._spans.append(span)
        if bucket.is_last():
            dist.all_reduce(tensor)
            span[1] = self._stamp()
            ended = torch.futures.Future(devices=[tensor.device] if self._cuda else None)
            ended.set_result(tensor)
            return ended
        future = dist.all_reduce(tensor, async_op=True).get_future()

        def reduced(done: Any) -> Any:
            span[1] = self._stamp()
            return done.value()[0]

        return future.then(reduced)

    def figures(self) -> tuple[float, float]:
        """Seconds of the step in collectives, and of those after the last bucket was handed over.

        The first is the time in which at least one collective is under way; it contains waiting for
        ranks that are late. The second is what backward computation does not hide: the last bucket
        is complete when the last gradient is. Call it when the step's work is done.
        """
        if not self._spans:
            return 0.0, 0.0
        first = self._spans[0][0]
        spans = [(self._since(first, start), self._since(first, end)) for start, end in self._spans]
        busy, until = 0.0, 0.0
        for start, end in sorted(spans):
            busy += max(0.0, end - max(start, until))
            until = max(until, end)
        return busy, max(0.0, until - spans[-1][0])

    def _stamp(self) -> Any:
        if not self._cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _since(self, start: Any, end: Any) -> float:
        if not self._cuda:
            return float(end - start)
        return float(start.elapsed_time(end)) / 1e3
