"""A plan is of what a run executes; here for CPU cores, of a TPU's see tests/podracer/plan/tpu."""

import re

import jax
import jax.numpy as jnp

from anakin import planning, training
from anakin.command.flags import Plan
from envs_jax import Catch
from podracer import networks, parallel
from podracer.agents import impala
from podracer.plan import slices
from podracer.transformations.replay import Config as Replay
from podracer.transformations.replay import replay
from tests.agents import reinforce


def instructions(compiled):
    """A program's text without the places in files that it was traced from."""
    text = compiled.as_text()
    return re.sub(r", metadata=\{[^}]*\}", "", text[text.index("\n\n%") :])


def test_a_plan_is_of_the_program_that_runs():
    catch, cores = Catch(), jax.devices()[:2]
    network = networks.actor_critic(
        catch.observation_spec(),
        catch.action_spec(),
        networks.Config(hidden_sizes=(8,)),
    )
    agent = impala.make_agent(impala.Config(), network)
    _, planned = planning.programs(agent, catch, cores, batch_size=4, unroll_length=3)
    run = training.make_programs(agent, catch, parallel.mesh_of(cores), 3, None)
    state = run.start(jax.random.key(0), jnp.arange(4))
    runs = run.call.lower(state, jnp.uint32(1), jnp.bool_(True)).compile()
    assert instructions(planned.compiled) == instructions(runs)
    assert len(planned.module.donated) == len(jax.tree.leaves(state))


def test_a_plan_for_some_cores_has_their_shares(capsys):
    """Also of what an agent divides over its cores, as its replay."""
    catch, kept = Catch(), Replay(capacity=1026)
    agent = replay(reinforce(50, 3), kept, catch.observation_spec(), 3)
    config = Plan(None, catch, batch_size=4, unroll_length=3, replay=kept, cores=2)
    told = []
    for count in (2, 4):
        slice = slices.Slice("cpu", [jax.devices()[:count]], 2**40)
        planning.describe(slice, lambda _: agent, catch, config)
        told.append(
            re.findall(r"(?:memory|arguments|collectives) .*", capsys.readouterr().out)
        )
    assert told[0] == told[1]
