"""IMPALA (Espeholt et al. 2018, arXiv:1802.01561), after TorchBeast (arXiv:1910.03552).

With every clip at 1 and no policy lag rho is 1, and this is A2C. A time limit is not a
termination: returns are bootstrapped from the value of the last observation.

The loss is summed or averaged: gradient clipping and RMSProp's epsilon depend on its scale.
With `sum` (TorchBeast) and `mean`, N cores compute what one core computes, up to rounding;
with `podracer` (the paper's average) each core's share is a batch of its own.
"""

import dataclasses
import math
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import optax

from podracer.agent import Agent, LearnerState, PyTree
from podracer.agents.algorithm import Preset
from podracer.errors import check_ranges
from podracer.learning import losses, optimizers
from podracer.learning.gradients import Loss, gradient_of_sum, sequences
from podracer.networks import Network
from podracer.networks.acting import make_acting
from podracer.parallel import AVERAGE, Average

OFF_POLICY = True  # rho corrects for stale data: replay may be used


@dataclasses.dataclass(frozen=True)
class Config:
    """IMPALA's hyperparameters; the defaults are those of TorchBeast's code."""

    discount_factor: float = 0.99
    """the agent's gamma, per environment step"""
    learning_rate: float = 4.8e-4
    """learning rate at the first update"""
    decay_learning_rate: bool = True
    """decay the learning rate linearly, to 0 at total_steps"""
    total_steps: int | None = None
    """environment steps of the run (the command's --total-steps); None: no decay"""
    reduction: Literal["sum", "mean", "podracer"] = "sum"
    """how the loss is reduced over time and batch: its sum or mean over all cores, or the
    sum on each core averaged over cores (podracer)"""
    value_cost: float = 0.5
    """weight of half the squared value error"""
    entropy_cost: float = 6e-4
    """weight of the entropy bonus"""
    reward_clipping: Literal["abs_one", "soft_asymmetric", "none"] = "abs_one"
    """clipping of the rewards that the learner sees"""
    clip_rho: float = 1.0
    """upper limit of rho in the value targets; inf: none"""
    clip_c: float = 1.0
    """upper limit of rho in the traces; inf: none"""
    clip_pg_rho: float = 1.0
    """upper limit of rho in the policy gradient; inf: none"""
    max_gradient_norm: float = 40.0
    """global norm to which larger gradients are scaled down"""
    rmsprop_decay: float = 0.99
    """decay of RMSProp's mean square"""
    rmsprop_epsilon: float = 0.01
    """added to RMSProp's root (outside of it, as in PyTorch)"""
    momentum: float = 0.0
    """momentum of RMSProp's updates"""

    def __post_init__(self):
        positive = "learning_rate", "value_cost", "entropy_cost", "rmsprop_epsilon"
        limits = "clip_rho", "clip_c", "clip_pg_rho", "max_gradient_norm"
        check_ranges(self, 0.0, 1.0, "discount_factor", "rmsprop_decay", "momentum")
        check_ranges(self, 0.0, math.inf, *positive, *limits)


class Shared(NamedTuple):
    """Equal on all learner cores."""

    params: PyTree
    opt_state: optax.OptState
    updates: jax.Array  # int32 []


