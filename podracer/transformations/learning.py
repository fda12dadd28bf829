"""Wraps both ways of learning, `learner_step` and `weighted_step`."""

from collections.abc import Callable

from podracer.agent import Agent, Trajectory


def with_learning(agent: Agent, wrap: Callable[[Callable], Callable]) -> Agent:
    """The agent, with `wrap(step)` in place of each of its ways to learn.

    Args:
      agent: any agent.
      wrap: (step) -> step, both (key, learner_state, trajectory, *weight) ->
        (learner_state, metrics, *priority); weight and priority are there or not.
    """
    weighted_step = agent.weighted_step
    return agent._replace(
        learner_step=wrap(agent.learner_step),
        weighted_step=None if weighted_step is None else wrap(weighted_step),
    )


def learning_from(agent: Agent, seen: Callable[[Trajectory], Trajectory]) -> Agent:
    """An agent that learns from `seen(trajectory)`."""

    def wrap(step):
        def learn(key, learner_state, trajectory, *weight):
            return step(key, learner_state, seen(trajectory), *weight)

        return learn

    return with_learning(agent, wrap)
