"""Options of environments on other machines, on the client's side."""

import dataclasses
from pathlib import Path
from typing import Any

from podracer.errors import UserError, check_at_least_one, check_ranges
from sebulba.host_environments.options import LONGEST, json_object

MESSAGE_MEGABYTES = 16  # default limit of a message, here and on the server


@dataclasses.dataclass(frozen=True)
class Options:
    """Options of environments on other machines."""

    batch_minimum: int = 1
    """minimum number of answered environments in an inference batch"""
    batch_maximum: int = 1_000_000
    """maximum number of environments in an inference batch"""
    batch_seconds: float = 0.1
    """time after which a batch below the minimum is used"""
    connect_seconds: float = 10.0
    """time limit for a server to answer at the start"""
    reconnect_seconds: float = 300.0
    """time limit for finding a server again, the same or another one, after a loss"""
    step_seconds: float = 60.0
    """time limit of a step; a connection that exceeds it is closed"""
    settings: str = "{}"
    """settings of each world, as JSON, for servers that have any: '{"level": 3}'"""
    frame_stack: int = 1
    """number of frames in an observation (4 for an Atari server)"""
    check_bounds: bool = True
    """stop where an observation is outside of its declared bounds"""
    message_megabytes: int = MESSAGE_MEGABYTES
    """maximum size of a message in either direction, in MiB"""
    tls_authority: Path | None = None
    """certificates to trust for grpcs://, a PEM file; default: the system's"""
    tls_certificate: Path | None = None
    """the client's certificate, a PEM file, for servers that ask for one"""
    tls_key: Path | None = None
    """the private key of that certificate, a PEM file"""

    def __post_init__(self):
        check_at_least_one(
            batch_minimum=self.batch_minimum,
            batch_maximum=self.batch_maximum,
            frame_stack=self.frame_stack,
        )
        check_ranges(self, 1, 2_047, "message_megabytes")
        if self.batch_maximum < self.batch_minimum:
            raise UserError(
                f"batch_maximum is {self.batch_maximum}; it must be at least "
                f"batch_minimum, {self.batch_minimum}"
            )
        limits = "connect_seconds", "reconnect_seconds", "step_seconds"
        check_ranges(self, 0.0, LONGEST, "batch_seconds")
        check_ranges(self, 0.001, LONGEST, *limits)
        json_object("settings", self.settings)
        check_pair(self)


def host_and_port(host: str, port: int) -> str:
    """HOST:PORT, with the brackets that an IPv6 address needs there."""
    host = host.strip("[]")
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def check_pair(config: Any) -> None:
    """Raises UserError if there is a certificate without its key, or a key alone."""
    if (config.tls_certificate is None) != (config.tls_key is None):
        raise UserError("tls_certificate and tls_key belong together: name both")
