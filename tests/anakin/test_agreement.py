"""An agent that forgets to average is stopped, not learned with."""

import functools

import jax
import pytest

import anakin
from anakin import population
from envs_jax.catch import Catch
from podracer.checkpoints.checkpoint import Checkpoints
from podracer.errors import UserError
from tests.agents import reinforce

CATCH = Catch(rows=5, columns=3)
RUN = {"batch_size": 8, "unroll_length": 4, "total_steps": 320}
LINE = r"^learner\.shared\['params'\]\['w'\] differs between cores.*`average` given"


def train(agent, cores, **options):
    yield from anakin.train(agent, CATCH, cores=cores, **RUN | options)


@functools.cache
def averaging():
    return reinforce(15, 3)


@functools.cache
def forgetful():
    return reinforce(15, 3, average=lambda gradients: gradients)


@pytest.mark.core
def test_an_agent_that_forgets_to_average_is_stopped_at_the_first_report():
    for _ in train(forgetful(), 1):  # nobody to disagree with
        pass
    with pytest.raises(UserError, match=LINE):
        next(train(forgetful(), 2))


@pytest.mark.parametrize("cores", [1, 2, pytest.param(8, marks=pytest.mark.core)])
def test_an_agent_that_averages_is_not(cores):
    state, _ = next(train(averaging(), cores))
    assert state.updates == 1


def test_what_goes_wrong_later_is_not_saved(tmp_path):
    """At a checkpoint cores are compared again."""
    state, metrics = next(train(averaging(), 2))
    with Checkpoints(tmp_path / "good") as checkpoints:
        checkpoints.save(state, metrics)
    w = state.learner.shared["params"]["w"]
    parts = [shard.data + i for i, shard in enumerate(w.addressable_shards)]
    state.learner.shared["params"]["w"] = jax.make_array_from_single_device_arrays(
        w.shape, w.sharding, parts
    )
    with (
        pytest.raises(UserError, match=LINE),
        Checkpoints(tmp_path / "bad") as checkpoints,
    ):
        checkpoints.save(state, metrics)
    assert [x.name for x in tmp_path.iterdir()] == ["good"]


def test_members_of_a_population_may_differ(tmp_path):
    runs = population.train(
        lambda values: averaging(), CATCH, seeds=range(4), cores=2, **RUN
    )
    state, rows = next(runs)
    assert len(rows) == 4
    one = population.member(state, 1)  # a slice, which JAX lays whole on both cores
    assert one.learner.shared["updates"].sharding.is_fully_replicated
    with Checkpoints(tmp_path) as checkpoints:
        checkpoints.save(one, rows[1])
    runs.close()
