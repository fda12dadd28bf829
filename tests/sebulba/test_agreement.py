"""An agent that forgets to average is stopped, not learned with."""

import threading

import jax
import pytest

from podracer.errors import UserError
from sebulba import cores, training
from tests.agents import reinforce
from tests.environments import HostCounter


def first_report(agent, learners):
    run = training.train(
        agent,
        lambda number: HostCounter(batch_size=8),
        cores=cores.split(jax.devices(), 1, learners),
        unroll_length=3,
        total_steps=10_000,
        trajectories_per_report=2,
    )
    try:
        return next(run)
    finally:
        run.close()
        actors = [x for x in threading.enumerate() if x.name.startswith("actor ")]
        for thread in actors:  # on a slow machine one may still compile
            thread.join(60)
        assert not [thread for thread in actors if thread.is_alive()]


def test_an_agent_that_forgets_to_average_is_stopped_at_the_first_report():
    agent = reinforce(1, 2, average=lambda gradients: gradients)
    line = r"^learner\.shared\['params'\]\['w'\] differs between cores.*`average` given"
    assert first_report(agent, 1)
    with pytest.raises(UserError, match=line):
        first_report(agent, 2)


@pytest.mark.parametrize("learners", [1, 2, pytest.param(4, marks=pytest.mark.core)])
def test_an_agent_that_averages_is_not(learners):
    assert first_report(reinforce(1, 2), learners)[0].updates == 2
