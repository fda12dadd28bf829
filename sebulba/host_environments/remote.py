"""Environments on other machines: `grpc://host:port[,host:port...]`, with TLS `grpcs://`.

Their servers speak dm_env_rpc, version 1: `sebulba serve`, or anybody's.
"""

import dataclasses
from pathlib import Path
from typing import NamedTuple

from podracer.errors import UserError, check_at_least_one, check_range
from sebulba.host_environments.environment import HostEnvironment
from sebulba.host_environments.options import json_object


@dataclasses.dataclass(frozen=True)
class Options:
    """Of environments on other machines."""

    batch_minimum: int = 1
    """environments that must have answered before the agent does"""
    batch_maximum: int = 1_000_000
    """of those that have answered, so many at most at once"""
    batch_seconds: float = 0.1
    """after which fewer than the minimum will do"""
    connect_seconds: float = 10.0
    """that a server may take to come up at the start"""
    reconnect_seconds: float = 300.0
    """that a lost server may stay away; its environments try the others, too"""
    step_seconds: float = 60.0
    """that a step may take before the connection is given up"""
    settings: str = "{}"
    """of each world, as JSON, for servers that have any: '{"level": 3}'"""
    frame_stack: int = 1
    """frames that the agent sees at once (4 for an Atari server)"""
    tls_authority: Path | None = None
    """of grpcs://, file of certificates (PEM) to trust instead of the system's"""
    tls_certificate: Path | None = None
    """file of our own certificate (PEM), where the server wants one"""
    tls_key: Path | None = None
    """file of its private key (PEM)"""

    def __post_init__(self):
        check_at_least_one(
            batch_minimum=self.batch_minimum,
            batch_maximum=self.batch_maximum,
            frame_stack=self.frame_stack,
        )
        if self.batch_maximum < self.batch_minimum:
            raise UserError(
                f"batch_maximum is {self.batch_maximum}; it must be at least "
                f"batch_minimum, {self.batch_minimum}"
            )
        check_range("batch_seconds", self.batch_seconds, 0.0)
        for name in ("connect_seconds", "reconnect_seconds", "step_seconds"):
            check_range(name, getattr(self, name), 0.001)


class Door(NamedTuple):
    """`grpc` or `grpcs`, as `sebulba.host_environments.DOORS` has them."""

    scheme: str

    def default_options(self, name: str) -> Options:
        self.addresses(name)
        return Options()

    def make(
        self, name: str, batch_size: int, seed: int, threads: int, options: Options
    ) -> HostEnvironment:
        """B of them, dealt out to the servers in turn; seeds are the servers' own."""
        del seed, threads
        try:
            from sebulba.host_environments import players, servers
        except ModuleNotFoundError as error:
            raise UserError(
                f"{self.scheme}:{name}: {error} (pip install 'podracer[remote]')"
            ) from error
        settings = json_object("settings", options.settings)
        credentials = servers.credentials(options, self.scheme == "grpcs")
        places = [
            servers.Server(f"{self.scheme}://{address}", credentials, settings)
            for address in self.addresses(name)
        ]
        return players.Remote(places, batch_size, options)

    def addresses(self, name: str) -> list[str]:
        """HOST:PORT of each server. Raises UserError."""
        addresses = name.removeprefix("//").split(",")
        for address in addresses:
            host, _, port = address.rpartition(":")
            if not (name.startswith("//") and host and port.isdigit()):
                raise UserError(
                    f"--env {self.scheme}:{name}: {address!r} is no HOST:PORT; write "
                    f"{self.scheme}://HOST:PORT, or several with commas"
                )
        return addresses
