"""Disco103, a discovered update rule (Oh et al. 2025, doi:10.1038/s41586-025-09761-x).

The rule's weights are a file that its authors published, see docs/update-rules.md.
"""

import dataclasses
import functools
import math
from typing import Any

import jax
import optax

from podracer.agent import Agent
from podracer.agents import learned_rule
from podracer.agents.algorithm import Preset
from podracer.errors import UserError, check_ranges
from podracer.networks import Network, action_model
from podracer.networks.action_model import action_model as make_network
from podracer.parallel import AVERAGE, Average
from podracer.rules import disco, files
from podracer.rules.disco import steps
from podracer.transformations.replay import Config as Replay

__all__ = ["METRICS", "OFF_POLICY", "PRESETS", "Config", "make_agent", "make_network"]

OFF_POLICY = True  # the rule sees the behaviour policy: replay may be used


@dataclasses.dataclass(frozen=True)
class Config(disco.Config):
    """The agent's hyperparameters; the defaults are the reference's settings."""

    update_rule: files.UpdateRule = None
    """file of the rule's weights: disco_103.npz, which its authors published"""
    update_rule_checksum: files.Checksum = ""
    """checksum of the rule file, filled in when a run starts: it resumes with no other rule"""
    learning_rate: float = 3e-4
    """learning rate of Adam, constant"""
    max_step: float = 1.0
    """limit of every element of Adam's step, before the learning rate"""

    def __post_init__(self):
        super().__post_init__()
        check_ranges(self, 0.0, math.inf, "learning_rate", "max_step")


def make_agent(config: Config, network: Network, average: Average = AVERAGE) -> Agent:
    """Disco103 from the file `config.update_rule`; `network` is made by `make_network`.

    The file is read when an update is traced: acting needs no rule. Raises UserError for a
    recurrent network where `config.episode_ends` is jump.
    """
    if config.episode_ends == "jump" and jax.tree.leaves(network.initial_memory(1)):
        raise UserError(
            "episode_ends is jump, where a recurrent network would not reset its memory: "
            "choose own, or --network.memory none"
        )
    rule = disco.make_rule(config, average)
    weights = functools.cache(lambda: read_rule(config))

    def targets(_, state, experience):
        return rule.targets(weights(), state, experience)

    agent = learned_rule.make_agent(
        rule._replace(targets=targets),
        (),
        network,
        make_optimizer(config),
        config.learning_rate,
        average,
    )
    return jumping(agent) if config.episode_ends == "jump" else agent


def jumping(agent: Agent) -> Agent:
    """The agent learns from environments that jump at ends; see `rules/disco/steps.py`."""

    def learner_step(key, learner_state, trajectory):
        return agent.learner_step(key, learner_state, steps.jump(trajectory))

    return agent._replace(learner_step=learner_step)


def make_optimizer(config: Config) -> optax.GradientTransformation:
    """Adam whose steps are clipped, element by element, without the learning rate."""
    return optax.chain(optax.scale_by_adam(), optax.clip(config.max_step))


def read_rule(config: Config) -> disco.Weights:
    """The weights of `config.update_rule`.

    Raises UserError where there is none, or it is not the one that the checksum is of.
    """
    if config.update_rule is None:
        raise UserError(
            "update_rule is missing: --update-rule disco_103.npz; docs/update-rules.md says "
            "where that file is"
        )
    weights = disco.load(config.update_rule)
    files.check_checksum(config.update_rule, config.update_rule_checksum)
    return weights


def pinned(config: Config, network: Any) -> Config:
    """With the checksum of its file, which fits any network of `make_network`'s.

    Raises UserError as `read_rule` does.
    """
    read_rule(dataclasses.replace(config, update_rule_checksum=""))
    checksum = files.checksum(config.update_rule)
    return dataclasses.replace(config, update_rule_checksum=checksum)


PRESETS = {
    # the reference's notebook: Catch with 8 rows and columns, on one core
    "catch": Preset(
        Config(learning_rate=1e-2),
        unroll_length=28,
        batch_size=2,
        replay=Replay(1024, samples_per_insert=32.0, minimum_fill=64, fresh=False),
    ),
    # ours, for CartPole and MinAtar: small updates, many of which the rule needs
    "small": Preset(
        Config(learning_rate=3e-3),
        unroll_length=28,
        batch_size=4,
        network=action_model.Config(torso="mlp"),
        replay=Replay(1024, minimum_fill=32),
    ),
    # ours, for Atari: the reference's default learning rate, and each trajectory twice
    "atari": Preset(Config(), 28, 32, replay=Replay(1024, minimum_fill=32)),
}

METRICS = {
    "loss/y": (
        "nat",
        "mean KL divergence of predictions for a state from their target",
    ),
    "loss/z": (
        "nat",
        "mean KL divergence of predictions for an action from their target",
    ),
    "loss/next_policy": ("nat", "mean KL divergence of the policy's own prediction"),
    "loss/q": ("nat", "mean cross-entropy of action values with their target"),
    "rule/returns": ("reward", "mean Retrace target of an action value"),
    "rule/error": ("reward", "mean of that target minus the action value"),
    "rule/normalized_error": ("", "the same by its running standard deviation"),
}
