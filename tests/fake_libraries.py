"""Other libraries' interfaces in small, all playing the same game.

A walk from a random place, one step to the right or to the left: it terminates at HOME
with reward 1 and is cut off after LIMIT steps.
"""

from types import SimpleNamespace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

HOME, LIMIT = 3, 6
RIGHT, LEFT = 1, 0


def start(key):
    return jax.random.randint(key, (), -1, 2)


def walk(position, action):
    return position + 2 * action - 1


# Gymnax


@struct.dataclass
class Params:
    max_steps_in_episode: int = LIMIT


@struct.dataclass
class Walk:
    position: Any
    time: Any


class OldGymnax:
    """0.0.x: `done` is said of a time limit too; `time` begins as a Python number."""

    def reset_env(self, key, params):
        state = Walk(start(key), 0)
        return self.see(state), state

    def step_env(self, key, state, action, params):
        state = Walk(walk(state.position, action), state.time + 1)
        done = self.is_terminal(state, params)
        return self.see(state), state, state.position == HOME, done, {}

    def is_terminal(self, state, params):
        return (state.position == HOME) | (state.time >= params.max_steps_in_episode)

    def see(self, state):
        return jnp.float32(state.position)[None]

    def observation_space(self, params):
        return SimpleNamespace(low=-10, high=jnp.float32(10), shape=(1,))

    def action_space(self, params):
        return SimpleNamespace(n=2, shape=())


class NewGymnax(OldGymnax):
    """1.0: natural ends only, and `is_truncated` beside them."""

    def is_terminal(self, state, params):
        return state.position == HOME

    def is_truncated(self, state, params):
        return state.time >= params.max_steps_in_episode


class SixGymnax(OldGymnax):
    """Both ends in what a step returns."""

    def step_env(self, key, state, action, params):
        *rest, _, info = super().step_env(key, state, action, params)
        state = rest[1]
        return *rest, state.position == HOME, state.time >= LIMIT, info


# Brax and MuJoCo Playground


@struct.dataclass
class BraxState:
    pipeline_state: Any
    obs: Any
    reward: Any
    done: Any
    metrics: dict
    info: dict


class FakeBrax:
    """Writes into the metrics that it is given, as brax does; knows no time limit."""

    action_size = 1

    def reset(self, key):
        position = start(key)
        return BraxState(position, self.see(position), 0.0, 0.0, {"x": position}, {})

    def step(self, state, action):
        position = walk(state.pipeline_state, jnp.where(action[0] > 0, RIGHT, LEFT))
        state.metrics.update(x=position)
        home = jnp.float32(position == HOME)
        return state.replace(
            pipeline_state=position, obs=self.see(position), reward=home, done=home
        )

    def see(self, position):
        return {"state": jnp.float32(position)[None]}


class LimitedBrax(FakeBrax):
    """With a time limit of its own, as brax's EpisodeWrapper says it."""

    def reset(self, key):
        info = {"steps": jnp.zeros(()), "truncation": jnp.zeros(())}
        return super().reset(key).replace(info=info)

    def step(self, state, action):
        after = super().step(state, action)
        steps = state.info["steps"] + 1
        late = jnp.float32(steps >= LIMIT)
        after.info.update(steps=steps, truncation=late * (1 - after.done))
        return after.replace(done=jnp.maximum(late, after.done))


# Jumanji


class Seen(NamedTuple):
    position: Any
    step_count: Any
    action_mask: Any


class FakeJumanji:
    """Timesteps of int8; says itself whether its time limit terminates."""

    def __init__(self, terminates=False):
        self.discount = 0.0 if terminates else 1.0

    def reset(self, key):
        assert key.dtype == jnp.uint32
        state = Walk(start(key), jnp.int32(0))
        return state, self.timestep(state, 0, 0.0, 1.0)

    def step(self, state, action):
        state = Walk(walk(state.position, action), state.time + 1)
        home, late = state.position == HOME, state.time >= LIMIT
        discount = jnp.where(home, 0.0, jnp.where(late, self.discount, 1.0))
        kind = jnp.where(home | late, 2, 1)
        return state, self.timestep(state, kind, home, discount)

    def timestep(self, state, kind, reward, discount):
        seen = Seen(jnp.float32(state.position), state.time, jnp.ones(2, bool))
        return SimpleNamespace(
            step_type=jnp.int8(kind), reward=reward, discount=discount, observation=seen
        )

    @property
    def observation_spec(self):
        return SimpleNamespace(
            position=SimpleNamespace(shape=(), dtype=np.float32),
            step_count=SimpleNamespace(minimum=0, maximum=LIMIT, num_values=LIMIT + 1),
            action_mask=SimpleNamespace(minimum=False, maximum=True),
        )

    @property
    def action_spec(self):
        return SimpleNamespace(shape=(), num_values=2)


