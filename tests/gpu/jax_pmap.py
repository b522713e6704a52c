"""JAX: all-reduce over all GPUs by pmap and by shard_map."""

from __future__ import annotations

import ctypes

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, PartitionSpec

first = ctypes.CDLL(None)
first.ncclGetErrorString.restype = ctypes.c_char_p
assert first.ncclGetErrorString(6).startswith(b"another rank ended")
n = jax.device_count()
shards = jnp.arange(n * 1000, dtype=jnp.float32).reshape(n, 1000)
summed = jax.pmap(lambda x: jax.lax.psum(x, "i"), axis_name="i")(shards)
np.testing.assert_array_equal(np.asarray(summed)[0], np.asarray(shards).sum(0))
mesh = Mesh(np.array(jax.devices()), ("i",))
shard_map = getattr(jax, "shard_map", None)
if shard_map is None:
    from jax.experimental.shard_map import shard_map
summed = jax.jit(
    shard_map(
        lambda x: jax.lax.psum(x, "i"),
        mesh=mesh,
        in_specs=PartitionSpec("i"),
        out_specs=PartitionSpec(),
    )
)(shards)
np.testing.assert_array_equal(np.asarray(summed)[0], np.asarray(shards).sum(0))
print("all done")
