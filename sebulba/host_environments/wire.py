"""What crosses the network of an environment: trees by name, as dm_env_rpc has them."""

from pathlib import Path
from typing import Any

from dm_env import specs
from dm_env_rpc.v1 import dm_env_flatten_utils, dm_env_utils
from dm_env_rpc.v1.dm_env_rpc_pb2 import TensorSpec

from podracer import run_folder
from podracer.errors import UserError

ACTION, OBSERVATION, REWARD, SEPARATOR = "action", "observation", "reward", "."
VERSION = ("podracer-version", run_folder.versions()["podracer"])  # said by our clients
OPTIONS = [  # of channels and servers
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.so_reuseport", 0),  # a port in use is an error
    ("grpc.use_local_subchannel_pool", 1),  # or a lost server is asked ever more rarely
    ("grpc.enable_http_proxy", 0),
    ("grpc.keepalive_time_ms", 20_000),  # a machine that vanishes is noticed
    ("grpc.keepalive_timeout_ms", 20_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
]


def flat(observation: Any) -> dict[str, Any]:
    """The leaves of an observation (or its spec), as `observation.position`."""

    def nested(x):
        if isinstance(x, tuple):
            x = {str(i): part for i, part in enumerate(x)}
        if isinstance(x, dict):
            return {name: nested(part) for name, part in x.items()}
        return x

    return dm_env_flatten_utils.flatten_dict(
        {OBSERVATION: nested(observation)}, SEPARATOR
    )


def tree(observation: dict[str, Any]) -> Any:
    """What `flat` was made of, from the names' nested dict; tuples come back as dicts.

    Another server's observations, of other names, stay as they are.
    """
    return observation[OBSERVATION] if [*observation] == [OBSERVATION] else observation


def tensor_specs(named: dict[str, Any]) -> dict[int, TensorSpec]:
    """dm_env specs as the protocol's, by number."""

    def as_told(spec, name):
        if spec.dtype == bool:  # the protocol has no bounds for these
            return specs.Array(spec.shape, bool, name)
        return spec.replace(name=name)

    return {
        number: dm_env_utils.dm_env_spec_to_tensor_spec(as_told(spec, name))
        for number, (name, spec) in enumerate(named.items(), start=1)
    }


def read(path: Path | None) -> bytes | None:
    """A file of certificates or a key, if one is named. Raises UserError."""
    try:
        return None if path is None else path.read_bytes()
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}; it should be a PEM file") from error
