"""Several processes as one run: the same numbers, and nobody is left waiting."""

import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
import pytest

from podracer.errors import UserError
from podracer.parallel import hosts
from tests import many_hosts

KILL = 240  # seconds that processes of ours may live


def train(cores, updates, ends_after=None):
    """What a host keeps of a run; host 1 may ask for its end."""
    hosts.initialize()
    import jax

    import anakin
    import envs_jax
    from podracer import networks, parallel
    from podracer.agents import impala

    parallel.use_cpu_cores(cores)
    env, me, asked = envs_jax.make("catch"), hosts.this(), []
    network = networks.actor_critic(
        env.observation_spec(), env.action_spec(), networks.Config(hidden_sizes=(8,))
    )
    agent = impala.make_agent(impala.Config(total_steps=64 * updates), network)

    def stopped():
        asked.append(0)
        return ends_after is not None and me == 1 and len(asked) > ends_after

    run = {"batch_size": 8, "unroll_length": 8, "total_steps": 64 * updates}
    for state, _ in anakin.train(
        agent, env, stopped=stopped, updates_per_report=max(5, updates // 4), **run
    ):
        pass
    shared = jax.tree.leaves(state.learner.shared)
    copies = [[np.asarray(x.data) for x in leaf.addressable_shards] for leaf in shared]
    assert all((x == core[0]).all() for core in copies for x in core)
    rows = state.actors.timestep.observation.addressable_shards
    np.savez(
        f"{me}.npz",
        *(core[0] for core in copies),
        seen=np.concatenate([np.asarray(x.data) for x in rows]),
        updates=int(parallel.on_host(state.updates)),
    )


def trained(folder, count, cores, updates=50, ends_after=None):
    return many_hosts.kept(folder, train, [[cores, updates, ends_after]] * count)


@pytest.mark.slow
def test_any_number_of_hosts_computes_the_same(tmp_path):
    one, two, four = (trained(tmp_path, n, 4 // n) for n in (1, 2, 4))
    assert one[0]["updates"] == 50
    for kept in (two, four):
        many_hosts.assert_same(kept, *one)


@pytest.mark.slow
def test_what_is_shared_stays_the_same_bits_on_every_core_of_every_host(tmp_path):
    first, second = trained(tmp_path, 2, 2, updates=1_000)
    for name in first.keys() - {"seen"}:
        np.testing.assert_array_equal(first[name], second[name])
    assert first["updates"] == 1_000


def test_who_wants_to_end_ends_all_at_the_same_update(tmp_path):
    first, second = trained(tmp_path, 2, 1, ends_after=3)
    assert first["updates"] == second["updates"] < 50


def test_one_that_fails_ends_the_others(tmp_path):
    program = (
        "import os, time; i = int(os.environ['JAX_PROCESS_ID']); print('here', i, flush=True);"
        "time.sleep(0.5 if i else 60); raise SystemExit(7)"
    )
    flags = ["launch", "local", "3", "--", sys.executable, "-c", program]
    done = subprocess.run(
        [sys.executable, "-m", "podracer", *flags],
        capture_output=True,
        text=True,
        timeout=KILL,
        check=False,
    )
    assert done.returncode == 7
    assert sorted(done.stdout.split("\n")[:3]) == [f"[{i}] here {i}" for i in range(3)]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        (
            {"JAX_NUM_PROCESSES": "2"},
            "JAX_COORDINATOR_ADDRESS is None; several processes",
        ),
        (dict(zip(hosts.VARIABLES, ("a:1", "two", "0"))), "JAX_NUM_PROCESSES is 'two'"),
        (dict(zip(hosts.VARIABLES, ("a:1", "²", "0"))), "JAX_NUM_PROCESSES is '²'"),
        (dict(zip(hosts.VARIABLES, ("a:1", "2", "-1"))), "JAX_PROCESS_ID is '-1'"),
        (dict(zip(hosts.VARIABLES, ("a:1", "2", "2"))), "it must be from 0 to 1"),
        (
            dict(zip(hosts.VARIABLES, ("10.0.0.1", "2", "0"))),
            "'10.0.0.1'; it must be host",
        ),
        (dict(zip(hosts.VARIABLES, ("a:99999", "2", "1"))), "a port from 1 to 65535"),
    ],
)
def test_wrong_variables_are_one_line(monkeypatch, values, line):
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=line):
        hosts.initialize()


