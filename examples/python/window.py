"""A ring of messages: each rank puts a line into its neighbour's window and signals.

The neighbour calls nothing to receive: it waits for the signal when it needs the line.

Run as all_reduce.py.
"""

import numpy as np
import ropewalk

with ropewalk.init() as comm, comm.window(1024) as window:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    memory = window.memory()  # this rank's part
    assert memory is not None  # the library allocated it
    mine = np.frombuffer(memory, dtype="float64")

    line = np.full(4, comm.rank, dtype="float64")
    window.put(line, right)
    window.signal(right)  # is seen after the put's data
    window.wait_signal(left)
    received = mine[:4].copy()

    # The same exchange ten times, prepared once.
    batch = window.batch().put(line, right, offset=64).signal(right).wait_signal(left)
    for step in range(10):
        line[:] = comm.rank + step
        batch.launch()
        assert (mine[8:12] == left + step).all()
        comm.barrier()  # the next step overwrites it
    if comm.rank == 0:
        print(f"{comm.size} ranks: from rank {left}: {received.tolist()}, then {mine[8]:g}")
