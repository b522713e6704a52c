"""PyTorch tensors on the CPU, bfloat16 too; nothing is copied.

Run as all_reduce.py; needs PyTorch (pip install torch).
"""

import ropewalk
import torch

with ropewalk.init() as comm:
    tensor = torch.full((2, 3), comm.rank + 1, dtype=torch.bfloat16)
    comm.all_reduce(tensor)
    blocks = torch.empty(comm.size, 3)
    comm.all_gather(torch.full((3,), float(comm.rank)), out=blocks)
    if comm.rank == 0:
        print(f"{comm.size} ranks: sum {tensor[0, 0].item():g}, rows {blocks[:, 0].tolist()}")
