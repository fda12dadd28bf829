"""Meshes: which cores of which hosts run a program together."""

from collections.abc import Sequence

import jax
import numpy as np
from jax.sharding import Mesh

from podracer.errors import UserError

CORE = "core"  # the name of the mesh's axis


def mesh_of(devices: list[jax.Device]) -> Mesh:
    """A mesh of these cores, in this order. Raises UserError as `check_switches`."""
    check_switches()
    return Mesh(np.array(devices), (CORE,))


def check_switches() -> None:
    """Raises UserError for a switch of JAX with which no run can work."""
    for name, value, why in (
        ("jax_disable_jit", True, "a run is one compiled program"),
        ("jax_numpy_dtype_promotion", "strict", "ours and other libraries mix types"),
    ):
        if getattr(jax.config, name) == value:
            raise UserError(
                f"{name.upper()} is {value}, but {why}: unset it (`jax.config.{name}`)"
            )


def make_mesh(cores: int | None = None) -> Mesh:
    """A mesh of the first `cores` cores of each host, by default all, host after host.

    Raises UserError if a host has fewer, or hosts have different numbers.
    """
    return mesh_of([x for host in cores_of_hosts() for x in _first(host, cores)])


def cores_of_hosts() -> list[list[jax.Device]]:
    """The cores of each host, in order. Raises UserError if their counts differ."""
    hosts: dict[int, list[jax.Device]] = {}
    for device in jax.devices():
        hosts.setdefault(device.process_index, []).append(device)
    ordered = [hosts[i] for i in sorted(hosts)]
    for i, host in enumerate(ordered):
        if len(host) != len(ordered[0]):
            raise UserError(
                f"host {i} has {len(host)} cores and host 0 has {len(ordered[0])}: start "
                "every host with the same number"
            )
    return ordered


def over_hosts(cores: Sequence[jax.Device]) -> Mesh:
    """A mesh of these cores and of the corresponding ones of every other host."""
    hosts = cores_of_hosts()
    places = [hosts[jax.process_index()].index(core) for core in cores]
    return mesh_of([host[place] for host in hosts for place in places])


def _first(host: list[jax.Device], cores: int | None) -> list[jax.Device]:
    cores = len(host) if cores is None else cores
    if not 1 <= cores <= len(host):
        where = "this program" if jax.process_count() == 1 else "each host"
        raise UserError(
            f"cores is {cores}; {where} sees {len(host)} ({host[0].platform}): choose 1 "
            f"to {len(host)}"
        )
    return host[:cores]
