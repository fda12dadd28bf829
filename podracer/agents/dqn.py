"""Q-learning with a target network, from DQN to R2D2, by options of one agent.

DQN (Mnih et al. 2015, doi:10.1038/nature14236), double DQN (arXiv:1509.06461), dueling
networks (arXiv:1511.06581), n-step returns, quantiles (arXiv:1710.10044), priorities
(arXiv:1511.05952), Ape-X (arXiv:1803.00933) and R2D2 (openreview.net/forum?id=r1lyTjAqYX),
which adds a recurrent core with stored state and burn-in, and rescaled values.

It learns from replay. A time limit is not a termination: returns are bootstrapped from the
value of the last observation. N cores compute what one core computes from the same
trajectories, up to rounding.
"""

import dataclasses
import math
from typing import Any, Literal, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import optax
from dm_env import specs

from podracer import networks
from podracer.agent import ActorOutput, Agent, LearnerState, PyTree, Trajectory
from podracer.agents.algorithm import Preset
from podracer.errors import UserError, check_at_least_one, check_range, check_ranges
from podracer.imports import rlax
from podracer.learning import losses, optimizers
from podracer.learning.exploration import epsilon_after, explore
from podracer.learning.gradients import Loss, mean_gradient, sequences
from podracer.networks import heads, masks, torsos
from podracer.parallel import AVERAGE, Average
from podracer.transformations.replay import Config as Replay

OFF_POLICY = True  # the target is the best action's value, whoever acted
SLOPE = 1e-3  # that h of large values keeps, see `rescaled`


@dataclasses.dataclass(frozen=True)
class Config:
    """Hyperparameters; the defaults are double DQN's with single steps."""

    discount_factor: float = 0.99
    """the agent's gamma, per environment step"""
    return_steps: int = 1
    """number of rewards in a return before the bootstrap value; fewer where the episode or
    the trajectory ends"""
    double: bool = True
    """choose the bootstrap action by the online network, not by the target network"""
    target_period: int = 1_000
    """number of updates between those of the target network"""
    target_rate: float = 1.0
    """how far the target network then moves to the online one; 1 copies it, a small rate
    with target_period 1 is Polyak averaging"""
    huber: float = 1.0
    """absolute error above which the loss is linear; inf: none, the squared error"""
    rescale_values: bool = False
    """predict h(value), h(x) = sign(x) (sqrt(abs(x) + 1) - 1) + 0.001 x, which bears returns of
    any scale unclipped"""
    reward_clipping: Literal["abs_one", "soft_asymmetric", "none"] = "none"
    """clipping of the rewards that the learner sees"""
    burn_in: int = 0
    """number of steps at the start of each trajectory that only renew the memory"""
    priority_mixture: float = 0.9
    """eta of a trajectory's priority: eta times the largest, and 1 - eta times the mean
    absolute error of its steps"""
    learning_rate: float = 2.5e-4
    """learning rate at the first update"""
    decay_learning_rate: bool = False
    """decay the learning rate linearly, to 0 at total_steps"""
    total_steps: int | None = None
    """environment steps of the run (the command's --total-steps); None: no decay"""
    adam_epsilon: float = 1e-8
    """added to the root of Adam's mean square"""
    max_gradient_norm: float = 10.0
    """global norm to which larger gradients are scaled down"""
    initial_epsilon: float = 1.0
    """probability of a random action until the first update"""
    epsilon: float = 0.05
    """probability of a random action once it has decayed"""
    exploration_share: float = 0.1
    """share of total_steps over which the probability decays linearly"""
    ladder: float = 0.0
    """alpha: each episode's probability of a random action is epsilon ** (1 + alpha u), with u
    uniform in [0, 1); 0: the same in all"""

    def __post_init__(self):
        shares = "initial_epsilon", "epsilon", "exploration_share", "target_rate"
        check_ranges(self, 0.0, 1.0, "discount_factor", "priority_mixture", *shares)
        positive = "huber", "learning_rate", "adam_epsilon", "max_gradient_norm"
        check_ranges(self, 0.0, math.inf, "ladder", *positive)
        check_range("burn_in", self.burn_in, 0)
        counts = {
            name: getattr(self, name) for name in ("return_steps", "target_period")
        }
        check_at_least_one(**counts)


