"""One rank of a training run: `python -m ropewalk.training.rank JOB FD`.

JOB is a Job as JSON. Rank 0 writes JSON lines to the descriptor FD: {"step": n} after each step,
and {"result": ...} at the end.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
import warnings
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ropewalk import torch_autoload
from ropewalk.training.buckets import Buckets
from ropewalk.training.job import Job, from_text
from ropewalk.training.models import MODELS

_CLASSES = 1000
# The figures are told by then: what hangs later must not hold the next run up.
_LEAVE_SECONDS = 20.0
# The same on all ranks for the parameters; images and labels differ from rank to rank.
_SEED = 17


def run(job: Job, tell: Any) -> dict[str, Any]:
    """Trains; returns what this rank measured."""
    device = _device(job)
    torch.manual_seed(_SEED)
    model: Any = MODELS[job.model]().to(device)
    buckets = Buckets(job.device)
    if job.backend != "none":
        model = nn.parallel.DistributedDataParallel(
            model,
            device_ids=[device.index] if job.device == "cuda" else None,
            broadcast_buffers=False,  # statistics of batch normalization stay each rank's own
            gradient_as_bucket_view=True,
        )
        # PyTorch refuses annotations that are text, as they are here; a lambda has none.
        model.register_comm_hook(None, lambda state, bucket: buckets.hook(state, bucket))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001, momentum=0.9, weight_decay=1e-4)
    torch.manual_seed(_SEED + 1 + job.rank)
    images = torch.rand(job.batch, 3, job.image, job.image, device=device)
    labels = torch.randint(_CLASSES, (job.batch,), device=device)
    loss_of = nn.CrossEntropyLoss()
    mixed = torch.autocast(job.device, torch.bfloat16, enabled=job.precision == "bfloat16")

    times: list[float] = []
    collectives: list[float] = []
    exposed: list[float] = []
    for step in range(job.warmup + job.steps):
        began = time.perf_counter()
        buckets.begin()
        optimizer.zero_grad()
        with mixed:
            loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()
        if job.device == "cuda":
            torch.cuda.synchronize()
        took = time.perf_counter() - began
        if step >= job.warmup:
            times.append(took)
            busy, bare = buckets.figures()
            collectives.append(busy)
            exposed.append(bare)
        tell({"step": step + 1})
    return {
        "times": times,
        "collectives": collectives,
        "exposed": exposed,
        "bucket_bytes": buckets.bytes,
        "parameters": sum(each.numel() for each in model.parameters()),
        # Equal on all ranks to the bit, if every all-reduce gave all the same.
        "digest": [float(each.detach().double().sum()) for each in model.parameters()],
    }


def _device(job: Job) -> Any:
    if job.device == "cpu":
        torch.set_num_threads(job.threads)
        return torch.device("cpu")
    device = torch.device("cuda", job.local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def main(arguments: list[str]) -> int:
    """The program."""
    job = from_text(arguments[0])
    # Of deprecations that differ from PyTorch to PyTorch: each rank would print each.
    warnings.simplefilter("ignore", FutureWarning)
    warnings.filterwarnings("ignore", "Device capability")
    out = None if job.rank else os.fdopen(int(arguments[1]), "w", buffering=1)

    def tell(what: dict[str, Any]) -> None:
        if out is not None:
            out.write(json.dumps(what) + "\n")

    host, port = job.store.split()
    limit = timedelta(seconds=job.timeout)
    store = dist.TCPStore(host, int(port), is_master=False, timeout=limit)
    if job.backend != "none":
        torch_autoload.register()  # where PyTorch has not done so
        dist.init_process_group(
            job.backend,
            store=dist.PrefixStore("group", store),
            rank=job.rank,
            world_size=job.size,
            timeout=limit,
        )
    measured = run(job, tell)
    # By the store: what is measured must not depend on what is tried.
    store.set(f"measured/{job.rank}", json.dumps(measured))
    if job.rank == 0:
        ranks = [json.loads(store.get(f"measured/{rank}")) for rank in range(job.size)]
        tell({"result": ranks})
    if job.backend != "none":
        dist.destroy_process_group()
    return 0


def _reported(arguments: list[str]) -> int:
    """The program; what a network or PyTorch raises is one line on standard error."""
    job = from_text(arguments[0])
    try:
        return main(arguments)
    except KeyboardInterrupt:
        return 130
    except (RuntimeError, ValueError, OSError) as error:
        first = str(error).strip().split("\n")[0]
        print(f"ropewalk: rank {job.rank}, {job.backend}: {first}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    status = _reported(sys.argv[1:])
    sys.stdout.flush()
    if status != 0:
        os._exit(status)  # threads of a backend that failed may never end
    # Communicators leave at the program's end, and write their records then (setting TRACE_FILE).
    late = threading.Timer(_LEAVE_SECONDS, os._exit, (0,))
    late.daemon = True
    late.start()
