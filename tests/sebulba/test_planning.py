"""What a plan says, here for hosts of CPU cores; of a TPU's see tests/podracer/plan/tpu."""

import re

import jax
import pytest

from podracer import networks, parallel
from podracer.agents import impala
from podracer.errors import UserError
from podracer.plan import compiled, slices
from sebulba import host_environments, planning
from sebulba.command import subcommands as command

HOSTS = 2


def tell(memory, batch_size=12, cores=None):
    """What the plan for two hosts of four cores says."""
    devices = jax.devices()
    slice = slices.Slice("cpu", [devices[:4], devices[4:]], memory)
    options = host_environments.default_options("jax:catch")
    environment = host_environments.make("jax:catch", 1, 0, 1, options)
    network = networks.actor_critic(
        environment.observation_spec(),
        environment.action_spec(),
        networks.Config(hidden_sizes=(8,)),
    )
    config = command.Train(
        impala.Config(),
        options,
        batch_size=batch_size,
        unroll_length=3,
        updates_per_trajectory=2,
        cores=cores,
    )
    agent = impala.make_agent(impala.Config(), network)
    planning.describe(slice, agent, environment.reset(), False, config)


def test_every_host_acts_and_all_learn(capsys):
    tell(2**40)
    said = capsys.readouterr().out
    assert "each host has cpu cores: 1 to act, 3 to learn" in said
    assert re.search(r"an actor core holds about .* \(2 threads\)", said)
    learner = said[said.index("\nlearner\n") :]
    # Of an update: two all-reduces of the CPU's, gradient and metrics.
    assert re.search(
        r"collectives +an update: 1 all-reduce of .*, 1 all-reduce", learner
    )
    assert "host transfers    none" in learner


def test_what_does_not_fit_is_told():
    with pytest.raises(UserError, match="what a core holds needs .* no batch fits"):
        tell(2**10)
    with pytest.raises(UserError, match="batch_size is 13, .* a multiple of 6"):
        tell(2**40, batch_size=13)


def test_a_plan_is_for_the_cores_that_are_asked_for(capsys):
    with pytest.raises(UserError, match="batch_size is 13, .* a multiple of 2"):
        tell(2**40, batch_size=13, cores=1)
    said = capsys.readouterr().out
    assert "each host has one cpu core, which acts and learns" in said
    with pytest.raises(UserError, match="^cores is 5; it must be from 1 to 4$"):
        tell(2**40, cores=5)


def test_a_plan_as_if_all_learned_has_the_shares_of_those_that_do(monkeypatch, capsys):
    """Two hosts of three learners: what an agent divides, as its replay, it divides by six."""
    counted = []

    def programs(agent, timestep, cores, **options):
        if len(cores.learners) < len(jax.devices()):
            raise compiled.Refused("no such part")
        program = parallel.over_cores(
            lambda: counted.append(parallel.AVERAGE.cores),
            parallel.mesh_of(cores.learners),
            inputs=(),
            outputs=parallel.SHARED,
        )
        program.lower()
        raise compiled.Refused("seen")

    monkeypatch.setattr(planning, "programs", programs)
    with pytest.raises(compiled.Refused, match="seen"):
        tell(2**40)
    assert "as if all 8 cores of the slice learned" in capsys.readouterr().out
    assert counted == [6]
