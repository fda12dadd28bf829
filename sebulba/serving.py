"""Environments for other machines: a server of the dm_env_rpc protocol, version 1."""

import contextlib
import dataclasses
import itertools
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent import futures
from pathlib import Path

import grpc
from dm_env_rpc.v1 import dm_env_rpc_pb2_grpc

from podracer.errors import UserError, check_at_least_one, check_range
from sebulba.host_environments import wire
from sebulba.host_environments.environment import HostEnvironment
from sebulba.session import Session, Worlds

STOP_SECONDS = 5.0  # that environments may take to end
THREADS = "serving"  # the names of theirs begin so


@dataclasses.dataclass(frozen=True)
class Config:
    """Where to serve, and to whom."""

    host: str = "127.0.0.1"
    """address to listen at; only this machine reaches the default, 0.0.0.0 is all"""
    port: int = 8611
    """port to listen at; 0: any that is free"""
    environments: int = 256
    """that may be played at once"""
    seed: int = 0
    """of the first environment; each that follows has the next"""
    tls_certificate: Path | None = None
    """file of the certificate (PEM), for clients that say grpcs://"""
    tls_key: Path | None = None
    """file of its private key (PEM)"""
    tls_authority: Path | None = None
    """file of certificates (PEM): clients must have one that these have signed"""

    def __post_init__(self):
        check_range("port", self.port, 0, 65535)
        check_at_least_one(environments=self.environments)
        if (self.tls_certificate is None) != (self.tls_key is None):
            raise UserError("tls_certificate and tls_key belong together: name both")
        if self.tls_authority and not self.tls_key:
            raise UserError("tls_authority needs tls_certificate and tls_key")


@contextlib.contextmanager
def serving(make: Callable[[int], HostEnvironment], config: Config) -> Iterator[str]:
    """Serves until the block ends; yields the address, as `--env` has it.

    Args:
      make: (seed) -> one environment.
      config: where.

    Raises:
      UserError: the port is in use, or a file cannot be read.
    """
    pool = futures.ThreadPoolExecutor(config.environments + 1, THREADS)
    server = grpc.server(pool, options=wire.OPTIONS)
    service = Service(make, config.seed, config.environments)
    dm_env_rpc_pb2_grpc.add_EnvironmentServicer_to_server(service, server)
    wanted = f"{config.host}:{config.port}"
    try:
        if config.tls_key:
            port = server.add_secure_port(wanted, _credentials(config))
        else:
            port = server.add_insecure_port(wanted)
    except RuntimeError as error:
        raise UserError(
            f"cannot listen at {wanted}; is the port in use? --port 0 takes any that is "
            "free"
        ) from error
    server.start()
    try:
        yield f"grpc{'s' if config.tls_key else ''}://{config.host}:{port}"
    finally:
        server.stop(grace=None).wait(STOP_SECONDS)
        pool.shutdown(wait=False)


def still_playing() -> bool:
    """Whether an environment is still in a step, STOP_SECONDS after the end."""
    until = time.monotonic() + STOP_SECONDS
    threads = [x for x in threading.enumerate() if x.name.startswith(THREADS)]
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
    return any(thread.is_alive() for thread in threads)


def _credentials(config: Config) -> grpc.ServerCredentials:
    key, certificate, authority = map(
        wire.read, (config.tls_key, config.tls_certificate, config.tls_authority)
    )
    return grpc.ssl_server_credentials(
        [(key, certificate)], authority, require_client_auth=authority is not None
    )


class Service(dm_env_rpc_pb2_grpc.EnvironmentServicer):
    """The protocol's one method: a stream of requests, each answered in turn."""

    def __init__(
        self, make: Callable[[int], HostEnvironment], seed: int, environments: int
    ):
        self._make, self._seeds = make, itertools.count(seed)
        self._places = threading.Semaphore(environments)
        self._worlds = Worlds()

    def Process(self, requests: Iterable, context: grpc.ServicerContext) -> Iterator:
        theirs = dict(context.invocation_metadata()).get(wire.VERSION[0])
        if theirs not in (None, wire.VERSION[1]):
            context.abort(
                grpc.StatusCode.FAILED_PRECONDITION,
                f"the server has podracer {wire.VERSION[1]}, the client {theirs}: install "
                "the same on both",
            )
        if not self._places.acquire(blocking=False):
            context.abort(
                grpc.StatusCode.RESOURCE_EXHAUSTED,
                "the server plays no more environments at once: raise its --environments",
            )
        session = Session(lambda: self._make(next(self._seeds)), self._worlds)
        try:
            for request in requests:
                yield session.answer(request)
        finally:
            session.leave()
            self._places.release()
