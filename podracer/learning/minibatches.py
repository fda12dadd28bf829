"""Several epochs of minibatches, from one trajectory."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax

from podracer import kernels
from podracer.agent import Key, Metrics, PyTree
from podracer.errors import UserError, check_at_least_one
from podracer.learning import optimizers
from podracer.learning.gradients import mean_gradient, sequences
from podracer.networks import Network
from podracer.parallel import Average, fold_each


@dataclasses.dataclass(frozen=True)
class Config:
    """How a trajectory is split, and how often it is learned from."""

    epochs: int = 4
    """passes over each trajectory"""
    minibatches: int = 4
    """number of equal parts of a trajectory, one for each step of the optimizer"""
    shuffle: Literal["unrolls", "transitions"] = "unrolls"
    """what minibatches are made of; a recurrent network needs whole unrolls"""

    def __post_init__(self):
        check_at_least_one(epochs=self.epochs, minibatches=self.minibatches)


def learn(
    step: Callable[[Any, PyTree, PyTree], tuple[Any, Metrics]],
    state: tuple[PyTree, optax.OptState],
    batch: PyTree,
    memory: PyTree,
    key: Key,
    config: Config,
    enough: Callable[[Metrics], jax.Array] | None = None,
) -> tuple[Any, Metrics]:
    """(state, the metrics of the last epoch and the number of `epochs`).

    Args:
      step: (state, rows [N, T, ...], memory [N, ...]) -> (state, metrics), for a minibatch
        of N sequences; see `gradient_step`.
      state: (params, opt_state) before the first step.
      batch: [T, B, ...] of this core.
      memory: [B, ...] before row 0.
      key: of the order, which is this core's own.
      config: its flags.
      enough: ends the epochs if true of an epoch's metrics, on every core alike.

    Raises UserError, when traced, if a core's sequences do not split into minibatches.
    """
    batch = sequences(batch)
    if config.shuffle == "transitions":
        batch = single(batch)
    count = jax.tree.leaves(batch)[0].shape[0]
    check_split(count, config)

    def rows(index):
        def of(x):  # the order holds each index once
            return x.at[index].get(mode="promise_in_bounds", unique_indices=True)

        return jax.tree.map(of, (batch, memory))

    step = jax.jit(step, inline=True)  # traced once for both of its uses below

    def minibatch(carry, index):
        state, sums = carry
        state, metrics = step(state, *rows(index))
        return (state, jax.tree.map(jnp.add, sums, metrics)), None

    first = jnp.arange(count // config.minibatches)
    shapes = jax.eval_shape(lambda: step(state, *rows(first))[1])
    zeros = optax.tree.zeros_like(shapes)

    keys = fold_each(key, jnp.arange(config.epochs))
    orders = jax.vmap(kernels.permutation, in_axes=(0, None))(keys, count)
    orders = orders.reshape(config.epochs, config.minibatches, -1)

    def epoch(carry):
        number, state, _ = carry
        return number + 1, *jax.lax.scan(minibatch, (state, zeros), orders[number])[0]

    def means(sums):
        return jax.tree.map(lambda x: x / config.minibatches, sums)

    def goes_on(carry):
        number, _, sums = carry
        is_left = number < config.epochs
        if enough:  # of an epoch's metrics, so not before the first
            is_left &= (number == 0) | ~enough(means(sums))
        return is_left

    epochs, state, sums = jax.lax.while_loop(goes_on, epoch, (0, state, zeros))
    return state, means(sums) | {"epochs": epochs.astype(jnp.float32)}


def single(rows: PyTree) -> PyTree:
    """The transitions of sequences [N, T, ...] as sequences of length 1, [N x T, 1, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, 1, *x.shape[2:]), rows)


def gradient_step(
    loss: Callable,
    optimizer: optax.GradientTransformation,
    learning_rate: jax.Array,
    average: Average,
) -> Callable[[Any, PyTree, PyTree], tuple[Any, Metrics]]:
    """A step for `learn` by the mean gradient over all cores; the state is (params, opt_state).

    Args:
      loss: as for `mean_gradient`; its rows have a `mask`. Only a network's memory may
        connect transitions: without one, each is a sequence of its own.
      optimizer: without the learning rate, see `optimizers.descend`.
      learning_rate: float32 [].
      average: over the learner cores.
    """

    def step(state, rows, memory):
        params, opt_state = state
        if not jax.tree.leaves(memory):
            rows = single(rows)
        gradients, metrics = mean_gradient(
            loss, params, rows, memory, rows.mask.size, average
        )
        return optimizers.descend(
            optimizer, gradients, opt_state, params, learning_rate
        ), metrics

    return step


def check_network(network: Network, config: Config) -> None:
    """Raises UserError for a recurrent network whose sequences would be cut."""
    memory = jax.eval_shape(lambda: network.initial_memory(1))
    if config.shuffle == "transitions" and jax.tree.leaves(memory):
        raise UserError(
            "shuffle is transitions, but the network has a memory, which is replayed over "
            "whole unrolls: choose unrolls, or a network without memory"
        )


def check_split(count: int, config: Config) -> None:
    """Raises UserError where minibatches would not be equal."""
    if count % config.minibatches:
        what = "environments" if config.shuffle == "unrolls" else "transitions"
        raise UserError(
            f"minibatches is {config.minibatches}, which does not divide the {count} "
            f"{what} of each core (batch_size over the cores that learn"
            f"{', times unroll_length' if what == 'transitions' else ''}): choose a divisor"
        )
