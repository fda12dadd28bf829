"""The host environment protocol: dm_env's contract for a batch that steps together.

What `envs_jax.environment` says of FIRST, MID and LAST holds for each environment of the
batch. The step after LAST ignores that environment's action and returns FIRST.
"""

from typing import Any, Protocol

import dm_env
import numpy as np

from podracer.errors import UserError

THREADS = 256  # actor threads of a host, at most


class HostEnvironment(Protocol):
    """B environments behind one object, used by one thread."""

    batch_size: int

    def reset(self) -> dm_env.TimeStep:
        """FIRST [B], as numpy arrays: int32, float32, float32, any pytree. Call it once."""

    def step(self, action: np.ndarray) -> dm_env.TimeStep:
        """The timesteps [B, ...] after `action` [B, ...], in arrays that nobody changes."""

    def observation_spec(self) -> Any:
        """A pytree of dm_env specs, as one environment's observation."""

    def action_spec(self) -> Any:
        """A dm_env spec of one environment's action."""

    def statistics(self) -> dict[str, list[float]]:
        """What timesteps do not tell and happened since the last call. Optional."""

    def close(self) -> None:
        """Ends what the environments hold; they are not stepped again."""


def seeds(seed: int, host: int, actor_thread: int, batch_size: int) -> list[int]:
    """A seed for each of B environments, unlike any other's in the same run.

    Raises:
      UserError: there are too many hosts or threads for 31 bits.
    """
    first = (host * THREADS + actor_thread) * batch_size
    if actor_thread >= THREADS or first + batch_size > 2**31:
        raise UserError(
            f"no seeds left for actor thread {actor_thread} of host {host} with "
            f"batch_size {batch_size}: at most {THREADS} threads a host, 2**31 seeds"
        )
    # Runs start far from each other, so that two of them share no environments either.
    start = int(np.random.SeedSequence(seed).generate_state(1)[0])
    return [(start + first + i) % 2**31 for i in range(batch_size)]
