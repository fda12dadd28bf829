"""The action masks that gymnasium's environments give beside their observations.

Runs in the worker, without JAX.
"""

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from podracer.errors import UserError

MASK = "action_mask"


class WithMask(gymnasium.Wrapper):
    """An environment whose observation has its action mask, bool, in a field `action_mask`.

    From `info["action_mask"]`, as gymnasium's Taxi has it, or a method `action_masks`, as
    sb3-contrib's agents want it. An observation that is no dictionary becomes the field
    `observation`. Raises UserError for actions that are not discrete, and where there is no
    mask, or one of another size.
    """

    def __init__(self, environment: gymnasium.Env, name: str):
        super().__init__(environment)
        self._name, seen = name, environment.observation_space
        self._is_dict = isinstance(seen, spaces.Dict)
        fields = dict(seen.spaces) if self._is_dict else {"observation": seen}
        mask = spaces.MultiBinary(_size(name, environment.action_space))
        self.observation_space = spaces.Dict(fields | {MASK: mask})

    def reset(self, **arguments: Any) -> tuple[Any, dict]:
        observation, info = self.env.reset(**arguments)
        return self._with_mask(observation, info), info

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict]:
        observation, *rest, info = self.env.step(action)
        return self._with_mask(observation, info), *rest, info

    def _with_mask(self, observation: Any, info: dict) -> dict[str, Any]:
        mask = info.get(MASK)
        if mask is None and self.env.has_wrapper_attr("action_masks"):
            mask = self.env.get_wrapper_attr("action_masks")()
        size = self.observation_space[MASK].n
        if mask is None or np.size(mask) != size:
            what = "no mask" if mask is None else f"a mask of {np.size(mask)}"
            raise UserError(
                f"{self._name} gives {what}; with action_mask on, it must give one of {size} "
                'in info["action_mask"] or by a method action_masks'
            )
        fields = observation if self._is_dict else {"observation": observation}
        return {**fields, MASK: np.asarray(mask).reshape(-1).astype(np.int8)}


def _size(name: str, space: spaces.Space) -> int:
    """The number of entries of a mask: of all choices, one after another."""
    if isinstance(space, spaces.Discrete):
        return int(space.n)
    if isinstance(space, spaces.MultiDiscrete) and space.nvec.ndim == 1:
        return int(space.nvec.sum())
    raise UserError(
        f"{name} has actions {space}; only Discrete and MultiDiscrete ones have masks: leave "
        "action_mask out"
    )
