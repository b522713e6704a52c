"""Ranks under torchrun --max-restarts: FOLDER RESTARTS KIND..., of rendezvous.

Parses arguments as torchrun does and lets its agent start the ranks, for one kind after the other.
They are forked from here, where PyTorch has been imported, which torchrun's own are not. In each
attempt but the last one a rank dies, in turn the one and the other, and in turn at another place:
alone at an operation, while the other one joins a group, and before it has joined itself.
"""

from __future__ import annotations

import faulthandler
import os
import random
import signal
import socket
import sys
from pathlib import Path
from types import FrameType
from typing import Optional

import ropewalk.torch_backend  # noqa: F401
import torch
import torch.distributed as dist
from torch.distributed import run
from torch.distributed.launcher.api import elastic_launch

# After this time a rank counts as hanging, and prints where.
SECONDS_OF_A_KIND = 120
SECONDS_OF_AN_ATTEMPT = 40


def free_port() -> int:
    """Not an ephemeral port."""
    while True:
        port = random.randrange(20000, 32000)
        with socket.socket() as tried:
            if tried.connect_ex(("127.0.0.1", port)) != 0:
                return port


def arguments(kind: str, folder: Path, restarts: int) -> list[str]:
    """torchrun's own, before the program."""
    c10d = ["--rdzv-backend=c10d", "--rdzv-id=job"]
    rendezvous = {
        "static": ["--master-addr=127.0.0.1", f"--master-port={free_port()}"],
        "standalone": ["--standalone"],
        "c10d": [*c10d, f"--rdzv-endpoint=127.0.0.1:{free_port()}"],
        "c10d over a file": [
            *(*c10d, "--rdzv-conf=store_type=file", f"--rdzv-endpoint={folder}/rendezvous")
        ],
        "file://": ["--standalone"],
    }
    return [
        *("--nproc-per-node=2", f"--max-restarts={restarts}", "--monitor-interval=0.05"),
        *rendezvous[kind],
    ]


def rank_main(kind: str, folder: Path, restarts: int) -> None:
    # torchrun's ranks are programs of their own, which its SIGTERM ends. A forked one has the
    # agent's handler, in Python, which cannot run while PyTorch waits in C++ for one that died.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    faulthandler.dump_traceback_later(SECONDS_OF_AN_ATTEMPT)
    signal.alarm(SECONDS_OF_AN_ATTEMPT + 5)  # later, so that each rank says where it is
    attempt, rank = int(os.environ["TORCHELASTIC_RESTART_COUNT"]), int(os.environ["RANK"])

    def here(place: int) -> None:
        """A point at which a rank may die."""
        if attempt < restarts and attempt % 3 == place and rank == (attempt // 3 + 1) % 2:
            os.kill(os.getpid(), signal.SIGKILL)

    here(2)
    if kind == "file://":
        store = f"file://{folder}/store"
        dist.init_process_group("ropewalk", init_method=store, rank=rank, world_size=2)
    else:
        dist.init_process_group("ropewalk")
    value = torch.ones(1)
    dist.all_reduce(value)
    assert value.item() == dist.get_world_size()
    here(0)
    dist.all_reduce(value)
    here(1)
    group = dist.new_group()
    dist.all_reduce(value, group=group)
    if rank == 0:
        dist.send(value, 1, group=group)
    else:
        dist.recv(value, 0, group=group)
    assert value.item() == 8
    dist.barrier()
    (folder / f"ended.{attempt}.{rank}").touch()
    dist.destroy_process_group()
    faulthandler.cancel_dump_traceback_later()
    signal.alarm(0)


def start(kind: str, folder: Path, restarts: int) -> None:
    parsed = run.parse_args([*arguments(kind, folder, restarts), __file__])
    if parsed.standalone:  # as run.run does
        parsed.rdzv_backend, parsed.rdzv_endpoint, parsed.rdzv_id = "c10d", "localhost:0", "job"
    config, _, _ = run.config_from_args(parsed)
    config.start_method = "fork"
    elastic_launch(config, rank_main)(kind, folder, restarts)


def hangs(number: int, frame: Optional[FrameType]) -> None:
    """The agent ends its ranks when this is raised."""
    raise TimeoutError(f"not done in {SECONDS_OF_A_KIND} s")


def main() -> None:
    folder, restarts, kinds = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:]
    if "TORCHELASTIC_RESTART_COUNT" in os.environ:  # under torchrun itself
        rank_main(kinds[0], folder, restarts)
        return
    # Not by faulthandler's thread, whose lock the ranks would inherit.
    signal.signal(signal.SIGALRM, hangs)
    for kind in kinds:
        print(kind, flush=True)
        own = folder / kind.replace("/", "")
        own.mkdir()
        signal.alarm(SECONDS_OF_A_KIND)
        start(kind, own, restarts)
        signal.alarm(0)
        ended = sorted(path.name for path in own.glob("ended.*"))
        assert ended == [f"ended.{restarts}.{rank}" for rank in (0, 1)], ended


if __name__ == "__main__":
    main()
