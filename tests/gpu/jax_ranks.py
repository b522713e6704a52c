"""JAX with a process for each GPU: an all-reduce and an all-gather by pmap over all of them."""

from __future__ import annotations

import ctypes
import os

import jax
import jax.numpy as jnp
import numpy as np

first = ctypes.CDLL(None)
first.ncclGetErrorString.restype = ctypes.c_char_p
assert first.ncclGetErrorString(6).startswith(b"another rank ended")
rank, size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
jax.distributed.initialize(
    f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}",
    num_processes=size,
    process_id=rank,
    local_device_ids=[int(os.environ["LOCAL_RANK"])],
)
assert (jax.device_count(), jax.local_device_count()) == (size, 1)
every = np.arange(size * 1000, dtype=np.float32).reshape(size, 1000)
own = jnp.asarray(every[rank : rank + 1])
summed = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(own)
np.testing.assert_array_equal(np.asarray(summed.addressable_data(0)).reshape(1000), every.sum(0))
gathered = jax.pmap(lambda x: jax.lax.all_gather(x, "i"), axis_name="i")(own)
np.testing.assert_array_equal(np.asarray(gathered.addressable_data(0)).reshape(size, 1000), every)
jax.distributed.shutdown()
print("all done")