@dataclasses.dataclass(frozen=True)
class NetworkConfig(networks.Config):
    """A torso, a memory and quantiles of each action's value."""

    quantiles: int = 1
    """number of quantiles of each action's return; 1: its mean"""
    dueling: bool = False
    """a value and advantages, each with a hidden layer of its own, rather than action values"""

    def __post_init__(self):
        super().__post_init__()
        check_at_least_one(quantiles=self.quantiles)


class Params(NamedTuple):
    """What actors need."""

    network: PyTree
    epsilon: jax.Array  # float32 [], probability of a random action


class ActorState(NamedTuple):
    """Of each environment."""

    memory: PyTree  # [B, ...] the network's
    exponent: jax.Array  # float32 [B], of epsilon in this episode: 1 + alpha u


class Shared(NamedTuple):
    """Equal on all learner cores."""

    params: PyTree
    target_params: PyTree
    opt_state: optax.OptState
    updates: jax.Array  # int32 []
    epsilon: jax.Array  # float32 []


class Batch(NamedTuple):
    """What an update learns from, [T, B, ...], without the steps of the burn-in."""

    timesteps: dm_env.TimeStep
    action: jax.Array
    target: jax.Array  # [T, B, Q] of the action's quantiles
    mask: jax.Array  # 0.0 for the void transitions between episodes


def make_agent(
    config: Config, network: networks.Network, average: Average = AVERAGE
) -> Agent:
    """The agent; `network` predicts quantiles [..., A, Q], see `make_network`.

    `ActorOutput.extras` are empty: the learner needs to know nothing of a decision.

    Raises UserError for a burn-in without a memory, and when traced for one that leaves
    nothing of a trajectory to learn from.
    """
    optimizer = optax.chain(
        optax.clip_by_global_norm(config.max_gradient_norm),
        optax.scale_by_adam(eps=config.adam_epsilon),
    )
    recurrent = jax.tree.leaves(jax.eval_shape(lambda: network.initial_memory(1)))
    if config.burn_in and not recurrent:
        raise UserError(
            f"burn_in is {config.burn_in}, but the network has no memory to renew: leave "
            "it at 0, or choose one (--network.memory lstm)"
        )

    def initial_learner_state(key):
        params = network.init(key)
        epsilon = jnp.float32(config.initial_epsilon)
        opt_state = optimizer.init(params)
        shared = Shared(params, params, opt_state, jnp.int32(0), epsilon)
        return LearnerState(shared, ())

    def actor_params(learner_state):
        return Params(learner_state.shared.params, learner_state.shared.epsilon)

    def initial_actor_state(batch_size):
        return ActorState(network.initial_memory(batch_size), jnp.ones(batch_size))

    def actor_step(keys, params, actor_state, timestep):
        explore_keys, ladder_keys = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        drawn = 1.0 + config.ladder * jax.vmap(jax.random.uniform)(ladder_keys)
        exponent = jnp.where(timestep.first(), drawn, actor_state.exponent)
        memory, quantiles = network.step(params.network, actor_state.memory, timestep)
        values, epsilon = jnp.mean(quantiles, -1), params.epsilon**exponent
        action = jax.vmap(explore)(explore_keys, values, epsilon)
        return ActorState(memory, exponent), ActorOutput(action, ())

    def greedy_actor_step(keys, params, actor_state, timestep):
        del keys
        memory, quantiles = network.step(params.network, actor_state.memory, timestep)
        action = jnp.argmax(jnp.mean(quantiles, -1), -1)
        return actor_state._replace(memory=memory), ActorOutput(action, ())

    def learner_step(key, learner_state, trajectory):
        once = jnp.ones_like(trajectory.timesteps.reward[0])
        return weighted_step(key, learner_state, trajectory, once)[:2]

    def weighted_step(key, learner_state, trajectory, weight):
        del key
        shared = learner_state.shared
        batch, memory, error = make_batch(config, network, shared, trajectory)
        gradients, metrics = mean_gradient(
            make_loss(config, network),
            shared.params,
            sequences(batch),
            memory,
            batch.mask.size,
            average,
            weight,
        )
        # Of all steps, those of the burn-in too, which is how total_steps counts them.
        steps = trajectory.timesteps.reward[1:].size * average.cores
        learning_rate = optimizers.learning_rate(config, shared.updates, steps)
        params, opt_state = optimizers.descend(
            optimizer, gradients, shared.opt_state, shared.params, learning_rate
        )
        updates = optax.safe_increment(shared.updates)
        moved = optax.incremental_update(
            params, shared.target_params, config.target_rate
        )
        target_params = optax.periodic_update(
            moved, shared.target_params, updates, config.target_period
        )
        epsilon = epsilon_after(config, updates.astype(jnp.float32) * steps)
        metrics |= {"learning_rate": learning_rate, "epsilon": shared.epsilon}
        shared = Shared(params, target_params, opt_state, updates, epsilon)
        priority = priorities(error, batch.mask, config.priority_mixture)
        return LearnerState(shared, ()), metrics, priority

    return Agent(
        initial_learner_state,
        learner_step,
        actor_params,
        initial_actor_state,
        actor_step,
        greedy_actor_step,
        weighted_step,
    )


