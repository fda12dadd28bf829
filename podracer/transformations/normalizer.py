"""Running mean and variance (Chan et al. 1979), and agents that normalize with them.

Values are normalized as in BatchPPO (arXiv:1709.02878).
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs
from jax.flatten_util import ravel_pytree

from podracer import kernels
from podracer.agent import FAILED, Agent, LearnerState, PyTree
from podracer.errors import UserError, check_range
from podracer.observations import each, parts_of, quantities
from podracer.parallel import AVERAGE, Average
from podracer.sums import plus
from podracer.transformations.history import remember

# Samples are clamped to it. Squares of them can be summed: float32 ends at 3.4e38.
LARGEST = 1e14


class Normalizer(NamedTuple):
    """Statistics of the samples so far; a sample is a pytree [...]."""

    count: jax.Array  # float32 []
    mean: PyTree  # float32 [...]
    variance_sum: PyTree  # float32 [...] sum of squared distances from the mean
    lost: PyTree  # (count, mean, variance_sum): what rounding has left out of each


def initial_state(spec: Any) -> Normalizer:
    """Statistics of no samples; `spec` is a pytree of dm_env specs."""
    zeros = jax.tree.map(lambda spec: jnp.zeros(spec.shape), spec)
    nothing = jnp.float32(0.0), zeros, zeros
    return Normalizer(*nothing, lost=nothing)


def update(
    state: Normalizer, batch: PyTree, average: Average, mask: jax.Array | None = None
) -> Normalizer:
    """Adds samples, clamped to +-`LARGEST`; `beyond` says which were.

    A sample that is not finite makes mean and variance so permanently.

    Args:
      state: equal on every core, and so is the result.
      batch: samples of any dtype with any leading axes, such as [T, B, ...].
      average: over the cores whose samples are added, in two collectives.
      mask: over the leading axes: 0 leaves a sample out.
    """
    if not jax.tree.leaves(state.mean):
        return state
    mean, unravel = ravel_pytree(state.mean)  # [D]
    samples = jax.tree.map(
        lambda x, one: x.astype(jnp.float32).reshape(-1, *one.shape), batch, state.mean
    )
    x = jax.vmap(lambda sample: ravel_pytree(sample)[0])(samples)  # [N, D]
    x = jnp.where(jnp.isfinite(x), jnp.clip(x, -LARGEST, LARGEST), x)
    mask = jnp.ones(len(x), bool) if mask is None else mask.reshape(-1).astype(bool)

    def distances(center):
        return jnp.where(mask[:, None], x - center[None], 0.0)

    # Squares are summed around the mean of this batch over all cores, which avoids
    # cancellation; the remaining distances are its rounding error, and correct both.
    count, total = average.total(
        (mask.sum().astype(jnp.float32), distances(mean).sum(0))
    )
    over_count = 1.0 / jnp.maximum(count, 1.0)
    center = mean + total * over_count
    left = distances(center)
    left_over, squares = average.total((left.sum(0), jnp.square(left).sum(0)))
    variance_sum = squares - jnp.square(left_over) * over_count
    # Chan's merge of the batch with the earlier samples.
    delta = (center - mean) + left_over * over_count
    share = count / jnp.maximum(state.count + count, 1.0)
    variance_sum += jnp.square(delta) * state.count * share
    *old, lost = state
    new = count, unravel(delta * share), unravel(variance_sum)
    sums, lost = plus(tuple(old), lost, new)
    return Normalizer(*sums, lost=lost)


def beyond(name: str, batch: PyTree, spec: Any, mask: jax.Array | None = None) -> dict:
    """Metrics that stop a run where `update` has clamped an element or found none finite.

    Args:
      name: of the quantity; the message has the path of the leaf and the element's index.
      batch, mask: as for `update`.
      spec: of a sample.
    """

    def leaf(path, spec, x):
        x = x.astype(jnp.float32).reshape(-1, *spec.shape)
        counts = jnp.ones(len(x), bool) if mask is None else mask.reshape(-1) > 0
        counts = jnp.broadcast_to(counts.reshape(-1, *(1,) * len(spec.shape)), x.shape)
        bad = jnp.any(counts & ~(jnp.abs(x) <= LARGEST), axis=0)  # NaN, too
        message = (
            f"numbers beyond {LARGEST:g} or not finite cannot be normalized; the "
            f"environment gives one in {name}{jax.tree_util.keystr(path)}"
        )
        return FAILED + message, bad.astype(jnp.float32)

    specs, structure = jax.tree_util.tree_flatten_with_path(spec)
    leaves = structure.flatten_up_to(batch)
    return dict(leaf(*one, x) for one, x in zip(specs, leaves, strict=True))


def scale(state: Normalizer) -> PyTree:
    """The divisor of `normalize`: the standard deviation, at least 0.01."""

    def divisor(variance_sum):
        variance = jnp.maximum(variance_sum, 0.0)  # rounding may leave less
        variance /= jnp.maximum(state.count - 1.0, 1.0)
        return jnp.where(state.count > 1.0, jnp.sqrt(variance + 1e-4) + 1e-8, 1.0)

    return jax.tree.map(divisor, state.variance_sum)


def normalize(
    state: Normalizer, x: PyTree, *, center: bool = True, clip: float
) -> PyTree:
    """Samples in standard deviations from the mean (from 0 without `center`).

    `x` has any leading axes; the result is float32, clipped to +-clip.
    """

    def leaf(x, mean, scale):
        distance = x.astype(jnp.float32)
        if center:
            distance -= jnp.broadcast_to(mean, x.shape)
        return jnp.clip(distance / jnp.broadcast_to(scale, x.shape), -clip, clip)

    return jax.tree.map(leaf, x, state.mean, scale(state))


def normalizable(observation_spec: Any) -> Any:
    """The spec with None for what is not normalized: no quantity, or bytes.

    Raises UserError where there are bytes and nothing to normalize: networks scale bytes.
    """
    numbers = quantities(observation_spec)
    chosen = jax.tree.map(lambda x: None if x.dtype == np.uint8 else x, numbers)
    if jax.tree.leaves(numbers) and not jax.tree.leaves(chosen):
        path, spec = jax.tree.leaves_with_path(numbers)[0]
        raise UserError(
            f"observation_spec{jax.tree_util.keystr(path)} is bytes {spec.shape}, "
            "which networks scale themselves: leave normalize_observations out, or "
            "choose an agent that does not normalize"
        )
    return chosen


def observe(
    state: Normalizer, observation_spec: Any, observation: PyTree, clip: float
) -> PyTree:
    """Observations with any leading axes, normalized as `normalizable` says."""
    numbers = parts_of(normalizable(observation_spec), observation)
    normalized = normalize(state, numbers, clip=clip)
    return each(lambda new, _: new, normalized, observation)


class Normalized(NamedTuple):
    """Statistics beside the agent's own shared state or actor_params."""

    statistics: Normalizer
    agent: PyTree


