"""Environments on other machines: the protocol, and every way to lose a server."""

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent import futures
from pathlib import Path
from types import MappingProxyType, SimpleNamespace

import dm_env
import grpc
import jax
import numpy as np
import pytest
from dm_env import specs
from dm_env_rpc.v1 import connection, dm_env_rpc_pb2
from dm_env_rpc.v1.compliance import (
    create_destroy_world,
    join_leave_world,
    reset,
    reset_world,
    step,
)

from podracer.errors import UserError
from sebulba import cores, host_environments, serving, training
from sebulba.host_environments import servers, wire
from sebulba.host_environments.players import Player
from tests.environments import HostCounter
from tests.sebulba.test_training import last, watcher

FIRST, MID, LAST = map(int, dm_env.StepType)
CERTIFICATE = Path(__file__).parent / "certificate" / "localhost.pem"
KEY = CERTIFICATE.with_name("localhost-key.pem")
KILL = 60  # seconds that a process of ours may live


def serve(make=lambda seed: HostCounter(1), **config):
    return serving.serving(make, serving.Config(port=0, **config))


def client(address, batch_size=1, **options):
    options = {"connect_seconds": 2.0, "reconnect_seconds": 30.0} | options
    kind = type(host_environments.default_options(address))
    return host_environments.make(address, batch_size, 0, 1, kind(**options))


@pytest.fixture
def closing():
    """Closes clients at the end of the test, and sees their threads end."""
    made = []
    yield lambda *args, **options: made.append(client(*args, **options)) or made[-1]
    for environment in made:
        environment.close()
    deadline = time.monotonic() + 10
    while any(isinstance(t, Player) for t in threading.enumerate()):
        assert time.monotonic() < deadline
        time.sleep(0.05)


# dm_env_rpc's own tests of servers


@pytest.fixture
def connected(request):
    with serve() as address, grpc.insecure_channel(address.partition("//")[2]) as way:
        request.cls.connection = connection.Connection(way)
        answer = request.cls.connection.send(dm_env_rpc_pb2.CreateWorldRequest())
        request.cls.world_name = answer.world_name
        yield


@pytest.fixture
def joined(connected, request):
    join = dm_env_rpc_pb2.JoinWorldRequest(world_name=request.cls.world_name)
    request.cls.specs = request.cls.connection.send(join).specs


@pytest.mark.usefixtures("connected")
class TestCreateDestroyWorld(create_destroy_world.CreateDestroyWorld):
    connection = None
    required_world_settings = MappingProxyType({})
    invalid_world_settings = MappingProxyType({"level": dm_env_rpc_pb2.Tensor()})
    has_multiple_world_support = True


@pytest.mark.usefixtures("connected")
class TestJoinLeaveWorld(join_leave_world.JoinLeaveWorld):
    connection = world_name = None
    invalid_join_settings = MappingProxyType({"level": dm_env_rpc_pb2.Tensor()})


@pytest.mark.usefixtures("connected")
class TestReset(reset.Reset):
    connection = None

    def join_world(self):
        join = dm_env_rpc_pb2.JoinWorldRequest(world_name=self.world_name)
        return self.connection.send(join).specs


@pytest.mark.usefixtures("connected")
class TestResetWorld(reset_world.ResetWorld):
    connection = world_name = None
    invalid_world_name = "nowhere"


@pytest.mark.usefixtures("joined")
class TestStep(step.Step):
    connection = specs = None


del create_destroy_world, join_leave_world, reset, reset_world, step  # only their heirs


# what arrives is what was sent


class Rich(HostCounter):
    """Observations in a tree, continuous actions, and a discount that tells truncation."""

    def __init__(self, truncates):
        super().__init__(1, length=3)
        self._truncates = truncates

    def step(self, action):
        self.actions = [*getattr(self, "actions", []), action[0].tolist()]
        timestep = super().step(action[:, 0])
        over = timestep.step_type == LAST
        return timestep._replace(
            discount=np.where(over & (not self._truncates), 0, 1).astype(np.float32)
        )

    def _timestep(self, step_type):
        plain = super()._timestep(step_type)
        image = np.full((1, 4, 4), self._count[0], np.uint8)
        seen = {"flags": np.array([[True, False]]), "parts": (plain.observation, image)}
        return plain._replace(observation=seen)

    def observation_spec(self):
        image = specs.BoundedArray((4, 4), np.uint8, 0, 255)
        flags = specs.BoundedArray((2,), bool, False, True)
        return {"flags": flags, "parts": (super().observation_spec(), image)}

    def action_spec(self):
        return specs.BoundedArray((2,), np.float32, -1.0, [1.0, 2.0])


