"""Sums an array over all ranks, in place and into another array.

Run: python all_reduce.py alone (one rank), or under a launcher:
    torchrun --nproc-per-node 4 all_reduce.py
    mpirun -n 4 python all_reduce.py
"""

import numpy as np
import ropewalk

with ropewalk.init() as comm:
    array = np.arange(4, dtype="float32") + comm.rank
    largest = np.empty_like(array)
    comm.all_reduce(array, "max", out=largest)  # `array` is kept
    comm.all_reduce(array)  # in place
    if comm.rank == 0:
        print(f"{comm.size} ranks: sum {array.tolist()}, max {largest.tolist()}")