def make_batch(
    config: Config, network: networks.Network, shared: Shared, trajectory: Trajectory
) -> tuple[Batch, PyTree, jax.Array]:
    """(what is learned from, the memory [B, ...] before it, the values' errors [T, B])."""
    timesteps, (action, _), (memory, _) = trajectory
    if config.burn_in >= len(action):
        raise UserError(
            f"burn_in is {config.burn_in}, which leaves nothing to learn from "
            f"unroll_length {len(action)}: choose a shorter burn-in or longer unrolls"
        )
    before = jax.tree.map(lambda x: x[: config.burn_in], timesteps)
    timesteps = jax.tree.map(lambda x: x[config.burn_in :], timesteps)
    action = action[config.burn_in :]

    def predict(params):
        start = networks.memory_after(network, params, memory, before)
        return start, network.unroll(params, start, timesteps)

    start, online = predict(shared.params)  # [T + 1, B, A, Q]
    target = predict(shared.target_params)[1]
    best = jnp.argmax(jnp.mean(online if config.double else target, -1), -1)
    reward = losses.clip_reward(timesteps.reward, config.reward_clipping)
    transitions = losses.make_transitions(
        timesteps._replace(reward=reward), config.discount_factor
    )
    after = of_action(target, best)[1:]
    if config.rescale_values:
        after = unscaled(after)
    returns = n_step_returns(after, transitions, config.return_steps)
    if config.rescale_values:
        returns = rescaled(returns)
    value = of_action(online[:-1], action)
    error = transitions.mask * jnp.mean(returns - value, -1)
    seen = jax.tree.map(lambda x: x[:-1], timesteps)
    return Batch(seen, action, returns, transitions.mask), start, error


def of_action(quantiles: jax.Array, action: jax.Array) -> jax.Array:
    """The quantiles [..., Q] of the actions [...], of all [..., A, Q]."""
    # A sum over a mask: the gradient of an index is a scatter, which is slow.
    taken = jax.nn.one_hot(action, quantiles.shape[-2], dtype=bool)[..., None]
    return jnp.sum(jnp.where(taken, quantiles, 0.0), -2)


def n_step_returns(
    v_t: jax.Array, transitions: losses.Transitions, steps: int
) -> jax.Array:
    """Returns [T, B, Q] of up to `steps` rewards and the value after them.

    They are shorter where the trajectory or an episode ends: a truncated one at the value
    of its last observation.

    Args:
      v_t: [T, B, Q] values after the transitions; constants to the gradient.
      transitions: between the values.
      steps: n.
    """
    # 0.0 before a void transition: what the return has reached is bootstrapped. The last
    # one has no effect.
    goes_on = jnp.roll(transitions.mask, -1, axis=0)

    def returns(v_t, reward, discount, goes_on):  # [T] each
        return rlax.n_step_bootstrapped_returns(reward, discount, v_t, steps, goes_on)

    of_quantiles = jax.vmap(returns, (1, None, None, None), 1)
    of_batch = jax.vmap(of_quantiles, 1, 1)
    return jax.lax.stop_gradient(
        of_batch(v_t, transitions.reward, transitions.discount, goes_on)
    )