# Craftax and Kinetix, whose interface is gymnax's but for the time limit


@struct.dataclass
class Timed:
    max_timesteps: int = LIMIT


class FakeCraftax(OldGymnax):
    """`done` at a time limit too; no way to ask whether it was one."""

    def is_terminal(self, state, params):
        return (state.position == HOME) | (state.time >= params.max_timesteps)


class FakeKinetix(FakeCraftax):
    """Two choices, of which the first moves; a state to start from instead of its own."""

    def reset_env(self, key, params, override_reset_state):
        assert key.dtype == jnp.uint32 and override_reset_state is None
        return super().reset_env(key, params)

    def step_env(self, key, state, action, params):
        return super().step_env(key, state, action[0], params)

    def action_space(self, params):
        choices = jnp.array([2, 3])
        return SimpleNamespace(n=5, number_of_dims_per_distribution=choices, shape=(2,))


# XLand-MiniGrid


@struct.dataclass
class Rules:
    max_steps: int = LIMIT
    ruleset: Any = 0  # added to where a walk begins


class FakeXLand:
    """One timestep in and out, of bytes; it reads its state alone."""

    def num_actions(self, params):
        return 2

    def reset(self, params, key):
        assert key.dtype == jnp.uint32
        return self.timestep(Walk(start(key) + params.ruleset, 0), 0, 0.0, 1.0)

    def step(self, params, timestep, action):
        before = timestep.state
        state = Walk(walk(before.position, action), before.time + 1)
        home, late = state.position == HOME, state.time == params.max_steps
        kind = jnp.where(home | late, 2, 1)
        return self.timestep(state, kind, jnp.float32(home), 1.0 - home)

    def timestep(self, state, kind, reward, discount):
        # A position in a cell of two bytes, as its tiles and colours are.
        seen = jnp.stack([jnp.uint8(state.position + 8), jnp.uint8(0)])[None, None]
        return SimpleNamespace(
            state=state,
            step_type=jnp.uint8(kind),
            reward=reward,
            discount=discount,
            observation=seen,
        )


class FakeBenchmark:
    """Rule sets of XLand: some walks begin two steps to the left."""

    def sample_ruleset(self, key):
        return -2 * jax.random.bernoulli(key).astype(jnp.int32)


# Navix


@struct.dataclass
class NavixState:
    position: Any
    grid: Any
    cache: Any  # a picture


@struct.dataclass
class NavixTimestep:
    t: Any
    observation: Any
    action: Any
    reward: Any
    step_type: Any  # 0, or 1 for a truncation, 2 for a termination
    state: NavixState
    info: dict


class FakeNavix:
    """Resets itself in `step`, not in `_step`; its state has a picture."""

    action_set = (LEFT, RIGHT)

    def observation_fn(self, state):
        return jnp.uint8(state.position + 8)[None]

    def reset(self, key):
        assert key.dtype == jnp.uint32
        state = NavixState(start(key), jnp.zeros((2, 2)), FakeCache.init(None))
        seen = self.observation_fn(state)
        return NavixTimestep(0, seen, 0, 0.0, 0, state, {"return": 0.0})

    def _step(self, before, action):
        assert before.state.cache is not None
        position, t = walk(before.state.position, action), before.t + 1
        home, late = position == HOME, t >= LIMIT
        kind = jnp.clip(2 * home + late, 0, 2)
        state = before.state.replace(position=position)
        seen = self.observation_fn(state)
        reward = jnp.float32(home)
        return NavixTimestep(t, seen, action, reward, kind, state, {"return": reward})


class FakeCache:
    @staticmethod
    def init(grid):
        return jnp.zeros((5, 32, 32, 3), jnp.uint8)
