"""Works while an operation runs: start, compute, wait.

Run as all_reduce.py.
"""

import numpy as np
import ropewalk

with ropewalk.init() as comm:
    gradients = np.full(1_000_000, comm.rank + 1, dtype="float32")
    handle = comm.all_reduce(gradients, "avg", blocking=False)
    other = np.sqrt(np.arange(1000.0)).sum()  # `gradients` must not be touched meanwhile
    while True:
        try:
            result = handle.wait(timeout=1.0)  # seconds
            break
        except ropewalk.TimeoutError:
            print(f"rank {comm.rank} still waits")
    if comm.rank == 0:
        print(f"{comm.size} ranks: average {result[0]:g}, meanwhile {other:.2f}")
