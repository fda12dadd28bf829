"""The server: seeds, TLS, limits, and what it refuses."""

import contextlib
import socket
import time
from pathlib import Path
from types import SimpleNamespace

import grpc
import numpy as np
import pytest
from dm_env import specs
from dm_env_rpc.v1 import dm_env_rpc_pb2, dm_env_rpc_pb2_grpc

from podracer.errors import UserError
from sebulba.command import serving as command
from sebulba.host_environments.remote import protocol, serving
from tests.environments import HostCounter
from tests.sebulba.host_environments.remote.local import (
    CERTIFICATE,
    KEY,
    MID,
    client,
    serve,
    start_server,
)


def test_seeds_count_over_all_clients(closing):
    seeds = []
    with serve(lambda seed: seeds.append(seed) or HostCounter(1), seed=7) as address:
        closing(address, 2)
        closing(address)
    assert sorted(seeds) == [7, 8, 9]


def has_ipv6():
    try:
        with socket.create_server(("::1", 0), family=socket.AF_INET6):
            return True
    except OSError:
        return False


@pytest.mark.skipif(not has_ipv6(), reason="this machine has no IPv6")
@pytest.mark.parametrize("host", ["::1", "[::1]"])
def test_ipv6_with_brackets_and_without(closing, host):
    with serve(host=host) as address:
        assert address.startswith("grpc://[::1]:")
        port = address.rpartition(":")[2]
        environment = closing(f"grpc://{host}:{port}")
        assert environment.step(np.zeros(1, int)).step_type == MID


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


def test_another_version(monkeypatch):
    old = (protocol.VERSION[0], "0.0.1")
    monkeypatch.setattr(protocol, "VERSION", old)
    monkeypatch.setattr(serving, "protocol", SimpleNamespace(**vars(protocol)))
    monkeypatch.setattr(serving.protocol, "VERSION", (old[0], "0.0.2"))
    with (
        serve() as address,
        pytest.raises(UserError, match="the server has podracer 0.0.2, the client 0"),
    ):
        client(address)


def test_too_many_environments():
    full = pytest.raises(UserError, match="raise its --environments")
    with serve(environments=1) as address, full:
        client(address, 2, connect_seconds=0.5)


def test_a_port_in_use():
    with serve() as address, pytest.raises(UserError, match="is the port in use"):
        port = int(address.rpartition(":")[2])
        with serving.serving(HostCounter, serving.Config(port=port)):
            pass


def test_a_missing_key_file(tmp_path):
    missing = tmp_path / "key.pem"
    with (
        pytest.raises(UserError, match="No such file or directory; it should be a PEM"),
        serve(tls_certificate=missing, tls_key=missing),
    ):
        pass
    with pytest.raises(UserError, match="belong together"):
        serving.Config(tls_key=KEY)


@pytest.mark.parametrize(
    ("files", "line"),
    [
        (
            {"tls_certificate": KEY},
            f"tls_certificate is {KEY}, a file without a CERTIF",
        ),
        (
            {"tls_key": CERTIFICATE},
            f"tls_key is {CERTIFICATE}, a file without a PRIVATE",
        ),
        (
            {"tls_authority": KEY},
            f"tls_authority is {KEY}, a file without a CERTIFICATE",
        ),
    ],
)
def test_a_file_without_a_certificate_is_named(files, line):
    """Also by a client, which would say that nobody listens there."""
    files = {"tls_certificate": CERTIFICATE, "tls_key": KEY} | files
    with pytest.raises(UserError, match=line), serve(**files):
        pass
    with pytest.raises(UserError, match=line):
        client("grpcs://127.0.0.1:9", **files)


def test_the_environments_of_a_lost_client_are_closed():
    made = []
    with serve(lambda seed: made.append(HostCounter(1)) or made[-1]) as address:
        client(address, 3).close()
        deadline = time.monotonic() + 120
        while not all(environment.closed for environment in made):
            assert time.monotonic() < deadline
            time.sleep(0.05)
    assert len(made) == 3


class Wide(HostCounter):
    """Observations of 1 MiB and a little more."""

    def _timestep(self, step_type):
        return super()._timestep(step_type)._replace(observation=WIDE)

    def observation_spec(self):
        return specs.Array(WIDE.shape[1:], WIDE.dtype)


WIDE = np.ones((1, 2**20 + 100), np.uint8)


@pytest.mark.parametrize(
    ("ours", "theirs", "line"),
    [
        (1, 16, "Received message larger than max"),  # the client's limit
        (16, 1, "Sent message larger than max"),  # the server's
    ],
)
def test_a_message_over_the_limit_is_one_line(ours, theirs, line):
    both = "raise --env.message-megabytes, and --message-megabytes of `sebulba serve`"
    refused = pytest.raises(UserError, match=f"{line}.*{both}")
    with serve(lambda seed: Wide(1), message_megabytes=theirs) as address, refused:
        client(address, message_megabytes=ours)


