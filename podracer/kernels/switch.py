"""Whether kernels replace operations of JAX and flax."""

_on = True


def is_on() -> bool:
    """Whether what is traced now uses kernels."""
    return _on
