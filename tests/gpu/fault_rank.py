"""One rank of faults_gpu_test.py: HOW UNIQUE_ID RANK RANKS. Rank 1 never calls the operation."""

from __future__ import annotations

import sys
import time

import ropewalk
import torch


def main() -> None:
    how, made, rank, ranks = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    device = rank % ropewalk.device_count()
    comm = ropewalk.init(unique_id=bytes.fromhex(made), rank=rank, size=ranks, device=device)
    tensor = torch.ones(1 << 20, device=f"cuda:{device}")
    comm.all_reduce(tensor)
    torch.cuda.synchronize()
    print("waiting", flush=True)
    if rank != 0:
        time.sleep(60)
        return
    try:
        if how == "handle":
            comm.all_reduce(tensor, blocking=False).wait(30)
        else:
            comm.all_reduce(tensor)
            torch.cuda.synchronize()
            comm.check()
        print("no error", flush=True)
    except ropewalk.PeerLostError as error:
        print(f"PeerLostError at {time.time():.3f}: {error}", flush=True)
        comm.abort()


if __name__ == "__main__":
    main()
