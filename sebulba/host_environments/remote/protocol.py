"""What client and server share: channel options, and pytrees as named tensors."""

from pathlib import Path
from typing import Any

from dm_env import specs
from dm_env_rpc.v1 import dm_env_flatten_utils, dm_env_utils
from dm_env_rpc.v1.dm_env_rpc_pb2 import TensorSpec

from podracer.errors import UserError
from podracer.runs import run_folder

ACTION, OBSERVATION, REWARD, SEPARATOR = "action", "observation", "reward", "."
VERSION = ("podracer-version", run_folder.versions()["podracer"])  # sent by our clients
TOO_LARGE = "larger than max"  # in gRPC's words on a message over the limit


def channel_options(megabytes: int) -> list[tuple[str, int]]:
    """gRPC's options of a channel or a server whose messages have at most that size."""
    return [
        ("grpc.max_send_message_length", megabytes * 2**20),
        ("grpc.max_receive_message_length", megabytes * 2**20),
        (
            "grpc.compression_enabled_algorithms_bitset",
            1,
        ),  # none: the limit is the size
        ("grpc.so_reuseport", 0),  # a port in use is an error
        # Otherwise a lost server is tried again at ever longer intervals.
        ("grpc.use_local_subchannel_pool", 1),
        ("grpc.enable_http_proxy", 0),
        ("grpc.keepalive_time_ms", 20_000),  # to notice a machine that has vanished
        ("grpc.keepalive_timeout_ms", 20_000),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
    ]


def flatten(observation: Any) -> dict[str, Any]:
    """The leaves of an observation (or its spec) by name, as `observation.position`.

    Raises UserError for a name that has a dot itself.
    """

    def nested(x):
        if isinstance(x, tuple):
            x = {str(i): part for i, part in enumerate(x)}
        if isinstance(x, dict):
            for name in x:
                _check_name(name)
            return {name: nested(part) for name, part in x.items()}
        return x

    return dm_env_flatten_utils.flatten_dict(
        {OBSERVATION: nested(observation)}, SEPARATOR
    )


def _check_name(name: Any) -> None:
    if not isinstance(name, str) or SEPARATOR in name:
        raise UserError(
            f"an observation has the member {name!r}; to be served, its name must be a "
            "string without dots, which separate names in dm_env_rpc: rename it"
        )


def unflatten(observation: dict[str, Any]) -> Any:
    """The observation that `flatten` got, from nested dicts; tuples become dicts.

    Observations of other servers, which have other names, are returned unchanged.
    """
    return observation[OBSERVATION] if [*observation] == [OBSERVATION] else observation


def tensor_specs(named: dict[str, Any]) -> dict[int, TensorSpec]:
    """dm_env specs as the protocol's, numbered from 1."""

    def renamed(spec, name):
        if spec.dtype == bool:  # the protocol has no bounds for these
            return specs.Array(spec.shape, bool, name)
        return spec.replace(name=name)

    return {
        number: dm_env_utils.dm_env_spec_to_tensor_spec(renamed(spec, name))
        for number, (name, spec) in enumerate(named.items(), start=1)
    }


def read_tls(config: Any) -> tuple[bytes | None, bytes | None, bytes | None]:
    """The contents of tls_key, tls_certificate and tls_authority, where they are given.

    Raises UserError for a file that is unreadable, or has no key or no certificate.
    """
    key = _read(config.tls_key, "tls_key", "PRIVATE KEY")
    certificate = _read(config.tls_certificate, "tls_certificate", "CERTIFICATE")
    authority = _read(config.tls_authority, "tls_authority", "CERTIFICATE")
    return key, certificate, authority


def _read(path: Path | None, field: str, kind: str) -> bytes | None:
    if path is None:
        return None
    try:
        content = path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; it should be a PEM file") from error
    if f"{kind}-----".encode() not in content:
        raise UserError(f"{field} is {path}, a file without a {kind}; name a PEM file")
    return content
