"""A run that cannot fit into memory is refused with the estimate."""

import pytest
from dm_env import specs

from anakin.command import memory as of_anakin
from anakin.command.flags import Train as Anakin
from envs_jax import Catch
from podracer import networks
from podracer.agents import impala, ppo
from podracer.errors import UserError
from podracer.training import memory
from podracer.training.flags import Train
from podracer.transformations.replay import Config as Replay

SPEC = specs.Array((1024,), "float32")


def test_what_is_available_is_known_here():
    assert 2**26 < memory.available() < 2**50


def test_the_observations_alone_are_enough_to_refuse(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 2**30)
    memory.check(2**10, 4, SPEC)
    line = r"batch_size is 2097152, which needs at least 32 GiB .* 1 GiB are available"
    with pytest.raises(UserError, match=line + ".* below 65536"):
        memory.check(2**21, 4, SPEC)


def test_an_estimate_is_asked_for_only_where_it_matters(monkeypatch):
    monkeypatch.setattr(memory, "available", lambda: 2**30)
    asked = []

    def estimate():
        asked.append(True)
        return 2**31

    memory.check(4, 4, SPEC, estimate)
    assert not asked
    with pytest.raises(UserError, match="at least 2 GiB"):
        memory.check(2**14, 4, SPEC, estimate)
    monkeypatch.setattr(memory, "available", lambda: None)
    memory.check(2**50, 4, SPEC, estimate)


def test_replay_is_refused_by_its_capacity(monkeypatch):
    """capacity x ((T + 1) x timestep + T x decision + actor state), and the batch besides."""
    config = Train(None, None, replay=Replay(2**20), unroll_length=15)
    spec, network = SPEC, networks.Config(hidden_sizes=(8,))
    network = networks.actor_critic(spec, specs.DiscreteArray(3), network)
    agent = impala.make_agent(impala.Config(), network)
    kept = memory.replayed(agent, spec, config)
    assert kept == (2**20, 16 * (4 * 1024 + 12) + 15 * (4 + 4 * 3))
    assert kept.check(2**40, parts=4) == kept.size // 4
    line = r"replay.capacity is 1048576, .* 64.4 GiB .*\(65,968 bytes a trajectory\), and 32"
    with pytest.raises(UserError, match=line + ".* capacity below 520854"):
        kept.check(2**35)
    assert kept.planned(2**40, 8) == [
        "replay: 1,048,576 trajectories of 65,968 bytes, 8.05 GiB on each of 8 learner cores"
    ]
    assert memory.replayed(agent, spec, Train(None, None)).planned(0, 8) == []
    monkeypatch.setattr(memory, "available", lambda: 2**30)
    memory.check(2**10, 4, SPEC, besides=2**29)
    with pytest.raises(UserError, match="batch_size is 131072"):
        memory.check(2**17, 1, SPEC, besides=2**30 - 2**28)


def test_parameters_are_refused_before_xla_hangs(monkeypatch):
    """float32 parameters and RMSProp's mean square of them: one copy a core."""
    config = networks.Config(hidden_sizes=(10**6, 10**6))
    network = networks.actor_critic(SPEC, specs.DiscreteArray(3), config)
    agent = impala.make_agent(impala.Config(), network)
    held = memory.of_learner(agent, 2, None)
    assert held == pytest.approx(2 * 2 * 4 * 10**12, rel=0.01)
    assert memory.of_learner(agent, 1, held) == held // 2
    line = "optimizer need 14,9.* GiB of memory in 2 copies, and 1 GiB are available"
    with pytest.raises(UserError, match=line):
        memory.of_learner(agent, 2, 2**30)
    monkeypatch.setattr(memory, "available", lambda: 2**30)
    for runs in 0, 2:
        train = Anakin(None, None, cores=2, batch_size=4)
        with pytest.raises(UserError, match="in 2 copies"):
            of_anakin.check(lambda _: agent, Catch(), train, runs)


def test_a_container_has_less(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    whole = memory.available()
    for most, less in {"max": False, "8000": True}.items():
        (tmp_path / "memory.max").write_text(f"{most}\n")
        (tmp_path / "memory.current").write_text("3000\n")
        assert (memory.available() == 5000) == less
    assert whole > 5000


def test_the_estimate_is_of_state_and_trajectory():
    """Twice the batch takes twice the memory, but for the parameters."""
    catch = Catch()
    network = networks.actor_critic(
        catch.observation_spec(),
        catch.action_spec(),
        networks.Config(hidden_sizes=(8,)),
    )
    agent = ppo.make_agent(ppo.Config(), network)
    one, two, three = (of_anakin.size(agent, catch, n, 16) for n in (100, 200, 300))
    assert two - one == three - two
    observations = 100 * 17 * 50 * 4
    assert observations < two - one < 3 * observations