def normalize_observations(
    agent: Agent, observation_spec: Any, average: Average = AVERAGE, clip: float = 10.0
) -> Agent:
    """The agent sees normalized float32 observations.

    The statistics are those of the observations before the current trajectory. Choices,
    booleans and action masks are left unchanged, and so are bytes, which networks scale;
    UserError if there is nothing else.
    """
    check_range("clip", clip, 0.0)
    numbers = normalizable(observation_spec)
    if not jax.tree.leaves(numbers):
        return agent

    def seeing(statistics):
        def see(history, timestep):
            seen = observe(statistics, observation_spec, timestep.observation, clip)
            return history, timestep._replace(observation=seen)

        return remember(
            agent, lambda batch_size: (), see, lambda history, action: history
        )

    def samples(history, timesteps):
        return parts_of(numbers, timesteps.observation), None

    return _with_statistics(seeing, "observation", numbers, samples, average)


def normalize_rewards(
    agent: Agent, discount_factor: float, average: Average = AVERAGE, clip: float = 10.0
) -> Agent:
    """The agent sees rewards divided by the standard deviation of discounted returns.

    As gymnasium's NormalizeReward intends it: each environment's running return is part of
    the actor's state and restarts at 0 with an episode. Reported returns stay raw.
    """
    check_range("discount_factor", discount_factor, 0.0, 1.0)
    check_range("clip", clip, 0.0)

    def add(discounted, timestep):
        earlier = jnp.where(timestep.first(), 0.0, discount_factor * discounted)
        return earlier + timestep.reward

    def seeing(statistics):
        def see(discounted, timestep):
            reward = normalize(statistics, timestep.reward, center=False, clip=clip)
            return add(discounted, timestep), timestep._replace(reward=reward)

        return remember(agent, jnp.zeros, see, lambda discounted, action: discounted)

    def samples(discounted, timesteps):
        def step(discounted, timestep):
            discounted = add(discounted, timestep)
            return discounted, discounted

        rewards = timesteps._replace(observation=())
        return kernels.scan(step, discounted, rewards)[1], ~timesteps.first()

    return _with_statistics(
        seeing, "reward", specs.Array((), np.float32), samples, average
    )