@pytest.mark.parametrize("truncates", [False, True])
def test_episodes_cross_the_network_as_they_are(closing, truncates):
    served = []
    with serve(lambda seed: served.append(Rich(truncates)) or served[-1]) as address:
        environment = closing(address)
        rows = [environment.reset()]
        for _ in range(8):
            rows.append(environment.step(np.array([[0.5, 2.0]], np.float32)))
        assert [int(row.step_type[0]) for row in rows] == [
            *[FIRST, MID, MID, LAST] * 2,
            FIRST,
        ]
        assert [float(row.reward[0]) for row in rows] == [0, 1, 2, 3, 0, 1, 2, 3, 0]
        assert {float(row.discount[0]) for row in rows[3::4]} == {float(truncates)}
        assert rows[2].observation["parts"]["1"][0].tolist() == [[2] * 4] * 4
        assert rows[2].observation["flags"].tolist() == [[True, False]]
        assert rows[2].observation["parts"]["0"].dtype == np.float32
        assert served[0].actions[:3] == [[0.5, 2.0]] * 3
        spec = environment.observation_spec()["parts"]["1"]
        assert (spec.shape, spec.dtype, spec.maximum) == ((4, 4), np.uint8, 255)
        assert environment.action_spec().maximum.tolist() == [1.0, 2.0]
    assert environment.lost_episodes() == 0


def test_seeds_count_over_all_clients(closing):
    seeds = []
    with serve(lambda seed: seeds.append(seed) or HostCounter(1), seed=7) as address:
        closing(address, 2)
        closing(address)
    assert sorted(seeds) == [7, 8, 9]


def test_tls_both_ways(closing):
    identity = {"tls_certificate": CERTIFICATE, "tls_key": KEY}
    with serve(**identity, tls_authority=CERTIFICATE) as address:
        assert address.startswith("grpcs://")
        known = closing(address, **identity, tls_authority=CERTIFICATE)
        assert known.step(np.zeros(1, int)).step_type == MID
        for wrong, flags in (
            (address, {"tls_authority": CERTIFICATE}),  # we have no certificate
            (address, identity),  # and do not trust theirs
            (address.replace("grpcs", "grpc"), {}),
        ):
            with pytest.raises(UserError, match=r"and TLS \(grpcs://, its certificate"):
                client(wrong, connect_seconds=1.0, **flags)


# dynamic batching


class Slow(HostCounter):
    """One environment that takes its time."""

    def __init__(self, seconds):
        super().__init__(1)
        self._seconds = seconds

    def step(self, action):
        time.sleep(self._seconds)
        return super().step(action)


@pytest.fixture
def pace(closing):
    """Makes a client of environments that take so many seconds a step, asked for all."""

    def make(*seconds, **options):
        with_seed = serve(lambda seed: Slow(seconds[seed]))
        environment = closing(stack.enter_context(with_seed), len(seconds), **options)
        environment.send(np.zeros(len(seconds), int), np.arange(len(seconds)))
        began = time.monotonic()
        arrived = environment.receive()
        seconds = time.monotonic() - began
        environment.close()  # before its server
        return len(arrived), seconds

    with contextlib.ExitStack() as stack:
        yield make


def test_the_minimum_is_waited_for(pace):
    count, seconds = pace(0.0, 0.3, 1.5, batch_minimum=2, batch_seconds=60.0)
    assert count == 2 and 0.25 < seconds < 1.4


def test_no_longer_than_its_time(pace):
    count, seconds = pace(0.0, 1.5, batch_minimum=2, batch_seconds=0.5)
    assert count == 1 and 0.45 < seconds < 1.4


def test_but_for_one_at_least(pace):
    count, seconds = pace(0.5, 1.5, batch_minimum=2, batch_seconds=0.1)
    assert count == 1 and 0.45 < seconds < 1.4


