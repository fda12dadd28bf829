"""What a worker process steps: an environment whose exceptions and values are checked.

Runs in the worker, without JAX.
"""

import pickle
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import numpy as np

from podracer.errors import UserError
from sebulba.host_environments import checking, spaces

DEAD = (EOFError, OSError)  # of the pipe to a worker that is dead, or late
FPS = 30.0  # pictures per second of an environment that does not say how many
LINES = 3  # of a traceback, in an error's one line
CALLERS = (  # files
    "host_environments/dm.py",
    "host_environments/guarded.py",
    "host_environments/python.py",
    "host_environments/worker.py",
    "gymnasium/envs/registration.py",
)
# In the main process these mean that the user, or a diverging run, ends it; or a dead worker.
MISLEADING = (KeyboardInterrupt, SystemExit, GeneratorExit, FloatingPointError, *DEAD)


class Guarded:
    """A gymnasium.Env whose observations and rewards are checked, see `checking`.

    It raises only exceptions that the main process can have, too.
    """

    def __init__(self, environment: Any, name: str, bounds: bool):
        self.env, self._name = environment, name
        declared = checking.of_space(environment.observation_space)
        self._check = checking.checker(name, declared, bounds=bounds)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.env, name)

    def reset(self, **arguments):
        observation, _ = self._answer("reset", "observation, info", **arguments)
        self._check(observation, 0.0)
        return observation, {}

    def step(self, action):
        observation, reward, terminated, truncated, info = self._answer(
            "step", "observation, reward, terminated, truncated, info", action
        )
        self._check(observation, reward)
        reward = float(np.reshape(reward, ()))
        return (
            observation,
            reward,
            self._flag("terminated", terminated),
            self._flag("truncated", truncated),
            self._success(info),
        )

    def render_fps(self) -> float | None:
        """Pictures per second; None where the environment draws none."""
        if getattr(self.env, "render_mode", None) != "rgb_array":
            return None
        return float((self.env.metadata or {}).get("render_fps") or FPS)

    def picture(self) -> np.ndarray:
        """uint8 [H, W, 3]. Raises UserError where there is none."""
        try:
            picture = np.asarray(self.env.render())
        except BaseException as error:
            raise UserError(
                f"{self._name}: cannot draw: {_described(error)}; without a screen MuJoCo's "
                "take MUJOCO_GL=egl or MUJOCO_GL=osmesa, if the system has one of them"
            ) from error
        if picture.ndim != 3 or picture.shape[-1] != 3:
            raise UserError(
                f"{self._name}: render() returned {checking.shown(picture)}; it must be a "
                "picture [H, W, 3]"
            )
        return picture.astype(np.uint8)

    def _answer(self, method: str, fields: str, *arguments, **named) -> tuple:
        """What the environment's method returns. Raises UserError unless it has all fields."""
        try:
            answer = getattr(self.env, method)(*arguments, **named)
        except BaseException as error:  # noqa: BLE001 whatever it is, the environment failed
            _raise(error)
        if isinstance(answer, tuple | list) and len(answer) == len(fields.split()):
            return tuple(answer)
        raise UserError(
            f"{self._name}: {method}() returned {checking.shown(answer)}; it must return "
            f"({fields})"
        )

    def _success(self, info: Any) -> dict[str, bool]:
        """What an info says of success, under the names of Gymnasium-Robotics and Meta-World."""
        if isinstance(info, dict):
            for name in ("is_success", "success"):
                if info.get(name) is not None:
                    return {"success": self._flag(f"info[{name!r}]", info[name])}
        return {}

    def _flag(self, field: str, value: Any) -> bool:
        """A bool, of an array with one element, too."""
        if np.asarray(value).size != 1:
            raise UserError(
                f"{self._name}: {field} is {checking.shown(value)}; it must be True or False"
            )
        return bool(np.reshape(value, ()))


def guarded(name: str, make: Callable[[], Any], bounds: bool) -> Guarded:
    """The environment that `make` makes.

    Raises UserError where it raises, or returns something else, or the spaces are not
    supported.
    """
    import gymnasium

    try:
        environment = make()
    except UserError as error:
        raise UserError(f"{name}: {error}") from error
    except BaseException as error:
        raise UserError(f"{name} cannot be made: {_described(error)}") from error
    if not isinstance(environment, gymnasium.Env):
        raise UserError(
            f"{name} made {checking.shown(environment)}, which is no gymnasium.Env"
        )
    for field in ("observation_space", "action_space"):
        if not hasattr(environment, field):
            raise UserError(f"{name} has no {field}")
    spaces.check_supported(name, environment.observation_space)
    spaces.action_spec(name, environment.action_space)
    return Guarded(environment, name, bounds)


def _described(error: BaseException) -> str:
    """An error as one line, with the last lines of code of its traceback.

    Of its first cause: libraries raise others from it. What calls the environment's own
    code is left out.
    """
    cause = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    frames = traceback.extract_tb(cause.__traceback__)
    theirs = [x for x in frames if not x.filename.endswith(CALLERS)]
    places = [f"{x.filename}:{x.lineno} in {x.name}" for x in theirs[-LINES:]]
    text = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{text} ({', '.join(places)})" if places else text


def _raise(error: BaseException) -> NoReturn:
    """The error, or a RuntimeError where the main process would misread it."""
    if isinstance(error, MISLEADING) or not _crosses(error):
        described = f"{type(error).__name__}: {error}".removesuffix(": ")
        raise RuntimeError(f"the environment raised {described}") from error
    raise error


def _crosses(error: BaseException) -> bool:
    """Whether the main process can have the same exception."""
    try:
        return type(pickle.loads(pickle.dumps(error))) is type(error)
    except Exception:  # noqa: BLE001 a class may do anything here
        return False
