"""The client's connection to a dm_env_rpc server, and the environment at its end."""

import contextlib
import queue
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import dm_env
import grpc
import jax
import numpy as np
from dm_env import specs
from dm_env_rpc.v1 import (
    dm_env_adaptor,
    dm_env_flatten_utils,
    dm_env_rpc_pb2,
    message_utils,
)
from dm_env_rpc.v1.dm_env_rpc_pb2_grpc import EnvironmentStub
from dm_env_rpc.v1.error import DmEnvRpcError

from podracer.errors import UserError
from sebulba.host_environments import checking
from sebulba.host_environments.options import json_object
from sebulba.host_environments.remote import protocol
from sebulba.host_environments.remote.client_options import Options
from sebulba.host_environments.spaces import as_float32

LOST = (
    grpc.RpcError,
    StopIteration,
)  # the server is gone; its environment did not fail
UNREACHED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
FINAL = (  # answers that do not change with time
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)


LONGEST_LINE = 300  # characters of a server's message
STATES = (  # of an environment after a step
    dm_env_rpc_pb2.RUNNING,
    dm_env_rpc_pb2.TERMINATED,
    dm_env_rpc_pb2.INTERRUPTED,
)


class Server(NamedTuple):
    """The address of a server, and what a client needs to connect."""

    address: str  # grpc://host:port
    credentials: grpc.ChannelCredentials | None
    options: Options

    @property
    def target(self) -> str:
        return self.address.partition("//")[2]

    def connect(self, seconds: float) -> "Connection":
        """A connection; reaching the server may take so many seconds."""
        limit = int(1_000 * seconds)
        options = [
            *protocol.channel_options(self.options.message_megabytes),
            *((f"grpc.{x}_reconnect_backoff_ms", limit) for x in ("min", "initial")),
        ]
        if self.credentials is None:
            return Connection(grpc.insecure_channel(self.target, options))
        return Connection(grpc.secure_channel(self.target, self.credentials, options))

    def join(self, connection: "Connection") -> "Environment":
        """An environment on this server.

        Raises one of LOST, where waiting may help, or UserError.
        """
        settings = json_object("settings", self.options.settings)
        try:
            with _answers_of(self.address):
                joined, _ = dm_env_adaptor.create_and_join_world(
                    connection, settings, {}
                )
                return Environment(joined, self.address, self.options.check_bounds)
        except grpc.RpcError as error:
            if error.code() in FINAL:
                raise UserError(self.explain(error, known=False)) from error
            raise

    def explain(self, error: Exception, known: bool) -> str:
        """Why there is no environment, in one line; `known` servers have given us one."""
        if isinstance(error, StopIteration):
            why = "it closed the connection"
        elif error.code() == grpc.StatusCode.UNIMPLEMENTED:
            why = f"{_one_line(error.details())}; does it speak dm_env_rpc, version 1?"
        elif error.code() not in UNREACHED:
            why = _one_line(error.details())
        else:
            why = self._unreached(known)
        return f"{self.address}: {why}"

    def _unreached(self, known: bool) -> str:
        host, _, port = self.target.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), 5.0).close()
        except (socket.gaierror, UnicodeError):
            return f"the name {host!r} does not resolve to an address"
        except OSError:
            return "nobody listens there; start `sebulba serve` first"
        if known:
            return (
                "it served this run, but does not answer any more; is its process stopped,"
                " or its machine overloaded? (--env.reconnect-seconds is the time limit)"
            )
        return (
            "somebody listens there, but is no environment server that we understand:"
            " is the port right, and TLS (grpcs://, its certificate) or none (grpc://)?"
        )


@contextlib.contextmanager
def _answers_of(address: str) -> Iterator[None]:
    """Raises what a server answers wrongly, or refuses, as one line with its address.

    RuntimeError where its environment failed, with the server's traceback in a note.
    """
    try:
        yield
    except (UserError, *LOST):
        raise
    except DmEnvRpcError as error:
        line = f"{address}: {_one_line(error.message)}"
        if not error.message.startswith("Traceback"):
            raise UserError(line) from error
        failed = RuntimeError(line)
        failed.add_note(f"{address} raised:\n{error.message}")
        raise failed from None
    except Exception as error:  # of dm_env_rpc, or NumPy
        raise UserError(
            f"{address}: its answer is not one of dm_env_rpc, version 1: "
            f"{_one_line(f'{type(error).__name__}: {error}')}"
        ) from error


def _one_line(text: str | None) -> str:
    """The last line of a text, as of a traceback, or its beginning where it is long."""
    lines = [line.strip() for line in (text or "").splitlines() if line.strip()]
    line = lines[-1] if lines else "an error without a message"
    return line if len(line) <= LONGEST_LINE else f"{line[:LONGEST_LINE]}..."


