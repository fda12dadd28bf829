"""The agents of `anakin train` and `anakin tune`, made from their flags."""

from collections.abc import Callable, Mapping
from typing import Any

from anakin import schedules
from podracer.agent import Agent
from podracer.agents import from_flags
from podracer.training import configuring


def maker(
    configured: configuring.Configured, environment: Any
) -> Callable[[Mapping[str, Any]], Agent | schedules.Scheduled]:
    """(the hyperparameters in which runs of one program differ) -> a run's agent."""
    config = configured.config
    specs = environment.observation_spec(), environment.action_spec()

    def make_agent(numbers: Mapping[str, Any]) -> Agent:
        whole = from_flags.for_run(config.agent, config.total_steps)
        return configured.make_agent(from_flags.with_numbers(whole, numbers), *specs)

    steps = config.batch_size * config.unroll_length
    return schedules.scheduled(make_agent, schedules.parse(config.schedule), steps)
