"""Several epochs of minibatches, from one trajectory."""

import dataclasses
from collections.abc import Callable
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from jax.flatten_util import ravel_pytree

from podracer.agent import Key, Metrics, PyTree
from podracer.errors import UserError, check_at_least_one
from podracer.learning import optimizers
from podracer.learning.gradients import mean_gradient
from podracer.networks import Network
from podracer.parallel import Average, fold_each

SORTED = 4096  # fewer sequences than this are put in random order by sorting
ROUNDS = 8  # of mixing


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
      state: (params, opt_state) before the first step, which sees them `as_vectors`.
      batch: [T, B, ...] of this core.
      memory: [B, ...] before row 0.
      key: of the order, which is this core's own.
      config: its flags.
      enough: ends the epochs if true of an epoch's metrics, on every core alike.

    Raises UserError, when traced, if a core's sequences do not split into minibatches.
    """
    batch = jax.tree.map(lambda x: jnp.swapaxes(x, 0, 1), batch)
    if config.shuffle == "transitions":
        batch = single(batch)
    sequences = jax.tree.leaves(batch)[0].shape[0]
    check_split(sequences, config)

    def rows(index):
        def of(x):  # the order holds each index once
            return x.at[index].get(mode="promise_in_bounds", unique_indices=True)

        return jax.tree.map(of, (batch, memory))

    step = jax.jit(step, inline=True)  # traced once for both of its uses below

    def minibatch(carry, index):
        state, sums = carry
        state, metrics = step(state, *rows(index))
        return (state, sums + ravel_pytree(metrics)[0]), None

    state = optimizers.as_vectors(*state)
    first = jnp.arange(sequences // config.minibatches)
    shapes = jax.eval_shape(lambda: step(state, *rows(first))[1])
    # As one vector, which an accelerator adds with one kernel.
    zeros, unravel = ravel_pytree(optax.tree.zeros_like(shapes))

    # All epochs' at once: an accelerator sorts several rows as fast as one.
    keys = fold_each(key, jnp.arange(config.epochs))
    orders = jax.vmap(permutation, in_axes=(0, None))(keys, sequences)
    orders = orders.reshape(config.epochs, config.minibatches, -1)

    def epoch(carry):
        number, state, _ = carry
        return number + 1, *jax.lax.scan(minibatch, (state, zeros), orders[number])[0]

    def means(sums):
        return unravel(sums / config.minibatches)

    def goes_on(carry):
        number, _, sums = carry
        goes_on = number < config.epochs
        if enough:  # asked of an epoch's metrics, so not before the first
            goes_on &= (number == 0) | ~enough(means(sums))
        return goes_on

    epochs, state, sums = jax.lax.while_loop(goes_on, epoch, (0, state, zeros))
    state = optimizers.as_trees(state)
    return state, means(sums) | {"epochs": epochs.astype(jnp.float32)}


def single(rows: PyTree) -> PyTree:
    """The transitions of sequences [N, T, ...] as sequences of length 1, [N x T, 1, ...]."""
    return jax.tree.map(lambda x: x.reshape(-1, 1, *x.shape[2:]), rows)


def permutation(key: Key, size: int) -> jax.Array:
    """0 to size - 1 in random order, int32 [size].

    Sorting tens of thousands of random numbers takes a CPU a third of PPO's time. From
    `SORTED` on, the order is that of a random bijection of 0 to 2^k - 1, less the numbers that
    are too large: bijective shuffling (Mitchell et al. 2021, arXiv:2106.06161).
    """
    if size < SORTED:
        return jax.random.permutation(key, size)
    bits = (size - 1).bit_length()
    mask = jnp.uint32(2**bits - 1)
    numbers = jnp.arange(2**bits, dtype=jnp.uint32)
    for factor, addend in jax.random.bits(key, (ROUNDS, 2), jnp.uint32):
        # each of these steps is invertible, the first since the factor is odd
        numbers = (numbers * (factor | 1) + addend) & mask
        numbers ^= numbers >> (bits // 2)
    (kept,) = jnp.nonzero(numbers < size, size=size)
    return numbers[kept].astype(jnp.int32)


def gradient_step(
    loss: Callable,
    optimizer: optax.GradientTransformation,
    learning_rate: jax.Array,
    average: Average,
) -> Callable[[Any, PyTree, PyTree], tuple[Any, Metrics]]:
    """A step for `learn` by the mean gradient over all cores; the state is (params, opt_state).

    Args:
      loss: as for `mean_gradient`, of parameters as trees; its rows have a `mask`. Only a
        network's memory may connect transitions: without one, each is a sequence of
        length 1, which saves a TPU transpositions.
      optimizer: without the learning rate, see `optimizers.descend`.
      learning_rate: float32 [].
      average: over the learner cores.
    """

    def of_vectors(params, rows, memory):
        return loss(optimizers.as_trees(params), rows, memory)

    def step(state, rows, memory):
        params, opt_state = state
        if not jax.tree.leaves(memory):
            rows = single(rows)
        gradients, metrics = mean_gradient(
            of_vectors, params, rows, memory, rows.mask.size, average
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


def check_split(sequences: int, config: Config) -> None:
    """Raises UserError where minibatches would not be equal."""
    if sequences % config.minibatches:
        what = "environments" if config.shuffle == "unrolls" else "transitions"
        raise UserError(
            f"minibatches is {config.minibatches}, which does not divide the {sequences} "
            f"{what} of each core (batch_size over the cores that learn"
            f"{', times unroll_length' if what == 'transitions' else ''}): choose a divisor"
        )
