"""Agents written from podracer/agent.py alone, and a count of any agent's steps."""

import collections

import jax
import jax.numpy as jnp

from podracer.agent import ActorOutput, Agent, LearnerState
from podracer.learning import losses
from podracer.networks.policies import Categorical, Gaussian
from podracer.parallel import AVERAGE

LEARNING_RATE = 0.1


def reinforce(observations: int, actions: int, average=AVERAGE) -> Agent:
    """REINFORCE with a linear policy over flat observations; forgetful with
    `average=lambda x: x`."""

    def logits(params, timesteps):
        rows = timesteps.observation.reshape(*timesteps.reward.shape, -1)
        return rows @ params["w"]

    def initial_learner_state(key):
        w = 0.1 * jax.random.normal(key, (observations, actions))
        return LearnerState({"params": {"w": w}, "updates": jnp.int32(0)}, ())

    def actor_step(keys, params, actor_state, timestep):
        action = jax.vmap(jax.random.categorical)(keys, logits(params, timestep))
        return actor_state, ActorOutput(action, ())

    def learner_step(key, learner_state, trajectory):
        timesteps, outputs, _ = trajectory
        rows = jax.tree.map(lambda x: x[:-1], timesteps)

        def loss(params):
            log_pi = jax.nn.log_softmax(logits(params, rows))
            taken = jnp.take_along_axis(log_pi, outputs.action[..., None], -1)[..., 0]
            return -jnp.mean(taken * (1.0 + timesteps.reward[1:]))

        shared = learner_state.shared
        gradients = average(jax.grad(loss)(shared["params"]))
        params = jax.tree.map(
            lambda x, g: x - LEARNING_RATE * g, shared["params"], gradients
        )
        shared = {"params": params, "updates": shared["updates"] + 1}
        return LearnerState(shared, ()), {}

    return Agent(
        initial_learner_state,
        learner_step,
        lambda learner_state: learner_state.shared["params"],
        lambda batch_size: (),
        actor_step,
        actor_step,
    )


def composite(average=AVERAGE) -> Agent:
    """REINFORCE for `environments.Composite`, with a policy for each part of an action."""

    def policies(params, shape):
        logits, mean = (
            jnp.broadcast_to(params[name], (*shape, params[name].size))
            for name in ("logits", "mean")
        )
        return Categorical(logits), Gaussian(mean, jnp.full_like(mean, 0.3))

    def actor_step(keys, params, actor_state, timestep):
        choice, amount = (
            policy.sample(keys) for policy in policies(params, timestep.reward.shape)
        )
        return actor_state, ActorOutput({"choice": choice, "amount": amount}, ())

    def greedy_actor_step(keys, params, actor_state, timestep):
        choice, amount = (x.mode() for x in policies(params, timestep.reward.shape))
        return actor_state, ActorOutput({"choice": choice, "amount": amount}, ())

    def learner_step(key, learner_state, trajectory):
        reward, _, mask = losses.make_transitions(trajectory.timesteps, 1.0)
        action, params = trajectory.outputs.action, learner_state.shared

        def loss(params):
            choice, amount = policies(params, reward.shape)
            log_prob = choice.log_prob(action["choice"])
            log_prob += amount.log_prob(action["amount"])
            return -jnp.mean(mask * log_prob * (reward - jnp.mean(reward)))

        gradients = average(jax.grad(loss)(params))
        params = jax.tree.map(lambda x, g: x - LEARNING_RATE * g, params, gradients)
        return LearnerState(params, ()), {}

    return Agent(
        lambda key: LearnerState({"logits": jnp.zeros(3), "mean": jnp.zeros(2)}, ()),
        learner_step,
        lambda learner_state: learner_state.shared,
        lambda batch_size: (),
        actor_step,
        greedy_actor_step,
    )


def counting(agent: Agent) -> tuple[Agent, collections.Counter]:
    """The agent, and how often its steps were called: in programs, how often traced."""
    calls = collections.Counter()

    def counted(name):
        def step(*args):
            calls[name] += 1
            return getattr(agent, name)(*args)

        return step

    names = "actor_step", "learner_step"
    steps = {name: counted(name) for name in names}
    return agent._replace(**steps), calls