def _with_statistics(
    seeing: Callable[[Any], Agent],
    name: str,
    spec: Any,
    samples: Callable,
    average: Average,
) -> Agent:
    """An agent that normalizes with the statistics of the data before its trajectory.

    A learner that is ahead of its actors uses its own, newer statistics.

    Args:
      seeing: (statistics) -> the agent that normalizes with them, made by `remember`.
      name: of the quantity; the metric `<name>_scale` is its mean divisor.
      spec: of a sample.
      samples: (history, timesteps [T, B, ...]) -> (samples [T, B, ...], mask [T, B]).
      average: over the learner cores.
    """
    agent = seeing(None)  # for its functions that need no statistics

    def parts(learner_state):
        (statistics, shared), local = learner_state
        return statistics, LearnerState(shared, local)

    def initial_learner_state(key):
        shared, local = agent.initial_learner_state(key)
        return LearnerState(Normalized(initial_state(spec), shared), local)

    def actor_params(learner_state):
        statistics, inner = parts(learner_state)
        return Normalized(statistics, agent.actor_params(inner))

    def acting(choose):
        def step(keys, params, *rest):
            return choose(seeing(params.statistics))(keys, params.agent, *rest)

        return step

    def learning(choose):
        def step(key, learner_state, trajectory, *weight):
            statistics, inner = parts(learner_state)
            learn = choose(seeing(statistics))
            inner, metrics, *priority = learn(key, inner, trajectory, *weight)
            # The last timestep is the first of the next trajectory, and is counted there.
            timesteps = jax.tree.map(lambda x: x[:-1], trajectory.timesteps)
            batch, mask = samples(trajectory.actor_state[0], timesteps)
            statistics = update(statistics, batch, average, mask)
            # Clipping hides an infinity from the losses; these metrics still stop the run.
            scales, _ = ravel_pytree(scale(statistics))
            metrics |= {f"{name}_scale": jnp.mean(scales)}
            metrics |= beyond(name, batch, spec, mask)
            shared = Normalized(statistics, inner.shared)
            return LearnerState(shared, inner.local), metrics, *priority

        return step

    return agent._replace(
        initial_learner_state=initial_learner_state,
        learner_step=learning(lambda agent: agent.learner_step),
        actor_params=actor_params,
        actor_step=acting(lambda agent: agent.actor_step),
        greedy_actor_step=acting(lambda agent: agent.greedy_actor_step),
        weighted_step=(
            learning(lambda agent: agent.weighted_step) if agent.weighted_step else None
        ),
    )
