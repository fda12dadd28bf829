"""Whether a program acts as `podracer.load`'s policy: both see the same, and must do the same."""

from collections.abc import Callable, Generator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer import exported, starts
from podracer.errors import UserError
from podracer.runs import spec_json
from podracer.trained.loading import Trained
from podracer.trained.policy import Policy

TOLERANCE = 1e-5  # of an action, relative to it where it is above 1
BATCH_SIZES, STEPS = (1, 16), 12


class Seen(NamedTuple):
    """What a policy is given, of B environments."""

    observation: Any  # [B, ...]
    first: np.ndarray  # bool [B]
    reward: np.ndarray  # float32 [B]


def compare(
    trained: Trained,
    greedy: bool,
    load: Callable[..., exported.Policy],
    environment: Any | None = None,
) -> str:
    """Acts with a program and with `podracer.load`'s policy; describes how they differ.

    Args:
      load: (batch_size=, seed=) -> the program's policy.
      environment: to play in, of envs_jax's protocol; None: observations are drawn.

    Raises UserError where they act differently.
    """
    largest, decisions = 0.0, 0
    for batch_size in BATCH_SIZES:
        policy = Policy(trained, batch_size, greedy, seed=1)
        program = load(batch_size=batch_size, seed=1)
        actions = program.header["outputs"][: len(jax.tree.leaves(trained.action_spec))]
        source = _played if environment else _drawn
        seen = source(trained, batch_size, environment)
        given = next(seen)
        for _ in range(STEPS):
            expected, actual = policy(*given), program(*given)
            actual = actual if isinstance(actual, dict) else {"action": actual}
            for x, name in zip(jax.tree.leaves(expected), actions, strict=True):
                distance = _distance(actual[name["name"]], x)
                largest = np.maximum(largest, distance)  # NaN, if one is
            given = seen.send(expected)
            decisions += batch_size
    where = (
        f"{decisions} actions on {'played' if environment else 'drawn'} observations"
    )
    if not largest <= TOLERANCE:
        raise UserError(
            f"the program acts {largest:g} apart from podracer.load ({where}), and is not "
            "written: please report this with the run's config.json"
        )
    difference = f"within {largest:.1e}" if largest else "bit for bit"
    return f"acts as podracer.load, {difference} ({where})"


def _distance(x: np.ndarray, y: np.ndarray) -> float:
    """The largest of two policies' actions; infinity where choices differ, or shapes."""
    if x.shape != y.shape or y.dtype.kind != "f":
        return 0.0 if np.array_equal(x, y) else np.inf
    distance = np.abs(x - y) / np.maximum(1.0, np.abs(y))
    return float(np.max(distance, initial=0.0))


def _played(
    trained: Trained, batch_size: int, environment: Any
) -> Generator[Seen, Any, None]:
    """What the environment shows; is sent the actions. Episodes follow one another."""
    initial_state = jax.jit(jax.vmap(environment.initial_state))
    step = jax.jit(jax.vmap(environment.step))
    key = jax.random.key(0)
    state, timestep = initial_state(jax.random.split(key, batch_size))
    while True:
        spec = trained.observation_spec
        observation = spec_json.in_types_of(spec, jax.device_get(timestep.observation))
        first, reward = (np.asarray(x) for x in (timestep.first(), timestep.reward))
        observation = jax.tree.map(starts.own, spec, observation)
        action = yield Seen(observation, first, reward)
        action = jax.tree.map(starts.from_own, trained.action_spec, action)
        key, *keys = jax.random.split(key, 3)
        keys = [jax.random.split(x, batch_size) for x in keys]
        ended, begun = timestep.last(), initial_state(keys[0])
        after = step(keys[1], state, action)

        def chosen(x: jax.Array, y: jax.Array, ended: jax.Array = ended) -> jax.Array:
            return jnp.where(ended.reshape(-1, *[1] * (x.ndim - 1)), x, y)

        state, timestep = jax.tree.map(chosen, begun, after)


def _drawn(trained: Trained, batch_size: int, _: Any) -> Generator[Seen, Any, None]:
    """Observations drawn from their spec; is sent the actions, which change nothing."""
    random = np.random.default_rng(0)
    share = 1.0  # of environments where an episode begins
    while True:
        yield Seen(
            jax.tree.map(
                lambda spec: _draw(random, spec, batch_size), trained.observation_spec
            ),
            random.random(batch_size) < share,
            np.float32(random.normal(size=batch_size)),
        )
        share = 0.2


def _draw(random: np.random.Generator, spec: Any, batch_size: int) -> np.ndarray:
    """[B, ...] in the environment's own numbers: within the bounds, and near 0."""
    shape, dtype = (batch_size, *spec.shape), spec.dtype
    if dtype.kind == "f":
        low, high, near = -np.inf, np.inf, 10.0
    elif dtype == bool:
        low, high, near = 0, 1, 1.0
    else:
        low, high, near = np.iinfo(dtype).min, np.iinfo(dtype).max, 255.0
    low = np.maximum(getattr(spec, "minimum", low), -near)
    high = np.maximum(low, np.minimum(getattr(spec, "maximum", high), near))
    if dtype.kind == "f":
        return np.asarray(random.uniform(low, high, shape), dtype)
    numbers = np.floor(random.uniform(low, high + 1, shape))
    return starts.own(spec, numbers.astype(dtype))
