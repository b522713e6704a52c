"""A rank under torchrun --max-restarts: one rank is killed in the first attempt. FOLDER."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import ropewalk.torch_backend  # noqa: F401
import torch
import torch.distributed as dist

attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
dist.init_process_group("ropewalk")
value = torch.ones(1)
dist.all_reduce(value)
assert value.item() == dist.get_world_size()
if attempt == 0 and dist.get_rank() == 1:
    os.kill(os.getpid(), signal.SIGKILL)
group = dist.new_group()
dist.all_reduce(value, group=group)
dist.barrier()
(Path(sys.argv[1]) / f"{attempt}.{dist.get_rank()}").touch()
dist.destroy_process_group()
