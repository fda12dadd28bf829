"""How fast one environment plays random actions, with automatic resets.

    python -m benchmarks.random_play NAME BATCH_SIZE STEPS SECONDS

NAME is one of ours, or gymnax:NAME through gymnax's own interface, in one program; or the
original in Python, gymnasium:ID or minatar:GAME, of which one plays. Prints environment
steps/s. `benchmarks.environments` runs it, with either interpreter.
"""

import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from envs_jax import auto_reset, make
from podracer import kernels


def speed(name: str, batch_size: int, steps: int, seconds: float) -> float:
    """Environment steps/s of `steps` in each of `batch_size` copies a call."""
    theirs = name.startswith("gymnax:")
    start, step = play_theirs(name) if theirs else play_ours(make(name))

    def unroll(carry, key):
        def body(carry, key):
            state, total = carry
            keys = jax.random.split(key, (2, batch_size))
            state, seen = jax.vmap(step)(*keys, state)
            # All that an agent would see is used, or the compiler would not make it.
            return (state, total + sum(map(jnp.sum, jax.tree.leaves(seen)))), ()

        return jax.lax.scan(body, carry, jax.random.split(key, steps))[0]

    call = jax.jit(unroll)
    keys = jax.random.split(jax.random.key(0), batch_size)
    carry = jax.jit(jax.vmap(start))(keys), jnp.float32(0)
    carry = jax.block_until_ready(call(call(carry, keys[0]), keys[1]))
    calls, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        carry = jax.block_until_ready(call(carry, keys[calls % len(keys)]))
        calls += 1
    return calls * steps * batch_size / (time.perf_counter() - began)


def play_ours(bare: Any) -> tuple[Callable, Callable]:
    """(key) -> state, and (action key, key, state) -> (state, what is seen)."""
    environment, spec = auto_reset(bare), bare.action_spec()

    def start(key):
        return environment.initial_state(key)[0]

    def step(action_key, key, state):
        action = random_action(
            action_key, spec.shape, spec.dtype, spec.minimum, spec.maximum
        )
        state, timestep = environment.step(key, state, action)
        return state, (timestep.observation, timestep.reward, timestep.discount)

    return start, step


def play_theirs(name: str) -> tuple[Callable, Callable]:
    """The same of gymnax, with the automatic reset that is in its `step`."""
    import gymnax

    environment, params = gymnax.make(name.removeprefix("gymnax:"))
    space = environment.action_space(params)
    discrete = hasattr(space, "n")
    low, high = (0, space.n - 1) if discrete else (space.low, space.high)
    dtype = jnp.int32 if discrete else jnp.float32

    def start(key):
        return environment.reset(key, params)[1]

    def step(action_key, key, state):
        action = random_action(action_key, space.shape, dtype, low, high)
        observation, state, reward, *ends, _ = environment.step(
            key, state, action, params
        )
        return state, (observation, reward, ends)

    return start, step


def speed_in_python(name: str, seconds: float) -> float:
    """Environment steps/s of one original environment, in a loop."""
    library, _, name = name.partition(":")
    play = gymnasium_step(name) if library == "gymnasium" else minatar_step(name)
    steps, began = 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        for _ in range(100):
            play()
        steps += 100
    return steps / (time.perf_counter() - began)


def gymnasium_step(name: str) -> Callable[[], None]:
    import gymnasium

    environment = gymnasium.make(name, disable_env_checker=True)
    environment.reset(seed=0)

    def play() -> None:
        *_, terminated, truncated, _ = environment.step(
            environment.action_space.sample()
        )
        if terminated or truncated:
            environment.reset()

    return play


def minatar_step(name: str) -> Callable[[], None]:
    import minatar
    import numpy as np

    environment, random = minatar.Environment(name), np.random.default_rng(0)

    def play() -> None:
        _, over = environment.act(int(random.integers(6)))
        environment.state()
        if over:
            environment.reset()

    return play


def random_action(key, shape, dtype, low, high) -> jax.Array:
    """Uniform within the bounds."""
    if jnp.issubdtype(dtype, jnp.integer):
        return low + (jax.random.bits(key, shape) % (high - low + 1)).astype(dtype)
    return jax.random.uniform(key, shape, dtype, low, high)


if __name__ == "__main__":
    name, batch_size, steps, seconds = sys.argv[1:]
    if name.startswith(("gymnasium:", "minatar:")):
        print(speed_in_python(name, float(seconds)))
    else:
        kernels.install()
        print(speed(name, int(batch_size), int(steps), float(seconds)))
