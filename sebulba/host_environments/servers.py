"""One environment of a dm_env_rpc server, and what can be wrong with that."""

import queue
import socket
from typing import Any, NamedTuple

import dm_env
import grpc
import jax
import numpy as np
from dm_env import specs
from dm_env_rpc.v1 import dm_env_adaptor, dm_env_flatten_utils, message_utils
from dm_env_rpc.v1.dm_env_rpc_pb2_grpc import EnvironmentStub
from dm_env_rpc.v1.error import DmEnvRpcError

from podracer.errors import UserError
from sebulba.host_environments import wire
from sebulba.host_environments.remote import Options
from sebulba.host_environments.spaces import as_float32

GONE = (grpc.RpcError, StopIteration)  # the server, not a game
UNREACHED = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
HOPELESS = (  # answers that waiting does not change
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.UNIMPLEMENTED,
)


class Server(NamedTuple):
    """Where environments are, and how to ask for one."""

    address: str  # grpc://host:port
    credentials: grpc.ChannelCredentials | None
    settings: dict[str, Any]

    @property
    def target(self) -> str:
        return self.address.partition("//")[2]

    def connect(self, seconds: float) -> "Connection":
        """A way there; reaching it may take so long."""
        limit = int(1_000 * seconds)
        options = [
            *wire.OPTIONS,
            *((f"grpc.{x}_reconnect_backoff_ms", limit) for x in ("min", "initial")),
        ]
        if self.credentials is None:
            return Connection(grpc.insecure_channel(self.target, options))
        return Connection(grpc.secure_channel(self.target, self.credentials, options))

    def join(self, way: "Connection") -> "Environment":
        """An environment of this server's.

        Raises one of GONE, where waiting may help, or UserError.
        """
        try:
            environment, _ = dm_env_adaptor.create_and_join_world(
                way, self.settings, {}
            )
        except DmEnvRpcError as error:
            raise UserError(f"{self.address}: {error.message}") from error
        except grpc.RpcError as error:
            if error.code() in HOPELESS:
                raise UserError(self.complaint(error)) from error
            raise
        return Environment(environment, self.address)

    def complaint(self, error: Exception) -> str:
        """One line on why there is no environment."""
        if isinstance(error, StopIteration):
            why = "it closed the connection"
        elif error.code() == grpc.StatusCode.UNIMPLEMENTED:
            why = f"{error.details()}; does it speak dm_env_rpc, version 1?"
        elif error.code() not in UNREACHED:
            why = error.details()
        elif self._listens():
            why = (
                "somebody listens there, but is no environment server that we understand:"
                " is the port right, and TLS (grpcs://, its certificate) or none (grpc://)?"
            )
        else:
            why = "nobody listens there; start `sebulba serve` first"
        return f"{self.address}: {why}"

    def _listens(self) -> bool:
        host, _, port = self.target.rpartition(":")
        try:
            socket.create_connection((host.strip("[]"), int(port)), 5.0).close()
        except OSError:
            return False
        return True


def credentials(options: Options, tls: bool) -> grpc.ChannelCredentials | None:
    """What our side of TLS needs; None without. Raises UserError."""
    files = (options.tls_authority, options.tls_key, options.tls_certificate)
    if tls:
        return grpc.ssl_channel_credentials(*map(wire.read, files))
    if any(files):
        raise UserError("--env.tls-* are for TLS: write grpcs:// instead of grpc://")
    return None


class Connection:
    """A stream of requests and responses, as dm_env_rpc's adaptor wants one.

    Its own leaves a waiting thread behind for each connection that was lost.
    """

    def __init__(self, channel: grpc.Channel):
        self._channel = channel
        self._requests: queue.SimpleQueue = queue.SimpleQueue()
        self._responses = EnvironmentStub(channel).Process(
            iter(self._requests.get, None), metadata=[wire.VERSION]
        )

    def send(self, request: Any) -> Any:
        """The response. Raises one of GONE, or DmEnvRpcError."""
        packed, field = message_utils.pack_environment_request(request)
        self._requests.put(packed)
        response = next(self._responses)
        return message_utils.unpack_environment_response(response, field)

    def close(self) -> None:
        """Ends it, whatever waits for it."""
        self._requests.put(None)
        self._channel.close()


class Environment:
    """One environment that was joined; its timesteps are arrays without a batch."""

    def __init__(self, joined: dm_env.Environment, address: str):
        self._joined = joined
        actions = dm_env_flatten_utils.flatten_dict(
            joined.action_spec(), wire.SEPARATOR
        )
        if len(actions) != 1:
            raise UserError(
                f"{address} takes {len(actions)} actions at once "
                f"({', '.join(sorted(actions))}); only environments with one are supported"
            )
        [(self._name, spec)] = actions.items()
        self._dtype = spec.dtype
        self.action_spec = _action_spec(spec, address)
        self.observation_spec = jax.tree.map(
            _plain, wire.tree(joined.observation_spec())
        )

    def step(self, action: np.ndarray | None) -> dm_env.TimeStep:
        """The next timestep; `action` may be None where an episode begins."""
        actions = {}
        if action is not None:
            given = np.asarray(action, self._dtype)
            actions = dm_env_flatten_utils.unflatten_dict(
                {self._name: given}, wire.SEPARATOR
            )
        after = self._joined.step(actions)
        first = after.first()
        return dm_env.TimeStep(
            np.asarray(after.step_type, np.int32),
            np.asarray(0.0 if first else after.reward, np.float32),
            np.asarray(1.0 if first else after.discount, np.float32),
            as_float32(jax.tree.map(np.asarray, wire.tree(after.observation))),
        )

    def difference(self, other: "Environment") -> str | None:
        """The first part in which the other's specs differ, if there is any."""
        ours, theirs = (
            {wire.ACTION: x.action_spec} | wire.flat(x.observation_spec)
            for x in (self, other)
        )
        for name in sorted(ours.keys() | theirs.keys()):
            if ours.get(name) != theirs.get(name):
                return f"{name} is {ours.get(name)} and {theirs.get(name)}"
        return None


def _plain(spec: specs.Array) -> specs.Array:
    """Without its name, and in single precision."""
    dtype = np.float32 if spec.dtype == np.float64 else spec.dtype
    return spec.replace(name=None, dtype=dtype)


def _action_spec(spec: specs.Array, address: str) -> specs.Array:
    """As agents take it. Raises UserError for actions that are not supported."""
    kind = np.dtype(spec.dtype).kind
    bounded = isinstance(spec, specs.BoundedArray)
    if bounded and kind in "iu" and not spec.minimum.any():
        return spec.replace(name=None, dtype=np.int32)
    if bounded and kind == "f":
        return _plain(spec)
    raise UserError(
        f"{address} takes actions {spec}; only integers from 0 and bounded continuous ones "
        "are supported"
    )
