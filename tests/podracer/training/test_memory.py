"""A run that cannot fit into memory is refused with the estimate."""

import re

import jax
import jax.numpy as jnp
import pytest
from dm_env import specs

from anakin.command import subcommands as anakin
from podracer import command, networks, parallel
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
    prioritized = Train(None, None, replay=Replay(2, priority=0.6), unroll_length=15)
    assert memory.replayed(agent, spec, prioritized).planned(None, 1) == [
        "replay: 2 trajectories of 65,972 bytes, 129 KiB"
    ]
    monkeypatch.setattr(memory, "available", lambda: 2**30)
    memory.check(2**10, 4, SPEC, besides=2**29)
    with pytest.raises(UserError, match="batch_size is 131072"):
        memory.check(2**17, 1, SPEC, besides=2**30 - 2**28)


def test_parameters_are_refused_before_xla_hangs():
    """float32 parameters and RMSProp's mean square of them: one copy a core."""
    config = networks.Config(hidden_sizes=(10**6, 10**6))
    network = networks.actor_critic(SPEC, specs.DiscreteArray(3), config)
    agent = impala.make_agent(impala.Config(), network)
    held = memory.of_learner(agent, 2, None)
    assert held == pytest.approx(2 * 2 * 4 * 10**12, rel=0.01)
    assert memory.of_learner(agent, 1, held) == held // 2
    line = "optimizer need 14.6 TiB of memory in 2 copies, and 1 GiB are available"
    with pytest.raises(UserError, match=line):
        memory.of_learner(agent, 2, 2**30)


def test_a_container_has_less(monkeypatch, tmp_path):
    monkeypatch.setattr(memory, "CGROUP", tmp_path)
    whole = memory.available()
    for most, less in {"max": False, "8000": True}.items():
        (tmp_path / "memory.max").write_text(f"{most}\n")
        (tmp_path / "memory.current").write_text("3000\n")
        assert (memory.available() == 5000) == less
    assert whole > 5000


def test_a_program_needs_what_its_loops_read_and_write():
    """Of all cores together; what no loop touches may never be stored."""

    def program(x):  # float32 [N]
        _, rows = jax.lax.scan(lambda total, x: (total + x, x * x), 0.0, x)
        return jnp.sum(jnp.outer(rows, rows))

    x = jax.ShapeDtypeStruct((512,), jnp.float32)
    assert memory.of_program(jax.jit(program), x) == 4 * 2 * 512
    mesh = parallel.make_mesh(2)
    words = (parallel.SHARED,), parallel.SHARED
    both = parallel.over_cores(program, mesh, *words)
    assert memory.of_program(both, x) == 2 * 4 * 2 * 512
    with_results = parallel.over_cores(lambda x: jnp.outer(x, x), mesh, *words)
    assert memory.of_program(with_results, x) == 2 * 4 * 512**2


def test_a_compiled_program_is_refused_before_it_runs(monkeypatch):
    def program(x):
        return jnp.sort(jnp.outer(x, x).ravel())[::2].sum()

    compiled = jax.jit(program).lower(jnp.ones(512)).compile()
    monkeypatch.setattr(memory, "available", lambda: 2**30)
    memory.check_compiled(compiled, cores=8)
    monkeypatch.setattr(memory, "available", lambda: 2**20)
    with pytest.raises(memory.TooLarge, match="needs at least 12 MiB of memory"):
        memory.check_compiled(compiled, cores=8)


CATCH = "train", "--env=catch", "--cores=2", "--network.hidden-sizes=8"
META = (
    *(
        "meta-train",
        "--cores=2",
        "--families=chain-short",
        "--updates=1",
        "--total-steps=9",
    ),
    *("--life.batch-size=2", "--life.unroll-length=2"),
)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            (*CATCH, "--agent=ppo", "--agent.epochs=100000000"),
            "agent.epochs is 100000000",
        ),
        ((*CATCH, "--env.rows=1000000"), "env.rows is 1000000"),
        ((*CATCH, "--replay.capacity=10000000"), "replay.capacity is 10000000"),
        *(
            pytest.param(*x, marks=pytest.mark.slow)  # the others, by longer programs
            for x in (
                ((*CATCH, "--batch-size=10000000"), "batch_size is 10000000"),
                (
                    (*CATCH, "--seeds=2", "--batch-size=5000000"),
                    "batch_size is 5000000",
                ),
                ((*META, "--lifetimes=1000000"), "lifetimes is 1000000"),
            )
        ),
    ],
)
def test_the_field_that_takes_the_memory_is_named(flags, line, monkeypatch, tmp_path):
    monkeypatch.setattr(parallel, "use_cpu_cores", lambda *_, **__: None)
    monkeypatch.setattr(command, "keep_programs", lambda: None)
    monkeypatch.setattr(memory, "available", lambda: 2**28)
    with pytest.raises(UserError, match=line + ", which needs at least") as error:
        anakin.COMMANDS[flags[0]]([*flags[1:], f"--run={tmp_path / 'run'}"])
    (most,) = re.findall(r"choose a smaller one, about (\d+) at most", str(error.value))
    assert 1 <= int(most) < int(line.split()[-1]) / 2
    assert "256 MiB are available" in str(error.value)
    assert not (tmp_path / "run").exists()


def test_an_update_alone_is_estimated_for_sebulba():
    """PPO's orders of the epochs: int32 [epochs, B] for a batch of unrolls."""
    network = networks.Config(hidden_sizes=(8,))
    network = networks.actor_critic(SPEC, specs.DiscreteArray(3), network)
    agent = ppo.make_agent(ppo.Config(epochs=10**6), network)
    needed = memory.of_update(agent, SPEC, unroll_length=4, batch_size=8)
    assert 4 * 8 * 10**6 <= needed < 4.1 * 8 * 10**6
