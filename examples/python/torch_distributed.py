"""torch.distributed over Ropewalk, on GPUs where there are any.

Run as torchrun --nproc-per-node 2 torch_distributed.py, or under mpirun or srun; needs PyTorch (pip
install torch).
"""

import os

import ropewalk.torch_backend
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

# The launcher's ranks, whichever launcher it is; alone: one rank.
dist.init_process_group("ropewalk", init_method="ropewalk://")
device = torch.device("cpu")
if ropewalk.device_count() >= dist.get_world_size():
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.cuda.set_device(device)

torch.manual_seed(dist.get_rank())  # DDP begins with rank 0's parameters
model = DistributedDataParallel(torch.nn.Linear(8, 1).to(device))
loss = model(torch.ones(4, 8, device=device)).square().mean()
loss.backward()

gradients = [torch.zeros(8, device=device) for _ in range(dist.get_world_size())]
dist.all_gather(gradients, model.module.weight.grad.flatten())
if dist.get_rank() == 0:
    same = all(torch.equal(one, gradients[0]) for one in gradients)
    print(f"{len(gradients)} ranks: gradients equal: {same}")
dist.destroy_process_group()
