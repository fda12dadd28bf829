"""The server: environments for other machines, in the dm_env_rpc protocol, version 1."""

import contextlib
import dataclasses
import itertools
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
from dm_env import specs
from dm_env_rpc.v1 import dm_env_rpc_pb2_grpc

from podracer.errors import UserError, check_range
from sebulba.host_environments import checking
from sebulba.host_environments.environment import HostEnvironment
from sebulba.host_environments.remote import protocol
from sebulba.host_environments.remote.client_options import (
    MESSAGE_MEGABYTES,
    check_pair,
    host_and_port,
)
from sebulba.host_environments.remote.session import Lost, Session, Worlds

STOP_SECONDS = 5.0  # time limit for environments to end
THREADS = "serving"  # prefix of their threads' names


@dataclasses.dataclass(frozen=True)
class Config:
    """The address of a server, its limits and its certificates."""

    host: str = "127.0.0.1"
    """address to listen at; by default this machine only; 0.0.0.0: every interface"""
    port: int = 8611
    """port to listen at; 0: any free port"""
    environments: int = 256
    """maximum number of environments in use at once"""
    message_megabytes: int = MESSAGE_MEGABYTES
    """maximum size of a message in either direction, in MiB"""
    seed: int = 0
    """seed of the first environment; each following one has the next"""
    tls_certificate: Path | None = None
    """the server's certificate, a PEM file, for clients that use grpcs://"""
    tls_key: Path | None = None
    """the private key of that certificate, a PEM file"""
    tls_authority: Path | None = None
    """certificates, a PEM file, one of which must have signed each client's"""

    def __post_init__(self):
        check_range("port", self.port, 0, 65535)
        # They count up from here, and environments take them as integers of 32 bits.
        check_range("seed", self.seed, 0, 2**30)
        check_range("environments", self.environments, 1, 10_000)
        check_range("message_megabytes", self.message_megabytes, 1, 2_047)
        check_pair(self)
        if self.tls_authority and not self.tls_key:
            raise UserError("tls_authority needs tls_certificate and tls_key")


@contextlib.contextmanager
def serving(make: Callable[[int], HostEnvironment], config: Config) -> Iterator[str]:
    """Serves until the block ends; yields the address as `--env` takes it.

    Args:
      make: (seed) -> a HostEnvironment with batch_size 1.
      config: the address, limits and certificates.

    Raises:
      UserError: the host does not resolve, the port is in use, or a file is unreadable.
    """
    pool = futures.ThreadPoolExecutor(config.environments + 1, THREADS)
    options = protocol.channel_options(config.message_megabytes)
    server = grpc.server(pool, options=options)
    service = Service(make, config.seed, config.environments)
    dm_env_rpc_pb2_grpc.add_EnvironmentServicer_to_server(service, server)
    wanted = host_and_port(config.host, config.port)
    _check_host(config.host)
    try:
        if config.tls_key:
            port = server.add_secure_port(wanted, _credentials(config))
        else:
            port = server.add_insecure_port(wanted)
    except RuntimeError as error:
        tls = " Or does tls_key belong to another certificate?" * bool(config.tls_key)
        raise UserError(
            f"cannot listen at {wanted}; is the port in use, or the host another machine? "
            f"--port 0 takes any free port.{tls}"
        ) from error
    server.start()
    try:
        where = host_and_port(config.host, port)
        yield f"grpc{'s' if config.tls_key else ''}://{where}"
    finally:
        server.stop(grace=None).wait(STOP_SECONDS)
        pool.shutdown(wait=False)


def check(environment: HostEnvironment) -> None:
    """Raises UserError unless the protocol can carry its observations and actions."""
    protocol.flatten(environment.observation_spec())
    action_spec = environment.action_spec()
    if not isinstance(action_spec, specs.Array):
        raise UserError(
            f"{type(environment).__name__} has actions {checking.shown(action_spec)}; only "
            "one array can be served: train where the environment runs"
        )


def still_stepping() -> bool:
    """Whether a step has not returned STOP_SECONDS after the end."""
    until = time.monotonic() + STOP_SECONDS
    threads = [x for x in threading.enumerate() if x.name.startswith(THREADS)]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return any(thread.is_alive() for thread in threads)


def _check_host(host: str) -> None:
    """Raises UserError unless the name resolves to an address."""
    try:
        socket.getaddrinfo(host.strip("[]"), None)
    except (OSError, UnicodeError) as error:
        raise UserError(
            f"host is {host!r}, which does not resolve to an address of this machine"
        ) from error


def _credentials(config: Config) -> grpc.ServerCredentials:
    key, certificate, authority = protocol.read_tls(config)
    return grpc.ssl_server_credentials(
        [(key, certificate)], authority, require_client_auth=authority is not None
    )


class Service(dm_env_rpc_pb2_grpc.EnvironmentServicer):
    """The protocol's only method: a stream of requests, answered in order."""

    def __init__(
        self, make: Callable[[int], HostEnvironment], seed: int, environments: int
    ):
        self._make, self._seeds = make, itertools.count(seed)
        self._places = threading.Semaphore(environments)
        self._worlds = Worlds()

    def Process(self, requests: Iterable, context: grpc.ServicerContext) -> Iterator:
        client_version = dict(context.invocation_metadata()).get(protocol.VERSION[0])
        if client_version not in (None, protocol.VERSION[1]):
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the server has podracer {protocol.VERSION[1]}, the client "
                f"{client_version}: install the same on both",
            )
        if not self._places.acquire(blocking=False):
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "all of the server's environments are in use: raise its --environments",
            )
        session = Session(lambda: self._make(next(self._seeds)), self._worlds)
        try:
            for request in requests:
                yield session.answer(request)
        except Lost:  # to the client as if the server was lost: it joins again
            context.abort(grpc.StatusCode.UNAVAILABLE, "an episode was lost")
        finally:
            try:
                session.leave()
            finally:
                self._places.release()
