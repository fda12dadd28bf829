"""Do an environment's first timesteps keep to the protocol? Checked before training."""

import contextlib
import functools
import math
from collections.abc import Iterator

import jax
import numpy as np

from envs_jax.conformance import (
    COPIES,
    attempt,
    name_of,
    order_rules,
    random_actions,
    require_all,
    timestep_rules,
)
from envs_jax.environment import Environment
from envs_jax.masks import allowed_actions

STEPS = 32  # of each copy, or fewer of large observations
MOST = 2**24  # entries of all observations of the play


def check_first_steps(environment: Environment) -> None:
    """Plays a few random steps on the CPU, once per environment and process.

    Raises `ProtocolError` for an observation or reward that is not finite, an observation
    outside of its spec's bounds or discrete range, a discount outside of 0 to 1, a FIRST with
    a reward or another discount than 1, an initial timestep that is no FIRST, and a FIRST from
    `step`: agents would learn from it without a word.
    """
    try:
        hash(environment)
    except TypeError:  # its check cannot be remembered
        _check_first_steps.__wrapped__(environment)
    else:
        _check_first_steps(environment)


@functools.lru_cache(maxsize=64)
def _check_first_steps(environment: Environment) -> None:
    name = name_of(environment)
    specs = jax.tree.leaves(environment.observation_spec())
    entries = sum(math.prod(spec.shape) for spec in specs)
    length = min(STEPS, max(2, MOST // (COPIES * max(1, entries))))
    actions = random_actions(environment.action_spec(), length, 0)
    player = allowed_actions(environment)

    def unroll(key, actions):
        def step(state, inputs):
            key, action = inputs
            return player.step(key, state, action)

        state, first = player.initial_state(key)
        keys = jax.random.split(key, length)
        return first, jax.lax.scan(step, state, (keys, actions))[1]

    with _cheaply() as options:
        play = jax.jit(jax.vmap(unroll), compiler_options=options)
        keys = jax.random.split(jax.random.key(0), COPIES)
        played = jax.device_get(attempt(f"{name} in jit", play, keys, actions))
    timesteps = jax.tree.map(
        lambda first, rest: np.concatenate([first[:, None], rest], axis=1), *played
    )
    ended = np.cumsum(timesteps.last(), axis=1) - timesteps.last() > 0

    def until_last(x):  # what follows LAST is not the environment's business
        return np.where(ended.reshape(*ended.shape, *(1,) * (x.ndim - 2)), x[:, :1], x)

    timesteps = jax.tree.map(until_last, timesteps)
    begins = ended.copy()  # what follows LAST is now as timestep 0
    begins[:, 0] = True
    require_all(name, order_rules(timesteps, begins))
    require_all(name, timestep_rules(timesteps, environment.observation_spec()))


@contextlib.contextmanager
def _cheaply() -> Iterator[dict[str, str]]:
    """Yields compiler options for a short program, which runs on the CPU if there is one."""
    try:
        cpu = jax.local_devices(backend="cpu")[0]
    except RuntimeError:
        yield {}
    else:
        with jax.default_device(cpu):
            yield {"xla_backend_optimization_level": "0"}  # halves the time to compile