def test_no_more_than_the_maximum(pace):
    count, _ = pace(0.0, 0.0, 0.0, batch_minimum=2, batch_maximum=2, batch_seconds=9.0)
    assert count == 2


class Straggling(HostCounter):
    """Counters that answer one, two or three at a time, in any order."""

    def __init__(self, batch_size=4):
        super().__init__(batch_size)
        self._alone = [HostCounter(1) for _ in range(batch_size)]
        self._random, self._sent = np.random.default_rng(0), {}

    def reset(self):
        for environment in self._alone:
            environment.reset()
        return super().reset()._replace(observation=np.zeros((4, 1), np.float32))

    def send(self, action, which):
        assert action.shape == which.shape and not self._sent.keys() & set(which)
        self._sent |= dict(zip(which.tolist(), action, strict=True))

    def receive(self):
        count = min(len(self._sent), self._random.integers(1, 4))
        which = self._random.permutation([*self._sent])[:count].tolist()
        return [
            (
                i,
                jax.tree.map(
                    lambda x: x[0], self._alone[i].step(self._sent.pop(i)[None])
                ),
            )
            for i in which
        ]


def test_rows_follow_each_other_whoever_comes_first():
    rows = training.train(
        watcher(),
        lambda number: Straggling(),
        unroll_length=3,
        total_steps=240,
        cores=cores.split(jax.devices()[:2]),
        threads_per_core=1,
        max_lag=0,
        trajectories_per_report=1,
    )
    episodes = 0
    for number, (_, metrics) in enumerate(rows):
        assert metrics["wrong_rows"] == metrics["broken"] == 0
        assert metrics["memory"] == 3 * number  # the actor's state before row 0
        assert metrics["episode_length"] in (5.0,) or metrics["episodes"] == 0
        episodes += metrics["episodes"]
    assert episodes == 4 * 10  # the ends at steps 5, 11, ..., 59


# who is lost


def start_server(*flags):
    """A server in a process of its own, and its address."""
    process = subprocess.Popen(
        [sys.executable, "-m", "sebulba", "serve", *flags],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    threading.Timer(KILL, process.kill).start()
    line = process.stdout.readline()
    assert " is at grpc://127.0.0.1:" in line, line
    return process, line.split()[-1]


def test_a_run_outlives_its_server():
    flags = "--env", "jax:catch", "--port"
    process, address = start_server(*flags, "0")
    rows = training.train(
        watcher_of_anything(),
        lambda number: client(address, 4),
        unroll_length=4,
        total_steps=16 * 60,
        cores=cores.split(jax.devices()[:1]),
        threads_per_core=1,
        trajectories_per_report=20,
    )
    _, before = next(rows)
    process.kill()
    process.communicate()
    again, _ = start_server(*flags, address.rpartition(":")[2])
    _, after = last(rows)
    again.send_signal(signal.SIGTERM)
    again.communicate(timeout=30)
    assert again.returncode == 0
    assert before["lost_episodes"] == 0 and 1 <= after["lost_episodes"] <= 4
    assert after["steps"] == 16 * 60


def watcher_of_anything():
    """`watcher`, for observations of any shape."""
    agent = watcher()
    return agent._replace(
        actor_step=lambda keys, params, state, timestep: agent.actor_step(
            keys, params, state, timestep._replace(observation=timestep.reward[:, None])
        ),
        learner_step=lambda key, state, trajectory: (state, {"nothing": 0.0}),
    )


def test_the_other_server_takes_over(closing):
    with serve() as stays:
        with serve() as goes:
            environment = closing(f"{stays},{goes.removeprefix('grpc://')}", 2)
            assert environment.step(np.zeros(2, int)).step_type.tolist() == [MID, MID]
        after = environment.step(np.zeros(2, int))
        assert sorted(after.step_type.tolist()) == [FIRST, MID]
        assert environment.lost_episodes() == 1 and environment.lost_episodes() == 0


def test_who_hangs_is_left(closing):
    first = iter([2.0])
    with serve(lambda seed: Slow(next(first, 0.0))) as address:
        environment = closing(address, step_seconds=0.5)
        assert environment.step(np.zeros(1, int)).step_type == FIRST
        assert environment.lost_episodes() == 1
        assert environment.step(np.zeros(1, int)).step_type == MID


def test_who_is_always_lost_ends_the_run(closing):
    with serve(lambda seed: Slow(0.2)) as address:
        environment = closing(address, step_seconds=0.01)
        with pytest.raises(UserError, match="environment 0 was lost 6 times in a row"):
            for _ in range(20):
                environment.step(np.zeros(1, int))


def test_what_an_environment_raises_ends_the_run(closing):
    with serve(lambda seed: HostCounter(1, fail_at=2)) as address:
        environment = closing(address)
        environment.step(np.zeros(1, int))
        with pytest.raises(Exception, match="the simulator broke"):
            environment.step(np.zeros(1, int))


# one line each


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UserError, match="nobody listens there; start `sebulba serve`"):
        client(f"grpc://127.0.0.1:{port}", connect_seconds=0.5)


