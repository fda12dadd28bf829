"""Acting by sampling from a network's policy, which is recorded as behaviour."""

from collections.abc import Callable
from typing import NamedTuple

from podracer.agent import ActorOutput
from podracer.networks.network import Network


class Acting(NamedTuple):
    """`ActorOutput.extras` are the behaviour policy [B]; memory is the actor's state."""

    # As in `Agent`; the params are all that actors need.
    actor_params: Callable
    actor_step: Callable
    greedy_actor_step: Callable


def make_acting(network: Network) -> Acting:
    """Acting by `network`, whose predictions have an attribute `policy`."""

    def actor_params(learner_state):
        return learner_state.shared.params

    def actor_step(keys, params, memory, timestep):
        memory, predictions = network.step(params, memory, timestep)
        policy = predictions.policy
        return memory, ActorOutput(policy.sample(keys), policy)

    def greedy_actor_step(keys, params, memory, timestep):
        memory, predictions = network.step(params, memory, timestep)
        policy = predictions.policy
        return memory, ActorOutput(policy.mode(), policy)

    return Acting(actor_params, actor_step, greedy_actor_step)
