"""Hyperparameters that change as a run trains: piecewise constant in its updates."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from podracer.agent import Agent
from podracer.errors import UserError


class Schedule(NamedTuple):
    """A hyperparameter's values, each with the environment steps from which on it holds."""

    steps: tuple[float, ...]  # [N], from 0 upwards
    values: tuple[float, ...]  # [N]


Scheduled = Callable[[jax.Array], Agent]  # (updates done, uint32 []) -> the agent


def agent_at(agent: Agent | Scheduled, updates: jax.Array) -> Agent:
    """The agent after so many updates."""
    return agent if isinstance(agent, Agent) else agent(updates)


def scheduled(
    make_agent: Callable[[Mapping[str, Any]], Agent],
    schedules: Mapping[str, Schedule],
    steps: int,
) -> Callable[[Mapping[str, Any]], Agent | Scheduled]:
    """The same maker, of agents whose hyperparameters follow their schedules.

    Args:
      make_agent: (hyperparameters, which are traced) -> an agent.
      schedules: by the hyperparameter's name; if there are none, agents stay as they are.
      steps: environment steps of an update. A value holds from the first update that begins
        after its steps.
    """
    if not schedules:
        return make_agent
    firsts = {k: np.ceil(np.array(x.steps) / steps) for k, x in schedules.items()}

    def make(numbers: Mapping[str, Any]) -> Scheduled:
        def at(updates: jax.Array) -> Agent:
            now = {}
            for name, schedule in schedules.items():
                first = jnp.asarray(firsts[name], jnp.uint32)
                index = jnp.sum(first <= updates) - 1
                now[name] = jnp.asarray(schedule.values, jnp.float32)[index]
            return make_agent({**numbers, **now})

        return at

    return make


def parse(texts: Sequence[str]) -> dict[str, Schedule]:
    """The schedules of `learning-rate=0:1e-3,500_000:1e-4`, by name. Raises UserError."""
    found: dict[str, Schedule] = {}
    for text in texts:
        name, _, pairs = text.removeprefix("agent.").partition("=")
        name = name.replace("-", "_")
        try:
            numbers = [tuple(map(float, x.split(":", 1))) for x in pairs.split(",")]
            steps, values = zip(*numbers, strict=True)
        except ValueError:
            raise UserError(
                f"schedule is {text!r}; it must be FIELD=STEPS:VALUE,STEPS:VALUE, as "
                "learning-rate=0:1e-3,500_000:1e-4, or the folder of a population"
            ) from None
        if (
            steps[0] != 0
            or [*steps] != sorted({*steps})
            or not np.isfinite(steps).all()
        ):
            raise UserError(
                f"schedule is {text!r}; its steps must begin with 0 and increase"
            )
        if name in found:
            raise UserError(
                f"schedule has {name} twice: give all of its values at once"
            )
        found[name] = Schedule(steps, values)
    return found


def to_text(steps: Sequence[float], lives: Sequence[Mapping[str, float]]) -> list[str]:
    """Schedules as `parse` reads them: the hyperparameters of `lives` [N] from `steps` [N] on."""
    texts = []
    for name in lives[0]:
        pairs = []
        for first, life in zip(steps, lives, strict=True):
            if not pairs or life[name] != pairs[-1][1]:
                pairs.append((first, life[name]))
        numbers = (f"{first:.0f}:{value!r}" for first, value in pairs)
        texts.append(f"{name.replace('_', '-')}={','.join(numbers)}")
    return texts
