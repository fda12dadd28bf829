"""An agent of an update rule and a network, for any rule in the slot `podracer.rules.rule`."""

from typing import Any, NamedTuple

import jax
import optax

from podracer.agent import Agent, LearnerState, PyTree
from podracer.learning import optimizers
from podracer.networks import Network
from podracer.networks.acting import make_acting
from podracer.parallel import AVERAGE, Average
from podracer.rules.rule import Experience, Rule


class Shared(NamedTuple):
    """Equal on all learner cores."""

    params: PyTree
    opt_state: optax.OptState
    rule_state: PyTree  # what the rule carries from update to update


def make_agent(
    rule: Rule,
    weights: PyTree,
    network: Network,
    optimizer: optax.GradientTransformation,
    learning_rate: Any,
    average: Average = AVERAGE,
) -> Agent:
    """The agent that `rule` updates; `ActorOutput.extras` are the behaviour policy [B].

    Args:
      rule: made with the same `average`.
      weights: the rule's, constants of the agent: in no checkpoint and no optimizer state.
        A meta-gradient is that of `learner_step` with respect to them.
      network: its predictions are a pytree of floats with an attribute `policy`.
      optimizer: without the learning rate, see `optimizers.descend`.
      learning_rate: float or float32 [].
      average: over the learner cores.
    """
    acting = make_acting(network)

    def initial_learner_state(key):
        params = network.init(key)
        opt_state = optimizer.init(params)
        return LearnerState(Shared(params, opt_state, rule.initial_state(params)), ())

    def learner_step(key, learner_state, trajectory):
        shared, (timesteps, _, memory) = learner_state.shared, trajectory

        def predict(params):
            return network.unroll(params, memory, timesteps)

        predictions, pull_back = jax.vjp(predict, shared.params)
        experience = Experience(trajectory, shared.params, predictions, predict)
        targets, rule_state, metrics = rule.targets(
            weights, shared.rule_state, experience
        )
        # Only the loss is differentiated, so the targets are constants of this gradient.
        directions, terms = jax.grad(rule.loss, argnums=1, has_aux=True)(
            targets, predictions, trajectory
        )
        gradients = average(pull_back(directions)[0])
        params, opt_state = optimizers.descend(
            optimizer, gradients, shared.opt_state, shared.params, learning_rate
        )
        metrics = metrics | terms | {"gradient_norm": optax.tree.norm(gradients)}
        return LearnerState(Shared(params, opt_state, rule_state), ()), metrics

    return Agent(
        initial_learner_state,
        learner_step,
        acting.actor_params,
        network.initial_memory,
        acting.actor_step,
        acting.greedy_actor_step,
    )
