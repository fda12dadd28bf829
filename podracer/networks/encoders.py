"""Encoders: which torso each leaf of an observation goes through.

An image [H, W, C] goes through convolutions; all other leaves (vectors, scalars, discrete
values one-hot) are joined and go through one mlp.
"""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from podracer.errors import UserError
from podracer.observations import named

SMALLEST = {"shallow": 36, "a3c": 20, "minatar": 3, "resnet": 1}  # sides of images
FEW = 4  # channels at most, in front of an image whose channels are in the wrong place


def torso_of(shape: Sequence[int], torso: str) -> str:
    """The torso for a leaf [*shape]: that which is asked for, if it is an image of enough
    pixels for it, else `mlp`; `auto` takes what suits the image's size."""
    side = min(shape[:2]) if len(shape) == 3 else 0
    names = ("shallow", "minatar") if torso == "auto" else (torso,)
    fitting = (name for name in names if side >= SMALLEST.get(name, math.inf))
    return next(fitting, "mlp")


def torsos_of(observation_spec: Any, torso: str) -> dict[str, str]:
    """The torso for each leaf, by its name.

    Raises UserError where there is nothing to see, where no leaf suits the torso that is
    asked for, and for bytes whose channels are in front of their rows.
    """
    leaves = named(observation_spec)
    if not any(math.prod(spec.shape) for spec in leaves.values()):
        raise UserError(
            f"observation_spec is {observation_spec}, without a number that a network could "
            "see: where there is nothing to observe, give a constant of shape (1,)"
        )
    chosen = {name: torso_of(spec.shape, torso) for name, spec in leaves.items()}
    if torso not in ("auto", "mlp", *chosen.values()):
        shapes = (f"{name} {spec.shape}".strip() for name, spec in leaves.items())
        raise UserError(
            f"torso is {torso}, for images [H, W, C] of at least {SMALLEST[torso]} pixels a "
            f"side; the observation is {', '.join(shapes)}: try torso mlp"
        )
    for name, spec in leaves.items():
        if (
            torso != "mlp"
            and spec.dtype == np.uint8
            and _has_channels_first(spec.shape)
        ):
            raise UserError(
                f"observation{f' {name}' if name else ''} is bytes {spec.shape}, whose "
                "channels are in front: images are [H, W, C]; move the axis in the "
                "environment, or choose --network.torso mlp"
            )
    return chosen


def _has_channels_first(shape: Sequence[int]) -> bool:
    return len(shape) == 3 and shape[0] <= FEW and min(shape[1:]) >= SMALLEST["shallow"]


def described(observation_spec: Any, torso: str) -> str:
    """Which torso takes what, in one line: `pixels 64x64x3: shallow; state 17: mlp`."""
    chosen = torsos_of(observation_spec, torso)

    def one(name: str, spec: Any) -> str:
        values = getattr(spec, "num_values", None)
        size = "x".join(map(str, spec.shape)) or ("1" if values is None else "")
        words = (name, size, f"one of {values}" if values is not None else "")
        return f"{' '.join(filter(None, words))}: {chosen[name]}"

    return "; ".join(one(*leaf) for leaf in named(observation_spec).items())
