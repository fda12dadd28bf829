"""What jax 0.10 no longer has and brax 0.14.2 calls."""

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec


def device_put_replicated(tree, devices):
    """Called once, before training."""
    sharding = NamedSharding(Mesh(np.array(devices), "i"), PartitionSpec("i"))
    stacked = jax.tree.map(lambda x: jnp.stack([x] * len(devices)), tree)
    return jax.device_put(stacked, sharding)


def mend():
    """Gives jax what brax looks for there."""
    jax.device_put_replicated = device_put_replicated