def test_who_listens_is_no_environment_server():
    wrong = "is no environment server that we understand"
    with socket.create_server(("", 0)) as deaf, pytest.raises(UserError, match=wrong):
        client(f"grpc://127.0.0.1:{deaf.getsockname()[1]}", connect_seconds=0.5)
    server = grpc.server(futures.ThreadPoolExecutor(1))
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with pytest.raises(UserError, match="does it speak dm_env_rpc, version 1"):
            client(f"grpc://127.0.0.1:{port}")
    finally:
        server.stop(None).wait(5)


def test_another_version(monkeypatch):
    old = (wire.VERSION[0], "0.0.1")
    monkeypatch.setattr(servers.wire, "VERSION", old)
    monkeypatch.setattr(serving, "wire", SimpleNamespace(**vars(wire)))
    monkeypatch.setattr(serving.wire, "VERSION", (old[0], "0.0.2"))
    with (
        serve() as address,
        pytest.raises(UserError, match="the server has podracer 0.0.2, the client 0"),
    ):
        client(address)


def test_servers_of_different_environments():
    with serve() as one, serve(lambda seed: Rich(False)) as other:
        both = f"{one},{other.removeprefix('grpc://')}"
        with pytest.raises(UserError, match="have different environments: action is"):
            client(both, 2)


def test_too_many_environments():
    full = pytest.raises(UserError, match="raise its --environments")
    with serve(environments=1) as address, full:
        client(address, 2, connect_seconds=0.5)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("grpc:localhost", "'localhost' is no HOST:PORT; write grpc://HOST:PORT"),
        ("grpc://a:1,b", "'b' is no HOST:PORT"),
    ],
)
def test_addresses(name, line):
    with pytest.raises(UserError, match=line):
        host_environments.default_options(name)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ({"settings": "[1]"}, "settings is .*; it takes a JSON object"),
        ({"tls_authority": CERTIFICATE}, "are for TLS: write grpcs://"),
        ({"batch_minimum": 3, "batch_maximum": 2}, "batch_maximum is 2; it must be at"),
    ],
)
def test_flags(flags, line):
    with pytest.raises(UserError, match=line):
        client("grpc://localhost:1", **flags)


def test_a_setting_that_the_server_has_not():
    refused = pytest.raises(UserError, match="there is no setting 'level'")
    with serve() as address, refused:
        client(address, settings='{"level": 3}')


def test_a_port_in_use():
    with serve() as address, pytest.raises(UserError, match="is the port in use"):
        port = int(address.rpartition(":")[2])
        with serving.serving(HostCounter, serving.Config(port=port)):
            pass


def test_a_key_that_is_not_there(tmp_path):
    missing = tmp_path / "key.pem"
    with (
        pytest.raises(UserError, match="No such file or directory; it should be a PEM"),
        serve(tls_certificate=missing, tls_key=missing),
    ):
        pass
    with pytest.raises(UserError, match="belong together"):
        serving.Config(tls_key=KEY)


def test_nothing_is_left_of_a_client_that_is_gone():
    made = []
    with serve(lambda seed: made.append(HostCounter(1)) or made[-1]) as address:
        client(address, 3).close()
        deadline = time.monotonic() + 10
        while not all(environment.closed for environment in made):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert len(made) == 3