def make_agent(config: Config, network: Network, average: Average = AVERAGE) -> Agent:
    """IMPALA; `network` predicts `networks.Predictions`.

    `ActorOutput.extras` are the behaviour policy [B].
    """
    optimizer = optimizers.rmsprop(config)
    loss = make_loss(config, network)
    acting = make_acting(network)

    def initial_learner_state(key):
        params = network.init(key)
        return LearnerState(Shared(params, optimizer.init(params), jnp.int32(0)), ())

    def learner_step(key, learner_state, trajectory):
        shared, (timesteps, outputs, memory) = learner_state.shared, trajectory
        rows = sequences((timesteps, outputs))
        gradients, sums = gradient_of_sum(loss, shared.params, rows, memory)
        count = timesteps.reward[1:].size
        gradients, taken = reduced_over_cores(
            config, gradients, sums.taken, count, average
        )
        metrics = losses.means(sums, count, taken)
        learning_rate = optimizers.learning_rate(
            config, shared.updates, count * average.cores
        )
        params, opt_state = optimizers.descend(
            optimizer, gradients, shared.opt_state, shared.params, learning_rate
        )
        metrics["gradient_norm"] = optax.tree.norm(gradients)
        metrics["learning_rate"] = learning_rate
        shared = Shared(params, opt_state, optax.safe_increment(shared.updates))
        return LearnerState(shared, ()), metrics

    return Agent(
        initial_learner_state,
        learner_step,
        acting.actor_params,
        network.initial_memory,
        acting.actor_step,
        acting.greedy_actor_step,
    )


def reduced_over_cores(
    config: Config, gradients: PyTree, taken: jax.Array, count: int, average: Average
) -> tuple[PyTree, jax.Array]:
    """The gradient of the loss, from that of the sum over each core's `count` transitions,
    and the mean of `taken`: in one collective."""
    if config.reduction == "sum":
        gradients, taken = average.total((gradients, taken))
        return gradients, taken / average.cores
    if config.reduction == "mean":
        gradients = jax.tree.map(lambda x: x / count, gradients)
    return average((gradients, taken))


def make_loss(config: Config, network: Network) -> Loss:
    """(params, (timesteps [T + 1, B], outputs [T, B]), memory [B, ...]) -> Terms [T, B]."""

    def loss(params, rows, memory):
        timesteps, (action, behaviour_policy) = rows
        predictions = network.unroll(params, memory, timesteps)
        reward = losses.clip_reward(timesteps.reward, config.reward_clipping)
        transitions = losses.make_transitions(
            timesteps._replace(reward=reward), config.discount_factor
        )
        policy = jax.tree.map(lambda x: x[:-1], predictions.policy)
        log_pi = policy.log_prob(action)
        log_mu = jax.lax.stop_gradient(behaviour_policy.log_prob(action))
        rho = jnp.exp(log_pi - log_mu)
        target, advantage = losses.vtrace(
            predictions.value[:-1],
            predictions.value[1:],
            transitions,
            rho,
            clip_rho=config.clip_rho,
            clip_c=config.clip_c,
            clip_pg_rho=config.clip_pg_rho,
        )
        # Void transitions have no advantage and no value error; entropy is masked here.
        means = {
            "loss/policy": -advantage * log_pi,
            "loss/value": 0.5 * jnp.square(target - predictions.value[:-1]),
            "loss/entropy": -transitions.mask * policy.entropy(),
        }
        total = (
            means["loss/policy"]
            + config.value_cost * means["loss/value"]
            + config.entropy_cost * means["loss/entropy"]
        )
        return losses.Terms(total, means, transitions.mask, {"rho": rho})

    return loss


# The paper's epsilon of 0.01 is inside the root, as in TensorFlow; outside of it that is 0.1.
_TABLE_G1 = Config(learning_rate=6e-4, entropy_cost=0.01, rmsprop_epsilon=0.1)
_ATARI = Preset(_TABLE_G1, unroll_length=20, batch_size=32)
PRESETS = {
    "small": Preset(
        Config(learning_rate=2e-3, entropy_cost=0.01),
        unroll_length=16,
        batch_size=32,
    ),
    # ours, for MinAtar's five games
    "minatar": Preset(
        Config(learning_rate=6e-3, entropy_cost=0.01),
        unroll_length=16,
        batch_size=128,
    ),
    # monobeast.py's flags
    "torchbeast": Preset(Config(), unroll_length=80, batch_size=8),
    # Espeholt et al. 2018, table G.1 (Atari)
    "impala": _ATARI,
    # the same, averaged as in the Podracer paper
    "podracer": _ATARI._replace(
        config=dataclasses.replace(_TABLE_G1, reduction="podracer")
    ),
}