def rescaled(value: jax.Array) -> jax.Array:
    """h of a value (Pohlen et al. 2018, arXiv:1805.11593, proposition A.2)."""
    # rlax has both too; without their differences of almost equal numbers, small values
    # come back to seven digits rather than four.
    size = jnp.abs(value)
    return jnp.sign(value) * size / (jnp.sqrt(size + 1.0) + 1.0) + SLOPE * value


def unscaled(value: jax.Array) -> jax.Array:
    """The inverse of `rescaled`."""
    size = 1.0 + SLOPE + jnp.abs(value)
    root = 2.0 * size / (1.0 + jnp.sqrt(1.0 + 4.0 * SLOPE * size))
    return jnp.sign(value) * (jnp.square(root) - 1.0)


def make_loss(config: Config, network: networks.Network) -> Loss:
    """(params, Batch [T, B], memory [B, ...]) -> Terms [T, B]."""

    def loss(params, batch, memory):
        quantiles = network.unroll(params, memory, batch.timesteps)
        value = of_action(quantiles, batch.action)
        cost = losses.quantile_loss(value, batch.target, config.huber)
        means = {"value": jnp.mean(value, -1)}
        return losses.Terms(batch.mask * cost, {}, batch.mask, means)

    return loss


def priorities(error: jax.Array, mask: jax.Array, mixture: float) -> jax.Array:
    """How much is left to learn from each trajectory [B] (R2D2, section 2.3).

    Args:
      error: [T, B] of its steps, 0.0 where void.
      mask: [T, B] 0.0 where void.
      mixture: the largest's share, the mean has the rest.
    """
    size = jnp.abs(error)
    mean = jnp.sum(size, 0) / jnp.maximum(jnp.sum(mask, 0), 1.0)
    return mixture * jnp.max(size, 0) + (1.0 - mixture) * mean


def make_network(
    observation_spec: Any,
    action_spec: specs.Array,
    config: NetworkConfig = NetworkConfig(),
) -> networks.Network:
    """A network that predicts quantiles [..., A, Q], -inf where an action is forbidden.

    Raises UserError for actions other than a single choice, for a policy head that is not
    the default, and as `networks.actor_critic`.
    """
    actions = heads.number_of_actions(action_spec, "DQN")
    heads.check_unused(config.head, "DQN")

    def quantiles_of(features, actions, name):
        flat = torsos.dense(actions * config.quantiles, name)(features)
        return flat.reshape(*flat.shape[:-1], actions, config.quantiles)

    def value_head(features):
        return quantiles_of(features, actions, "value_head")

    def dueling_heads(features):
        def hidden(name):
            return jax.nn.relu(torsos.dense(features.shape[-1], name)(features))

        value = quantiles_of(hidden("value_hidden"), 1, "value_head")
        advantage = quantiles_of(hidden("advantage_hidden"), actions, "advantage_head")
        return value + advantage - jnp.mean(advantage, -2, keepdims=True)

    head = dueling_heads if config.dueling else value_head
    network = networks.with_heads(observation_spec, config, head)
    return masks.mask_network(network, action_spec, forbid_in_quantiles)


def forbid_in_quantiles(
    quantiles: jax.Array, allowed: dict[str, jax.Array]
) -> jax.Array:
    """`mask_network`'s `forbid` for quantiles [..., A, Q]."""
    return jnp.where(allowed[""][..., None], quantiles, -jnp.inf)


