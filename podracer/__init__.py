"""Agents for both architectures: `podracer.load(RUN)` is a trained one."""

from typing import Any

__all__ = ["load"]


def __getattr__(name: str) -> Any:
    """`load`, which brings JAX along: only where it is asked for."""
    if name == "load":
        from podracer.trained import load

        return load
    raise AttributeError(f"module 'podracer' has no attribute {name!r}")