def test_one_process_needs_nothing(monkeypatch):
    assert not hosts.initialize()
    for name, value in zip(hosts.VARIABLES, ("localhost:1", "1", "0"), strict=True):
        monkeypatch.setenv(name, value)
    assert not hosts.initialize()
    assert hosts.agree(3, False) == (3, False)


@pytest.mark.parametrize(
    ("environment", "found"),
    [
        ({}, None),
        ({"SLURM_NTASKS": "4", "SLURM_STEP_NODELIST": "a,b"}, ()),
        ({"SLURM_NTASKS": "4"}, None),  # a shell, before srun
        ({"SLURM_NTASKS": "1", "SLURM_STEP_NODELIST": "a"}, None),
        ({"OMPI_COMM_WORLD_SIZE": "2", "OMPI_COMM_WORLD_RANK": "0"}, ()),
        ({"TPU_WORKER_HOSTNAMES": "a,b", "TPU_WORKER_ID": "0"}, ()),
        ({"TPU_WORKER_HOSTNAMES": "localhost", "TPU_WORKER_ID": "0"}, None),  # Colab
        ({"PODRACER_HOSTS": "detect"}, ()),
        (
            {
                "PODRACER_HOSTS": "alone",
                "OMPI_COMM_WORLD_SIZE": "2",
                "OMPI_COMM_WORLD_RANK": "0",
            },
            None,
        ),
        (dict(zip(hosts.VARIABLES, ("a:1", "2", "1"))), ("a:1", 2, 1)),
    ],
)
def test_a_cluster_is_detected(monkeypatch, environment, found):
    asked = []
    monkeypatch.setattr(
        hosts.jax.distributed, "initialize", lambda *x, **_: asked.append(x)
    )
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert not hosts.initialize()  # JAX was only asked to
    assert asked == ([] if found is None else [found])


@pytest.mark.parametrize(
    ("address", "bound"),
    [
        ("127.0.0.1:70", "127.0.0.1:70"),
        ("localhost:70", "localhost:70"),
        ("[::1]:70", "[::1]:70"),
        ("10.0.0.1:70", None),
    ],
)
def test_a_coordinator_on_this_machine_listens_to_nobody_else(
    monkeypatch, address, bound
):
    asked = {}

    def initialize(address, count, number, coordinator_bind_address=None):
        asked[address] = coordinator_bind_address

    monkeypatch.setattr(hosts.jax.distributed, "initialize", initialize)
    for name, value in zip(hosts.VARIABLES, (address, "2", "1"), strict=True):
        monkeypatch.setenv(name, value)
    hosts.initialize()
    assert asked == {address: bound}


def say_who_leads():
    jax.config.update("jax_platforms", "none")  # starting any backend is an error
    hosts.initialize()
    leader = hosts.lead(lambda: hosts.this())
    print("host", hosts.this(), "of", hosts.number_of(), "after", leader, flush=True)


@pytest.mark.core
def test_hosts_know_each_other_before_jax_starts(tmp_path):
    """The index, the number and the service of values have private names in JAX."""
    processes = many_hosts.start(tmp_path, say_who_leads, [[], []])
    assert many_hosts.codes(processes) == [0, 0], many_hosts.said(tmp_path, 0)
    for number in range(2):
        said = many_hosts.said(tmp_path, number)
        assert f"host {number} of 2 after 0\n" in said


def say_where_it_listens():
    """The address of the coordinator's socket, as in /proc/net: hexadecimal digits."""
    hosts.initialize()
    port = int(os.environ[hosts.VARIABLES[0]].rpartition(":")[2])
    for name in ("tcp", "tcp6"):
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A" and local.endswith(f":{port:04X}"):  # it listens
                print("bound to", local.partition(":")[0], flush=True)


@pytest.mark.skipif(not Path("/proc/self/net").exists(), reason="/proc is Linux's")
def test_local_processes_meet_on_loopback(tmp_path):
    processes = many_hosts.start(tmp_path, say_where_it_listens, [[], []])
    assert many_hosts.codes(processes) == [0, 0], many_hosts.said(tmp_path, 0)
    said = many_hosts.said(tmp_path, 0)
    addresses = [x for x in said.splitlines() if x.startswith("bound to")]
    assert addresses and all(x.endswith("0100007F") for x in addresses)


def test_an_unknown_wish_is_one_line(monkeypatch):
    monkeypatch.setenv("PODRACER_HOSTS", "no")
    with pytest.raises(UserError, match="is 'no'; it must be detect or alone"):
        hosts.initialize()
