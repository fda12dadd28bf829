"""LPG (Oh et al. 2020, arXiv:2007.08794): an agent whose update a rule file decides.

The rule was learned by `anakin meta-train`; see `podracer/rules/lpg.py` for what it reads.
"""

import dataclasses
import functools
import math
from typing import Any, Literal

import jax
import jax.numpy as jnp
import optax
from dm_env import specs

from podracer import networks
from podracer.agent import Agent
from podracer.agents import learned_rule
from podracer.agents.algorithm import Preset
from podracer.errors import UserError, check_at_least_one, check_ranges
from podracer.networks import heads, masks, torsos
from podracer.networks.policies import Categorical
from podracer.parallel import AVERAGE, Average
from podracer.rules import files
from podracer.rules import lpg as rule

KIND = "lpg"  # of rule files


@dataclasses.dataclass(frozen=True)
class Config(rule.Config):
    """The hyperparameters of an agent that a learned rule updates."""

    update_rule: files.UpdateRule = None
    """rule file of the update, made by `anakin meta-train`"""
    update_rule_checksum: files.Checksum = ""
    """checksum of the rule file, filled in when a run starts: it resumes with no other rule"""
    learning_rate: float = 1e-3
    """learning rate, constant"""
    optimizer: Literal["adam", "sgd"] = "adam"
    """optimizer: adam, or plain gradient descent as for the paper's tabular agents"""

    def __post_init__(self):
        super().__post_init__()
        check_ranges(self, 0.0, math.inf, "learning_rate")


@dataclasses.dataclass(frozen=True)
class NetworkConfig(networks.Config):
    """A network with a policy and a prediction vector."""

    prediction_size: int = 30
    """number of categories of the prediction vector; the rule's"""
    table: bool = False
    """a table of logits in place of torso, memory and heads, for discrete observations"""

    def __post_init__(self):
        super().__post_init__()
        check_at_least_one(prediction_size=self.prediction_size)


def make_agent(
    config: Config, network: networks.Network, average: Average = AVERAGE
) -> Agent:
    """LPG with the rule of `config.update_rule`; `network` is made by `make_network`.

    The file is read when an update is traced: acting needs no rule.
    """

    @functools.cache
    def of_file() -> tuple[rule.Rule, Any]:
        sizes, weights = read_rule(config)
        return rule.make_rule(config, sizes), weights

    def targets(_, state, experience):
        learned, weights = of_file()
        return learned.targets(weights, state, experience)

    return learned_rule.make_agent(
        rule.make_rule(config)._replace(targets=targets),
        (),
        network,
        make_optimizer(config.optimizer),
        config.learning_rate,
        average,
    )


def make_optimizer(name: str) -> optax.GradientTransformation:
    """The optimizer without its learning rate."""
    return {"adam": optax.scale_by_adam, "sgd": optax.identity}[name]()


def read_rule(config: Config) -> tuple[rule.Sizes, Any]:
    """The rule of `config.update_rule`: its sizes and weights.

    Raises UserError where there is none, or it is not the one that the checksum is of.
    """
    path = config.update_rule
    if path is None:
        raise UserError(
            "update_rule is missing: --update-rule FILE; `anakin meta-train` makes such a file"
        )
    sizes, weights, _ = files.load_rule(path, KIND, rule.Sizes())
    init = rule.make_rule(config, sizes).init
    # The key is made while tracing: this must not start JAX before it has its cores.
    shapes = jax.eval_shape(lambda: init(jax.random.key(0)))
    files.check_shapes(path, weights, shapes)
    files.check_checksum(path, config.update_rule_checksum)
    return sizes, weights


def pinned(config: Config, network: Any) -> Config:
    """With the checksum of its file.

    Raises UserError as `read_rule` does, and for a network's configuration that does not fit
    the rule.
    """
    sizes, _ = read_rule(dataclasses.replace(config, update_rule_checksum=""))
    if isinstance(network, NetworkConfig):
        rule.check_prediction_size(network.prediction_size, sizes)
    checksum = files.checksum(config.update_rule)
    return dataclasses.replace(config, update_rule_checksum=checksum)


def make_network(
    observation_spec: Any,
    action_spec: specs.Array,
    config: NetworkConfig = NetworkConfig(),
) -> networks.Network:
    """A network that predicts `rules.lpg.Predictions`.

    Raises UserError for actions other than a single choice, for a policy head that is one of
    continuous actions, and as `networks.actor_critic`.
    """
    actions = heads.number_of_actions(action_spec, "LPG")
    heads.check_unused(config.head, "LPG", "init_scale")
    if config.table:
        return _table(observation_spec, actions, config.prediction_size)

    def predict(features):
        policy = heads.PolicyHead("one of", (actions,), config.head)
        y = torsos.dense(config.prediction_size, name="prediction_head")
        return rule.Predictions(policy(features), Categorical(y(features)))

    network = networks.with_heads(observation_spec, config, predict)
    return masks.mask_network(network, action_spec, masks.forbid_in_policy)


def _table(observation_spec: Any, actions: int, predictions: int) -> networks.Network:
    """Logits for each observation, initially 0: uniform policies and predictions."""
    if not isinstance(observation_spec, specs.DiscreteArray):
        raise UserError(
            f"table is on, for discrete observations (a dm_env DiscreteArray); the "
            f"observation is {observation_spec}: leave --network.table out"
        )
    rows = int(observation_spec.num_values)

    def init(key):
        sizes = {"policy": actions, "y": predictions}
        return {name: jnp.zeros((rows, size)) for name, size in sizes.items()}

    def unroll(params, memory, timesteps):
        policy, y = (params[x][timesteps.observation] for x in ("policy", "y"))
        return rule.Predictions(Categorical(policy), Categorical(y))

    def step(params, memory, timestep):
        return memory, unroll(params, memory, timestep)

    return networks.Network(init, lambda batch_size: (), step, unroll, observation_spec)


# Oh et al. 2020, appendix; the learning rates are from its lists.
_SMALL_LPG = Preset(Config(), unroll_length=20, batch_size=64)
PRESETS = {
    "small": _SMALL_LPG,
    # for discrete observations: the paper's tabular agents
    "tabular": _SMALL_LPG._replace(
        config=Config(learning_rate=40.0, optimizer="sgd"),
        network=NetworkConfig(table=True),
    ),
    # ours, for Atari
    "atari": _SMALL_LPG._replace(
        config=Config(learning_rate=3e-4, reward_clipping="abs_one")
    ),
}

METRICS = {
    "loss/prediction": ("nat", "mean KL divergence of predictions from their target"),
    "loss/prediction_entropy": ("nat", "mean negative entropy of predictions per step"),
    "rule/pi_hat_square": ("", "mean square of the update rule's policy target"),
    "rule/y_hat_square": ("", "mean squared norm of its prediction target"),
}
