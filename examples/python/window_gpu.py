"""A ring of messages between GPUs, in the order of their streams: the host waits for nothing.

Run as all_reduce.py, with a GPU for each rank (or one for all). Needs PyTorch.
"""

import ropewalk
import torch

with ropewalk.init(device="cuda") as comm:
    device = torch.device("cuda", comm.device)
    torch.cuda.set_device(device)
    stream = torch.cuda.Stream()
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    with comm.window(1024, device=device.index) as window, torch.cuda.stream(stream):
        mine = torch.as_tensor(window.device_memory(), device=device).view(torch.float32)
        line = torch.full((4,), 1.0, device=device) * comm.rank
        window.put_signal(line, right, stream=stream)  # after the kernel that makes the line
        window.wait_signal(left, stream=stream)
        received = (mine[:4] + 0.5).tolist()  # waits for the stream
        comm.barrier()
    if comm.rank == 0:
        print(f"{comm.size} ranks: from rank {left}: {received}")
