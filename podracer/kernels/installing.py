"""Kernels are installed explicitly, never by an import."""

from podracer.kernels import switch, threefry


def install() -> None:
    """Programs that are traced from now on use our kernels, but for those that are turned off.

    Raises UserError for a PODRACER_KERNELS that is neither `on`, `off` nor names to leave out,
    as `-convolution,-xla`.
    """
    switch.turn_on()
    if switch.is_on("threefry"):
        threefry.register()
