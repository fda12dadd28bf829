"""The slot for an update rule: what a rule reads, and what it gives.

A rule turns a trajectory into targets, constants, towards which a loss moves the agent's
predictions. `podracer/agents/learned_rule.py` makes an agent of a rule and a network.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

from podracer.agent import Key, Metrics, PyTree, Trajectory


class Experience(NamedTuple):
    """What a rule may read of an update."""

    trajectory: Trajectory  # its outputs.extras are the behaviour policy [T, B]
    params: PyTree  # of the agent, before the update
    predictions: Any  # [T + 1, B, ...] the network's, with these params
    # (params) -> predictions [T + 1, B, ...], for other params: slow copies of them, say
    predict: Callable[[PyTree], Any]


class Rule(NamedTuple):
    """An update rule as pure functions.

    `weights` are what was learned of the rule; an agent's update does not change them. The
    targets are computed outside the differentiated loss, so a rule stops no gradient:
    meta-gradients flow through its weights and its inputs. Whatever enters the rule's state
    is averaged over cores, with the `average` that a `make_rule(config, average)` is given.
    """

    # (key) -> weights; () if there are none
    init: Callable[[Key], PyTree]
    # (params of the agent) -> the rule's state, carried from update to update and equal on
    # every core: target params, moments, a memory; () if there is none
    initial_state: Callable[[PyTree], PyTree]
    # (weights, state, experience) -> (targets, state, metrics)
    targets: Callable[[PyTree, PyTree, Experience], tuple[Any, PyTree, Metrics]]
    # (targets, predictions [T + 1, B, ...], trajectory) -> (loss of one core, metrics); its
    # gradient with respect to the predictions is the update's
    loss: Callable[[Any, Any, Trajectory], tuple[Any, Metrics]]