def test_a_message_under_the_limit_passes(closing):
    with serve(lambda seed: Wide(1), message_megabytes=2) as address:
        environment = closing(address, message_megabytes=2)
        assert environment.step(np.zeros(1, int)).observation.shape == WIDE.shape


@pytest.mark.skipif(not Path("/proc").exists(), reason="memory is read from /proc")
@pytest.mark.parametrize("compression", [None, grpc.Compression.Gzip])
def test_a_request_over_the_limit_costs_no_memory(compression):
    """It is refused at its header: a message of 192 MiB would take that and more."""
    tensor = dm_env_rpc_pb2.Tensor(shape=[-1])
    tensor.uint8s.array = bytes(192 * 2**20)
    request = dm_env_rpc_pb2.EnvironmentRequest(
        create_world=dm_env_rpc_pb2.CreateWorldRequest(settings={"big": tensor})
    )
    process, address = start_server("--env", "jax:catch", "--port", "0")
    free = [("grpc.max_send_message_length", -1)]
    try:
        with grpc.insecure_channel(
            address.partition("//")[2], free, compression
        ) as channel:
            stub = dm_env_rpc_pb2_grpc.EnvironmentStub(channel)
            before = memory(process.pid)
            with pytest.raises(grpc.RpcError) as error:
                next(stub.Process(iter([request]), timeout=120.0))
            after = memory(process.pid)
    finally:
        process.kill()
        process.communicate()
    refusals = (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.UNIMPLEMENTED)
    assert error.value.code() in refusals
    assert after - before < 60 * 2**20


def memory(pid: int) -> int:
    """The most that a process has had in memory, in bytes."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    [line] = [x for x in lines if x.startswith("VmHWM")]
    return 1024 * int(line.split()[1])


def test_a_host_that_is_not_this_machines():
    unresolved = pytest.raises(UserError, match="which does not resolve to an address")
    with unresolved, serve(host="nowhere.invalid"):
        pass
    with pytest.raises(UserError, match="port is 99999; it must be from 0 to 65535"):
        serving.Config(port=99999)


class Named(HostCounter):
    """Its observation has one member, of this name."""

    def __init__(self, name):
        self._name = name
        super().__init__(1)

    def observation_spec(self):
        return {"inner": {self._name: super().observation_spec()}}


@pytest.mark.parametrize("name", ["a.b", 1])
def test_a_name_that_the_protocol_cannot_carry_is_one_line(monkeypatch, name):
    line = f"an observation has the member {name!r}; to be served, its name must be a"
    to_client = pytest.raises(UserError, match=f"^grpc://.*: {line}")
    with serve(lambda seed: Named(name)) as address, to_client as error:
        client(address)
    assert "\n" not in str(error.value)
    example = Named(name)
    at_once = contextlib.nullcontext(lambda: True)  # else it would serve
    monkeypatch.setattr(command.command, "stopping", lambda: at_once)
    monkeypatch.setattr(command.environments, "example", lambda make, env: example)
    with pytest.raises(UserError, match=f"^{line}"):  # where the server starts
        command.serve(["--env", "jax:catch", "--port", "0"])
    assert example.closed


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
def test_an_environment_cannot_end_the_run_as_the_user_does(closing, kind):
    class Leaving(HostCounter):
        def step(self, action):
            raise kind("by a wall")

    with serve(lambda seed: Leaving(1)) as address:
        environment = closing(address)
        with pytest.raises(Exception, match=f"{kind.__name__}: by a wall") as error:
            environment.step(np.zeros(1, int))
        assert isinstance(error.value, RuntimeError)
        (note,) = error.value.__notes__  # to be read: its lines are lines
        assert note.startswith(
            f"{address} raised:\nTraceback (most recent call last):\n"
        )
        assert note.rstrip().endswith(f"\n{kind.__name__}: by a wall")


def test_a_lie_ends_the_run_in_one_line(closing):
    class Liar(HostCounter):
        """The count goes beyond the bounds that it declares."""

        def observation_spec(self):
            return specs.BoundedArray((1,), np.float32, 0, 1)

    with serve(lambda seed: Liar(1)) as address:
        environment = closing(address, check_bounds=False)
        assert environment.step(np.zeros(1, int)).observation == 1
        assert environment.step(np.zeros(1, int)).observation == 2
        environment = closing(address)
        environment.step(np.zeros(1, int))
        with pytest.raises(
            UserError, match=r"^grpc://.*observation\[0\] is 2, outside"
        ):
            environment.step(np.zeros(1, int))


@pytest.mark.parametrize("seed", [-1, 2**31])
def test_a_seed_that_environments_cannot_take(seed):
    with pytest.raises(UserError, match=f"seed is {seed}; it must be from 0"):
        serving.Config(seed=seed)
