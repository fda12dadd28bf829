"""Sebulba on several hosts: each acts for itself, all learn together."""

import os
import signal

import numpy as np
import pytest

from podracer.parallel import hosts
from tests import interruptions, many_hosts

RUN = (
    *("sebulba", "train", "--env", "jax:catch", "--preset", "small", "--cores", "2"),
    *("--batch-size", "4", "--unroll-length", "8", "--network.hidden-sizes", "8"),
    *("--threads-per-core", "1", "--max-lag", "0", "--checkpoint.steps", "2000"),
    *("--total-steps", "6400", "--run", "run"),
)


def train(count):
    """What a host keeps of 50 updates in lock-step, of 16 environments on all hosts."""
    hosts.initialize()
    import jax

    import sebulba
    from podracer import networks, parallel
    from podracer.agents import impala
    from sebulba import host_environments
    from sebulba.cores import split

    parallel.use_cpu_cores(1 + 4 // count)
    name, size = "jax:catch", 16 // count
    options = host_environments.default_options(name)

    def make(thread):
        first = host_environments.first_seed(0, thread, size)
        return host_environments.make(name, size, first, 1, options)

    example = make(0)
    network = networks.actor_critic(
        example.observation_spec(),
        example.action_spec(),
        networks.Config(hidden_sizes=(8,)),
    )
    agent = impala.make_agent(impala.Config(total_steps=6400), network)
    rows = []
    for state, row in sebulba.train(
        agent,
        make,
        unroll_length=8,
        total_steps=6400,
        cores=split(jax.local_devices(), 1),
        threads_per_core=1,
        max_lag=0,
    ):
        rows.append([row["episodes"], row["steps"]])
    leaves = jax.tree.leaves(parallel.on_host(state.learner.shared.params))
    seen = parallel.of_host(state.actor.timestep.observation)
    np.savez(f"{hosts.this()}.npz", *leaves, seen=np.asarray(seen), rows=rows)


def trained(folder, count):
    folder.mkdir()
    return many_hosts.kept(folder, train, [[count]] * count)


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    """What the only host keeps."""
    return trained(tmp_path_factory.mktemp("alone") / "run", 1)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_any_number_of_hosts_learns_the_same(tmp_path, alone, count):
    many_hosts.assert_same(trained(tmp_path / "run", count), *alone)


def command(folder):
    return many_hosts.start(folder, many_hosts.command, [RUN] * 2, heartbeat=5)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run of two hosts that nothing interrupted."""
    folder = tmp_path_factory.mktemp("whole")
    assert many_hosts.codes(command(folder)) == [0, 0]
    return folder / "run"


@pytest.mark.parametrize(("number", "how"), [(0, signal.SIGKILL), (1, signal.SIGTERM)])
@pytest.mark.slow
def test_a_run_that_one_host_ended_goes_on_bit_for_bit(tmp_path, whole, number, how):
    processes, run = command(tmp_path), tmp_path / "run"
    interruptions.until(
        lambda: interruptions.checkpoints(run) or not processes[0].is_alive()
    )
    os.kill(processes[number].pid, how)
    ends = many_hosts.codes(processes)
    assert ends == [0, 0] if how == signal.SIGTERM else 0 not in ends
    resume = [["sebulba", "train", "--resume", "run"]] * 2
    processes = many_hosts.start(tmp_path, many_hosts.command, resume)
    assert many_hosts.codes(processes) == [0, 0], many_hosts.said(tmp_path, 0)
    interruptions.assert_equal(run, whole)
