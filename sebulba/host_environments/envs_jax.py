"""A pure JAX environment, stepped on the host: both architectures on one environment."""

import dataclasses
from typing import Any

import dm_env
import jax
import numpy as np

import envs_jax
from envs_jax import custom
from envs_jax.wrappers import unwrapped
from podracer import imports
from podracer.errors import UserError, nearest
from podracer.trained.filming import FPS


def is_name(name: str) -> bool:
    """Whether one of our environments has this name."""
    return name in envs_jax.ENVIRONMENTS


def default_options(name: str) -> Any:
    """The environment's own dataclass, at its defaults. Raises UserError."""
    if ":" in name:  # a user's own
        return imports.options(imports.construct(name, "--env"))
    known = envs_jax.ENVIRONMENTS
    if name not in known:
        raise UserError(f"no JAX environment is named {name!r}{nearest(name, known)}")
    return known[name]()


def make(name: str, batch_size: int, seed: int, threads: int, options: Any):
    """B copies; they use one thread, whatever `threads` is."""
    del threads
    return JaxEnvironment(name, batch_size, seed, options)


def _environment(name: str, options: Any) -> envs_jax.Environment:
    """Ours, or MODULE:CLASS, which is its own options. Raises UserError."""
    if ":" not in name:
        return envs_jax.make(name, **dataclasses.asdict(options))
    has_none = isinstance(options, imports.NoOptions)
    try:
        made = custom.ready(imports.construct(name, "--env") if has_none else options)
        envs_jax.check_first_steps(made)
        return made
    except envs_jax.ProtocolError as error:
        raise UserError(str(error)) from error


class JaxEnvironment:
    """B copies on the first CPU device, through the host protocol."""

    frames_per_step = 1

    def __init__(self, name: str, batch_size: int, seed: int, options: Any):
        self.batch_size = batch_size
        self._environment = _environment(name, options)
        batched = envs_jax.Batched(envs_jax.auto_reset(self._environment))

        at = jax.vmap(jax.random.fold_in, in_axes=(0, None))
        self._start = jax.jit(lambda keys: batched.initial_state(at(keys, 0)))
        self._step = jax.jit(
            lambda keys, count, state, action: batched.step(
                at(keys, count), state, action
            )
        )
        drawing = unwrapped(self._environment)
        if hasattr(drawing, "render"):
            self.render = self._render
            self.render_fps = getattr(drawing, "render_fps", FPS)
        if hasattr(drawing, "succeeded"):
            goal = jax.jit(batched.succeeded)
            self.succeeded = lambda: np.asarray(goal(self._state), bool)
        self._device = jax.local_devices(backend="cpu")[0]
        seeds = np.arange(seed, seed + batch_size, dtype=np.uint32)
        with jax.default_device(self._device):
            keys = jax.vmap(jax.random.key)(seeds)
        # Committed: otherwise the programs would run on the default device, a GPU or TPU.
        self._keys = jax.device_put(keys, self._device)
        self._count = 0

    def reset(self) -> dm_env.TimeStep:
        self._state, timestep = self._start(self._keys)
        return jax.device_get(timestep)

    def step(self, action: Any) -> dm_env.TimeStep:
        self._count += 1
        self._state, timestep = self._step(
            self._keys, np.uint32(self._count), self._state, action
        )
        return jax.device_get(timestep)

    def snapshot(self) -> tuple[jax.Array, np.ndarray, Any]:
        return self._keys, np.uint32(self._count), self._state

    def restore(self, snapshot: tuple[jax.Array, np.ndarray, Any]) -> None:
        keys, count, state = snapshot
        self._keys, self._state = jax.device_put((keys, state), self._device)
        self._count = int(count)

    def _render(self) -> np.ndarray:
        """A picture of the first environment, uint8 [H, W, 3]."""
        state = jax.tree.map(lambda x: x[0], self._state.inner)
        return np.asarray(self._environment.render(state))

    def observation_spec(self) -> Any:
        return self._environment.observation_spec()

    def action_spec(self) -> Any:
        return self._environment.action_spec()

    def finished_games(self) -> None:
        return None

    def lost_episodes(self) -> int:
        return 0

    def close(self) -> None:
        pass
