"""Brax's PPO on CartPole: steps/s, as one line of JSON. Runs in an environment of its own.

    python brax_cartpole.py BATCH_SIZE UNROLL_LENGTH STEPS

Brax has neither a CartPole nor a distribution over discrete actions: both are here, as
its public interfaces ask for them. It has no evaluation, normalization or logging to do.
"""

import json
import sys

import jax
import jax.numpy as jnp
import numpy as np
from brax.envs.base import Env, State
from brax.training.agents.ppo import networks, train
from brax.training.distribution import ParametricDistribution
from jax.sharding import Mesh, NamedSharding, PartitionSpec

EPOCHS, MINIBATCHES = 4, 4


class CartPole(Env):
    """Gymnasium's, but for the time limit, which is brax's `episode_length`.

    The observation is all of the state, so brax has nothing else to carry or to reset.
    """

    observation_size = 4
    action_size = 1  # makes a network of two outputs: the logits of left and right
    backend = "none"

    def reset(self, rng):
        start = jax.random.uniform(rng, (4,), minval=-0.05, maxval=0.05)
        return State(None, start, jnp.float32(0), jnp.float32(0))

    def step(self, state, action):
        _, velocity, angle, spin = state.obs
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        force = jnp.where(action == 1, 10.0, -10.0)
        push = (force + 0.05 * spin**2 * sin) / 1.1
        twist = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        pull = push - 0.05 * twist * cos / 1.1
        change = jnp.stack([velocity, pull, spin, twist])
        after = state.obs + 0.02 * change
        fell = (jnp.abs(after[0]) > 2.4) | (jnp.abs(after[2]) > 12 * jnp.pi / 180)
        return state.replace(obs=after, reward=jnp.float32(1), done=fell * 1.0)


class Dispersion:
    """What brax's loss reports of a distribution, and a categorical one has not."""

    loc = scale = 0.0


class Categorical(ParametricDistribution):
    """Over integers, given logits."""

    def __init__(self, actions):
        super().__init__(actions, None, event_ndims=0, reparametrizable=False)

    def create_dist(self, parameters):
        return Dispersion()

    def sample_no_postprocessing(self, parameters, seed):
        return jax.random.categorical(seed, parameters)

    def postprocess(self, event):
        return event

    def mode(self, parameters):
        return jnp.argmax(parameters, -1)

    def log_prob(self, parameters, actions):
        log_probs = jax.nn.log_softmax(parameters)
        return jnp.take_along_axis(log_probs, actions[..., None], -1)[..., 0]

    def entropy(self, parameters, seed):
        log_probs = jax.nn.log_softmax(parameters)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, -1)


def make_networks(*arguments, **options):
    """A separate policy and value of 2 x 64 tanh units."""
    made = networks.make_ppo_networks(
        *arguments,
        policy_hidden_layer_sizes=(64, 64),
        value_hidden_layer_sizes=(64, 64),
        activation=jnp.tanh,
        **options,
    )
    return made.replace(parametric_action_distribution=Categorical(2))


def device_put_replicated(tree, devices):
    """What jax 0.10 no longer has and brax 0.14.2 calls once, before training."""
    sharding = NamedSharding(Mesh(np.array(devices), "i"), PartitionSpec("i"))
    stacked = jax.tree.map(lambda x: jnp.stack([x] * len(devices)), tree)
    return jax.device_put(stacked, sharding)


def main(batch_size: int, unroll_length: int, steps: int) -> None:
    jax.device_put_replicated = device_put_replicated
    speeds = []  # of an epoch, one program of `steps`, timed by brax; the first compiles
    train.train(
        CartPole(),
        num_timesteps=2 * steps,
        num_evals=3,
        run_evals=False,
        episode_length=500,
        num_envs=batch_size,
        unroll_length=unroll_length,
        batch_size=batch_size // MINIBATCHES,
        num_minibatches=MINIBATCHES,
        num_updates_per_batch=EPOCHS,
        learning_rate=3e-4,
        entropy_cost=0.01,
        discounting=0.99,
        clipping_epsilon=0.2,
        network_factory=make_networks,
        progress_fn=lambda _, metrics: speeds.append(float(metrics["training/sps"])),
    )
    speed = speeds[-1]
    print(json.dumps({"steps_per_second": speed, "devices": jax.device_count()}))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
