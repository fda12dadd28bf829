"""Orbax on one of several hosts, alone: it does not wait for the others, nor they for it.

So a host writes the runs on its own cores, and every host reads.
"""

from typing import Any

import jax
import jax.numpy as jnp

from podracer import parallel
from podracer.parallel import hosts


def options() -> Any:
    """Orbax's options for this process; without a primary host, each process is its own."""
    from orbax import checkpoint as orbax  # slow to import

    return orbax.options.MultiprocessingOptions(
        primary_host=None, active_processes={jax.process_index()}
    )


def handler() -> Any:
    """What writes an `item` with `orbax.args.PyTreeSave`, in the format of other checkpoints."""
    from orbax import checkpoint as orbax

    arrays = orbax.type_handlers.ArrayHandler(
        primary_host=None,
        replica_id=None,  # whatever part this host has
        use_replica_parallel=False,
        array_metadata_store=hosts.array_metadata(),  # else no kind of key is kept
    )
    registry = orbax.type_handlers.create_type_handler_registry((jax.Array, arrays))
    return orbax.PyTreeCheckpointHandler(
        multiprocessing_options=options(), type_handler_registry=registry
    )


def item(state: Any) -> Any:
    """A state on one core of this host, as the handler takes it.

    Orbax refuses an array of one host alone where there are several.
    """
    return parallel.as_if_shared(jax.tree.map(jnp.asarray, state))
