"""What crosses the network, and connections that fail in one line."""

import socket
from concurrent import futures

import grpc
import numpy as np
import pytest

from podracer.errors import UserError
from sebulba import host_environments
from sebulba.host_environments.remote import adapter
from tests.sebulba.host_environments.remote.local import (
    CERTIFICATE,
    FIRST,
    LAST,
    MID,
    Rich,
    client,
    serve,
)


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


def test_continuous_actions_out_of_bounds_arrive_as_they_are(closing):
    served = []
    with serve(lambda seed: served.append(Rich(False)) or served[-1]) as address:
        environment = closing(address)
        environment.step(np.array([[-1.001, 7.0]], np.float32))
        assert served[0].actions == [[np.float32(-1.001), 7.0]]


# one line each


def test_nobody_listens():
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with pytest.raises(UserError, match="nobody listens there; start `sebulba serve`"):
        client(f"grpc://127.0.0.1:{port}", connect_seconds=0.5)


def test_a_name_that_does_not_resolve():
    line = "the name 'nowhere.invalid' does not resolve to an address"
    with pytest.raises(UserError, match=line):
        client("grpc://nowhere.invalid:8611", connect_seconds=0.5)


def test_something_else_listens():
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


def test_servers_of_different_environments():
    with serve() as one, serve(lambda seed: Rich(False)) as other:
        both = f"{one},{other.removeprefix('grpc://')}"
        with pytest.raises(UserError, match="have different environments: action is"):
            client(both, 2)


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("grpc:localhost", "'localhost' is no HOST:PORT; write grpc://HOST:PORT"),
        ("grpc://a:1,b", "'b' is no HOST:PORT"),
        ("grpc://a:0", "'a:0' is no HOST:PORT"),
        ("grpc://a:²", "is no HOST:PORT"),
        ("grpc://a:99999", "the port is 99999; it must be from 1 to 65535"),
    ],
)
def test_addresses(name, line):
    with pytest.raises(UserError, match=line):
        host_environments.default_options(name)


def test_addresses_of_ipv6_get_brackets():
    name = "//::1:8712,[fe80::2]:8713,host:8714"
    addresses = ["[::1]:8712", "[fe80::2]:8713", "host:8714"]
    assert adapter.GRPC.addresses(name) == addresses


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


def test_an_unknown_setting():
    refused = pytest.raises(UserError, match="there is no setting 'level'")
    with serve() as address, refused:
        client(address, settings='{"level": 3}')
