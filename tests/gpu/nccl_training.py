"""A few steps of DDP and of FSDP; rank 0 writes the parameters to the file that is named."""

from __future__ import annotations

import ctypes
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
device = torch.device("cuda", int(os.environ["LOCAL_RANK"]))
torch.cuda.set_device(device)
first = ctypes.CDLL(None)
if "LD_PRELOAD" in os.environ:
    first.ncclGetErrorString.restype = ctypes.c_char_p
    assert first.ncclGetErrorString(6).startswith(b"another rank ended")
torch.use_deterministic_algorithms(True)
dist.init_process_group("nccl", rank=rank, world_size=size)


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(
        torch.nn.Linear(512, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 512)
    ).to(device)


def train(wrapped: torch.nn.Module) -> None:
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.05, momentum=0.9)
    chance = torch.Generator(device=device).manual_seed(rank)
    for _ in range(6):
        data = torch.randn(64, 512, generator=chance, device=device)
        optimizer.zero_grad()
        (wrapped(data) - data).square().mean().backward()
        optimizer.step()


kept: dict[str, torch.Tensor] = {}
plain = model()
train(DistributedDataParallel(plain, device_ids=[device.index]))
kept |= {f"ddp.{name}": value.cpu() for name, value in plain.state_dict().items()}
sharded = FullyShardedDataParallel(model(), device_id=device, use_orig_params=True)
train(sharded)
with FullyShardedDataParallel.summon_full_params(sharded):
    kept |= {f"fsdp.{name}": value.detach().cpu() for name, value in sharded.named_parameters()}
if rank == 0:
    torch.save(kept, sys.argv[1])
torch.cuda.synchronize()
dist.destroy_process_group()
print("all done")
