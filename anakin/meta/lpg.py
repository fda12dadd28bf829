"""Meta-training of LPG (Oh et al. 2020, arXiv:2007.08794) on its training worlds."""

import dataclasses
import itertools
import math
from typing import Any, Literal

import jax.numpy as jnp
import optax
from dm_env import specs

from anakin.meta import objective
from anakin.meta.hidden_value import make_value
from anakin.meta.lifetimes import Life
from anakin.meta_gradient import Meta
from envs_jax.lpg import TaskDistribution
from podracer import networks
from podracer.agents import from_flags, learned_rule
from podracer.agents.lpg import NetworkConfig, make_network
from podracer.errors import UserError, check_at_least_one, check_range, check_ranges
from podracer.parallel import Average
from podracer.rules import lpg as rule

OBJECTIVE = objective.Config()


@dataclasses.dataclass(frozen=True)
class Config:
    """Lifetimes of LPG's agents; the defaults are the paper's for tabular grids."""

    batch_size: int = 64
    """number of environments of each lifetime"""
    unroll_length: int = 20
    """number of environment steps between two updates of an agent"""
    length: int = 2_500
    """number of trajectories after which a lifetime ends"""
    learning_rates: tuple[float, ...] = (20.0, 40.0, 80.0)
    """learning rates of the agents; a bandit chooses one for each lifetime"""
    alpha_y: tuple[float, ...] = (0.1, 0.5, 1.0)
    """weights of the prediction vector's loss; chosen likewise"""
    optimizer: Literal["sgd", "adam"] = "sgd"
    """the agents' optimizer"""
    hidden_sizes: tuple[int, ...] = (32,)
    """layers of the agents' networks, where observations are not an index; else tables"""
    discount_factor: float = 0.99
    """the agents' gamma, per environment step"""
    value_learning_rate: float = 0.01
    """learning rate of the value functions (Adam), which the rule cannot see"""

    def __post_init__(self):
        numbers = "batch_size", "unroll_length", "length"
        check_at_least_one(**{name: getattr(self, name) for name in numbers})
        check_at_least_one(
            **{f"hidden_sizes[{i}]": n for i, n in enumerate(self.hidden_sizes)}
        )
        for name in ("learning_rates", "alpha_y"):
            if not getattr(self, name):
                raise UserError(f"{name} is empty; it must have at least one number")
            for i, x in enumerate(getattr(self, name)):
                check_range(f"{name}[{i}]", x, 0.0, math.inf)
        check_ranges(self, 0.0, 1.0, "discount_factor")
        check_ranges(self, 0.0, math.inf, "value_learning_rate")


def make_meta(
    config: Config,
    tasks: TaskDistribution,
    sizes: rule.Sizes,
    weights: objective.Config = OBJECTIVE,
) -> Meta:
    """What `meta_gradient.train` needs to learn an LPG rule of these sizes.

    Args:
      config: of the lifetimes.
      tasks: what they play.
      sizes: of the rule's network.
      weights: of the meta-objective.
    """
    observation_spec, action_spec = tasks.observation_spec(), tasks.action_spec()
    network = make_network(
        observation_spec,
        action_spec,
        NetworkConfig(
            torso="mlp",
            hidden_sizes=config.hidden_sizes,
            prediction_size=sizes.prediction_size,
            table=is_index(observation_spec),
        ),
    )
    # A root's gradient is infinite at 0, where a parameter has had no gradient yet.
    adam = optax.scale_by_adam(eps_root=1e-12)
    optimizer = {"sgd": optax.identity(), "adam": adam}[config.optimizer]
    base = rule.Config(discount_factor=config.discount_factor)

    def make_agent(rule_weights, arm):
        alpha = {"alpha_y": arm["alpha_y"]}
        own_rule = rule.make_rule(from_flags.with_numbers(base, alpha), sizes)
        return learned_rule.make_agent(
            own_rule,
            rule_weights,
            network,
            optimizer,
            arm["learning_rate"],
            Average(None),
        )

    def predict(params, trajectory):
        return network.unroll(params, trajectory.actor_state, trajectory.timesteps)

    arms = itertools.product(config.learning_rates, config.alpha_y)
    rates, alphas = zip(*arms, strict=True)
    value = make_value(
        observation_spec,
        networks.Config(torso="mlp", hidden_sizes=config.hidden_sizes),
        config.value_learning_rate,
        config.discount_factor,
        weights.trace_decay,
    )
    life = Life(
        tasks,
        make_agent,
        {"learning_rate": jnp.float32(rates), "alpha_y": jnp.float32(alphas)},
        value,
        config.batch_size,
        config.unroll_length,
        config.length,
    )
    return Meta(
        rule.make_rule(base, sizes).init,
        life,
        predict,
        objective.make_objective(weights),
        {
            "meta/entropy": math.log(action_spec.num_values),
            "meta/prediction_entropy": math.log(max(2, sizes.prediction_size)),
        },
    )


def is_index(observation_spec: Any) -> bool:
    """Whether observations are an index, for which agents have tables."""
    return isinstance(observation_spec, specs.DiscreteArray)
