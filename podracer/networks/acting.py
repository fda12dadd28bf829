"""How agents act that sample from their network's policy and report it as behaviour."""

from collections.abc import Callable
from typing import NamedTuple

import jax

from podracer.agent import ActorOutput
from podracer.networks.network import Network


class Acting(NamedTuple):
    """`ActorOutput.extras` are the behaviour policy [B]; memory is the actor's state."""

    # (params, keys [B], memory, timestep) -> (memory, ActorOutput, predictions [B, ...]).
    # Its gradient recomputes activations rather than storing them: they stay in cache, and
    # memory does not grow with the unroll.
    act: Callable
    # As in `Agent`; the params are all that actors need.
    actor_params: Callable
    actor_step: Callable
    greedy_actor_step: Callable


def make_acting(network: Network) -> Acting:
    """Acting by `network`, whose predictions have an attribute `policy`."""
    step = jax.checkpoint(network.step)

    def act(params, keys, memory, timestep):
        memory, predictions = step(params, memory, timestep)
        policy = predictions.policy
        # A constant: a policy gradient knows of an action only its probability.
        action = jax.lax.stop_gradient(policy.sample(keys))
        return memory, ActorOutput(action, policy), predictions

    def actor_step(keys, params, memory, timestep):
        return act(params, keys, memory, timestep)[:2]

    def greedy_actor_step(keys, params, memory, timestep):
        memory, predictions = network.step(params, memory, timestep)
        policy = predictions.policy
        return memory, ActorOutput(policy.mode(), policy)

    def actor_params(learner_state):
        return learner_state.shared.params

    return Acting(act, actor_params, actor_step, greedy_actor_step)
