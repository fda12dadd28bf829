"""Cores to plan for, which this machine need not have."""

from typing import NamedTuple

import jax

from podracer.plan import compiled

ALONE = {  # for the process that compiles: not to look for a TPU or its hosts,
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # and not to keep others from compiling
    "JAX_PLATFORMS": "cpu",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_WORKER_HOSTNAMES": "localhost",
}


class Slice(NamedTuple):
    """Cores of one kind, on one or several hosts."""

    name: str
    hosts: list[list[jax.Device]]  # the cores of each
    memory: int  # bytes of a core's memory that a program may use
    clock: float | None = None  # cycles per second, where the compiler counts cycles

    @property
    def cores(self) -> list[jax.Device]:
        """All of them, host by host."""
        return [core for host in self.hosts for core in host]

    @property
    def kind(self) -> str:
        """The kind of its chips."""
        return self.hosts[0][0].device_kind

    def __str__(self) -> str:
        cores, hosts = len(self.cores), len(self.hosts)
        return (
            f"{self.name} ({self.kind}): {cores} core{'s'[: cores > 1]} of "
            f"{compiled.size(self.memory)} on {hosts} host{'s'[: hosts > 1]}"
        )


def forget_cache() -> None:
    """Programs for absent cores can be written to the persistent cache, but not read again."""
    from jax.experimental.compilation_cache import compilation_cache

    jax.config.update("jax_enable_compilation_cache", False)
    compilation_cache.reset_cache()  # JAX decides at its first program whether there is a cache