def credentials(options: Options, tls: bool) -> grpc.ChannelCredentials | None:
    """The client's side of TLS; None without. Raises UserError."""
    if tls:
        key, certificate, authority = protocol.read_tls(options)
        return grpc.ssl_channel_credentials(authority, key, certificate)
    files = (options.tls_authority, options.tls_key, options.tls_certificate)
    if any(files):
        raise UserError("--env.tls-* are for TLS: write grpcs:// instead of grpc://")
    return None


class Connection:
    """A stream of requests and responses, with the interface of dm_env_rpc's own.

    dm_env_rpc's leaves a waiting thread behind for each connection that was lost.
    """

    def __init__(self, channel: grpc.Channel):
        self._channel = channel
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        self._responses = EnvironmentStub(channel).Process(
            iter(self._requests.get, None), metadata=[protocol.VERSION]
        )

    def send(self, request: Any) -> Any:
        """The response. Raises one of LOST, DmEnvRpcError, or UserError."""
        packed, field = message_utils.pack_environment_request(request)
        self._requests.put(packed)
        try:
            response = next(self._responses)
        except grpc.RpcError as error:
            if protocol.TOO_LARGE not in (error.details() or ""):
                raise
            raise UserError(
                f"{error.details()} bytes: raise --env.message-megabytes, and "
                "--message-megabytes of `sebulba serve`"
            ) from error
        answer = message_utils.unpack_environment_response(response, field)
        if field == "step" and answer.state not in STATES:
            raise ValueError(f"a step's state is {answer.state}; it must be 1, 2 or 3")
        return answer

    def close(self) -> None:
        """Closes the stream, also while a thread waits for a response."""
        self._requests.put(None)
        self._channel.close()


class Environment:
    """One environment on a server; its timesteps are arrays without a batch axis."""

    def __init__(self, joined: dm_env.Environment, address: str, check_bounds: bool):
        self._joined, self._address = joined, address
        actions = dm_env_flatten_utils.flatten_dict(
            joined.action_spec(), protocol.SEPARATOR
        )
        if len(actions) != 1:
            raise UserError(
                f"{address} takes {len(actions)} actions at once "
                f"({', '.join(sorted(actions))}); only environments with one are supported"
            )
        [(self._name, spec)] = actions.items()
        if not joined.observation_spec():
            raise UserError(f"{address} declares no observations; correct the server")
        self._dtype = spec.dtype
        self.action_spec = _action_spec(spec, address)
        self.observation_spec = jax.tree.map(
            lambda spec: _plain(spec, address),
            protocol.unflatten(joined.observation_spec()),
        )
        declared = checking.of_spec(self.observation_spec)
        self._check = checking.checker(address, declared, bounds=check_bounds)
        self._check_action = checking.action_checker(address, self.action_spec)

    def step(self, action: np.ndarray | None) -> dm_env.TimeStep:
        """The next timestep; `action` may be None where an episode begins."""
        actions = {}
        if action is not None:
            self._check_action(action)
            actions = dm_env_flatten_utils.unflatten_dict(
                {self._name: np.asarray(action, self._dtype)}, protocol.SEPARATOR
            )
        with _answers_of(self._address):
            after = self._joined.step(actions)
        first = after.first()
        observation = protocol.unflatten(after.observation)
        reward = 0.0 if first else after.reward
        self._check(observation, reward)
        return dm_env.TimeStep(
            np.asarray(after.step_type, np.int32),
            np.asarray(reward, np.float32),
            np.asarray(1.0 if first else after.discount, np.float32),
            as_float32(jax.tree.map(np.asarray, observation)),
        )

    def difference(self, other: "Environment") -> str | None:
        """The first spec in which the other environment differs; None if none does."""
        ours, theirs = (
            {protocol.ACTION: x.action_spec} | protocol.flatten(x.observation_spec)
            for x in (self, other)
        )
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                return f"{name} is {ours.get(name)} and {theirs.get(name)}"
        return None


def _plain(spec: specs.Array, address: str) -> specs.Array:
    """Without its name, and in single precision. Raises UserError."""
    if np.dtype(spec.dtype).kind not in checking.KINDS or 0 in spec.shape:
        raise UserError(
            f"{address} has observations {checking.shown(spec)}; supported are numbers and "
            "booleans, with one element at least"
        )
    dtype = np.float32 if spec.dtype == np.float64 else spec.dtype
    return spec.replace(name=None, dtype=dtype)


def _action_spec(spec: specs.Array, address: str) -> specs.Array:
    """The spec that agents get. Raises UserError for actions that are not supported."""
    kind = np.dtype(spec.dtype).kind
    bounded = isinstance(spec, specs.BoundedArray)
    if bounded and kind in "iu" and not spec.minimum.any():
        return spec.replace(name=None, dtype=np.int32)
    if bounded and kind == "f":
        return _plain(spec, address)
    raise UserError(
        f"{address} takes actions {spec}; only integers from 0 and bounded continuous ones "
        "are supported"
    )