# A sampled trajectory is learned from whole, so that batches are larger, and updates fewer,
# than with single transitions: of papers are the number of times that each step is learned
# from, samples_per_insert, and the steps, not updates, from one target network to the next.
_MNIH = Replay(
    65_536, samples_per_insert=8.0, minimum_fill=3_136, fresh=False, updates=8
)
PRESETS = {
    # ours, for small problems
    "small": Preset(
        Config(learning_rate=1e-3, target_period=50),
        unroll_length=8,
        batch_size=32,
        replay=Replay(
            4_096, samples_per_insert=4.0, minimum_fill=128, fresh=False, updates=4
        ),
    ),
    # ours: whatever was seen is kept, or what is solved is forgotten again
    "cartpole": Preset(
        Config(
            learning_rate=5e-4,
            decay_learning_rate=True,
            return_steps=8,
            target_period=200,
            epsilon=0.02,
        ),
        unroll_length=8,
        batch_size=16,
        network=NetworkConfig(hidden_sizes=(128, 128), layer_norm=True),
        replay=Replay(
            65_536, samples_per_insert=16.0, minimum_fill=256, fresh=False, updates=16
        ),
    ),
    # Young and Tian 2019 (arXiv:1903.03176): 100,000 steps of replay, each learned from 32
    # times, and epsilon, over 100,000 of 5M steps; ours: Adam, double, batches of 512 steps
    "minatar": Preset(
        Config(
            learning_rate=2.5e-4,
            target_period=64,
            epsilon=0.1,
            exploration_share=0.02,
        ),
        unroll_length=8,
        batch_size=32,
        replay=Replay(
            12_800, samples_per_insert=32.0, minimum_fill=640, fresh=False, updates=16
        ),
    ),
    # Mnih et al. 2015, extended data table 1 (Atari): 1M steps of replay, each learned from
    # 8 times, epsilon, over 1M of 50M steps, the target network; ours: Adam, batches of 512
    "dqn": Preset(
        Config(
            double=False,
            learning_rate=2.5e-4,
            adam_epsilon=1e-4,
            target_period=625,
            epsilon=0.1,
            exploration_share=0.02,
            reward_clipping="abs_one",
        ),
        unroll_length=16,
        batch_size=32,
        replay=_MNIH,
    ),
    # Hessel et al. 2018 (Rainbow, arXiv:1710.02298, table 1): double, dueling, 3 steps,
    # priorities, target network, epsilon and Adam of its agents without noisy layers;
    # QR-DQN's 200 quantiles (arXiv:1710.10044) for its C51; ours: batches of 512
    "atari": Preset(
        Config(
            return_steps=3,
            learning_rate=2.5e-4,
            adam_epsilon=1.5e-4,
            target_period=125,
            epsilon=0.01,
            exploration_share=0.00125,
            reward_clipping="abs_one",
        ),
        unroll_length=16,
        batch_size=32,
        network=NetworkConfig(quantiles=200, dueling=True),
        replay=dataclasses.replace(_MNIH, minimum_fill=1_280, priority=0.5),
    ),
    # Horgan et al. 2018 (arXiv:1803.00933, section 4.1 and appendix C; Atari): batches of
    # 512 steps, each step learned from 0.75 times; ours: 128 environments and not 360
    # actors, Adam for RMSProp
    "apex": Preset(
        Config(
            return_steps=3,
            learning_rate=1e-4,
            adam_epsilon=1e-3,
            max_gradient_norm=40.0,
            target_period=2_500,
            epsilon=0.4,
            exploration_share=0.0,
            ladder=7.0,
            reward_clipping="abs_one",
        ),
        unroll_length=16,
        batch_size=128,
        network=NetworkConfig(dueling=True),
        replay=Replay(
            131_072,
            samples_per_insert=0.75,
            minimum_fill=3_200,
            fresh=False,
            updates=3,
            priority=0.6,
        ),
    ),
    # Kapturowski et al. 2019 (R2D2, table 2; Atari): 40 steps of burn-in and 80 to learn
    # from, 64 sequences; ours: sequences that do not overlap, 1M steps of replay and not 4M,
    # 64 environments and not 256 actors, Ape-X's limit of the gradient
    "r2d2": Preset(
        Config(
            discount_factor=0.997,
            return_steps=5,
            rescale_values=True,
            burn_in=40,
            learning_rate=1e-4,
            adam_epsilon=1e-3,
            max_gradient_norm=40.0,
            target_period=2_500,
            epsilon=0.4,
            exploration_share=0.0,
            ladder=7.0,
        ),
        unroll_length=120,
        batch_size=64,
        network=NetworkConfig(
            dueling=True,
            memory="lstm",
            memory_size=512,
            last_action=True,
            last_reward=True,
        ),
        replay=Replay(
            8_192,
            samples_per_insert=1.0,
            minimum_fill=1_024,
            fresh=False,
            priority=0.9,
            importance=0.6,
        ),
    ),
}

METRICS = {"epsilon": ("", "probability of a random action, before the ladder")}
