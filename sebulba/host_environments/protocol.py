"""Compares what any environment on the host does with the protocol, see HostEnvironment."""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import dm_env
import jax
import numpy as np

from podracer.errors import UserError, check_at_least_one
from podracer.training.agent_checks import check_alike
from sebulba.host_environments import checking
from sebulba.host_environments.environment import Compiled, HostEnvironment

MEMBERS = (*HostEnvironment.__annotations__, *vars(HostEnvironment))


def check_members(origin: str, environment: Any) -> None:
    """Raises UserError for what is no `HostEnvironment`; `origin` is what gave it."""
    names = (x for x in MEMBERS if not x.startswith("_"))
    if missing := [x for x in names if not hasattr(environment, x)]:
        raise UserError(
            f"{origin} gives {checking.shown(environment)} without {', '.join(missing)}; it "
            "must give a sebulba.host_environments.HostEnvironment"
        )


class Checked(NamedTuple):
    """What an actor calls of an environment; raises UserError for what breaks the protocol."""

    reset: Callable[[], dm_env.TimeStep]
    step: Callable[[Any], dm_env.TimeStep]  # takes actions of any dtype that fits


def checked(environment: HostEnvironment) -> Checked:
    """`reset` and `step` of the environment, whose timesteps and actions are compared."""
    check = timestep_checker(environment)
    spec, batch = environment.action_spec(), (environment.batch_size,)
    check_action = checking.action_checker(type(environment).__name__, spec, batch)

    def reset() -> dm_env.TimeStep:
        timestep = environment.reset()
        check(timestep)
        return timestep

    def step(action: Any) -> dm_env.TimeStep:
        check_action(action)
        timestep = environment.step(as_declared(spec, action))
        check(timestep)
        return timestep

    return Checked(reset, step)


def timestep_checker(environment: Any) -> Callable[[Any], None]:
    """(timestep) -> None, called each step. Raises UserError for one that breaks the protocol.

    For environments of any origin. Their observations' bounds are not compared here, and a
    reward or an observation that is not finite stops the run at its next report.

    Args:
      environment: a `HostEnvironment`.
    """
    check_at_least_one(batch_size=environment.batch_size)
    declared = checking.of_spec(environment.observation_spec())
    batch = (environment.batch_size,)

    def complaints(timestep: Any, before: Any) -> Iterator[str]:
        yield from _of_timestep(timestep, batch)
        yield from checking.complaints_of(declared, timestep.observation, batch, False)
        yield from _of_width(timestep.observation)
        yield from _of_order(timestep, before)

    name = type(environment).__name__
    sampled = checking.sampled(
        name, complaints, "correct the environment, see HostEnvironment"
    )
    before = None

    def check(timestep: Any) -> None:
        nonlocal before
        sampled(timestep, before)
        before = timestep

    return check


def as_declared(action_spec: Any, action: Any) -> Any:
    """An actor's action [B, ...] as NumPy's arrays, in the dtypes of their specs."""
    return jax.tree.map(
        lambda spec, x: np.asarray(x).astype(spec.dtype, copy=False),
        action_spec,
        action,
    )


def check_snapshot(name: str, snapshot: Any) -> None:
    """Raises UserError for what a checkpoint cannot keep bit for bit."""
    _check_storable(f"{name}: snapshot", snapshot)


def check_compiled(
    name: str, compiled: Any, timestep: dm_env.TimeStep, action: Any
) -> None:
    """Raises UserError where a step would not keep its state, or gives another timestep.

    Args:
      name: the environment's.
      compiled: what its `compiled` gave.
      timestep: [B, ...] that `reset` gave.
      action: [B, ...], or its shape and dtype.
    """
    if not isinstance(compiled, Compiled):
        raise UserError(
            f"{name}: compiled() gave {checking.shown(compiled)}; it must give a Compiled, "
            "or None"
        )
    _check_storable(f"{name}: the state of compiled()", compiled.state)
    after = jax.eval_shape(compiled.step, compiled.state, action)
    if not isinstance(after, tuple) or len(after) != 3:
        raise UserError(
            f"{name}: a step of compiled() gave {type(after).__name__}; it must return "
            "(state, timestep, recorded)"
        )
    before = jax.eval_shape(lambda *x: x, compiled.state, timestep)
    for what, old, new in zip(("state", "timestep"), before, after):
        check_alike(f"{name}: the {what} of compiled()", old, new, "environment")


def _check_storable(what: str, tree: Any) -> None:
    """Raises UserError for what JAX does not keep bit for bit."""
    for path, x in jax.tree_util.tree_leaves_with_path(tree):
        kind = getattr(x, "dtype", type(x).__name__)
        if isinstance(x, np.ndarray | np.generic):
            storable = (
                kind.kind in checking.KINDS
                and kind == jax.dtypes.canonicalize_dtype(kind)
            )
        else:
            storable = isinstance(x, jax.Array | int)
        if not storable:
            raise UserError(
                f"{what}{jax.tree_util.keystr(path)} is {kind}; it must be an array "
                "of at most 32 bits, for example x.view(np.uint32)"
            )


def _of_timestep(timestep: Any, batch: tuple[int, ...]) -> Iterator[str]:
    """What is wrong with a batch of timesteps besides the observation."""
    if not isinstance(timestep, dm_env.TimeStep):
        yield f"a timestep is {checking.shown(timestep)}; it must be a dm_env.TimeStep"
    for field in ("step_type", "reward", "discount"):
        value = getattr(timestep, field)
        if not hasattr(value, "shape") or value.dtype.kind not in checking.KINDS:
            yield f"{field} is {checking.shown(value)}; it must be an array of numbers"
        elif value.shape != batch:
            yield f"{field} has shape {value.shape}; it must have {batch}"
    step_type, reward, discount, _ = timestep
    first = step_type == dm_env.StepType.FIRST
    for field, rule, right in (
        ("step_type", "0 (FIRST), 1 (MID) or 2 (LAST)", np.isin(step_type, (0, 1, 2))),
        ("discount", "from 0 to 1", (0 <= discount) & (discount <= 1)),
        ("reward", "0 at FIRST", ~first | (reward == 0)),
        ("discount", "1 at FIRST", ~first | (discount == 1)),
    ):
        if not right.all():
            yield f"{field} is {getattr(timestep, field)[~right][0]}; it must be {rule}"


def _of_order(
    timestep: dm_env.TimeStep, before: dm_env.TimeStep | None
) -> Iterator[str]:
    """What is wrong after the timestep before; None: at a reset."""
    first = timestep.step_type == dm_env.StepType.FIRST
    due = True if before is None else before.step_type == dm_env.StepType.LAST
    if (due & ~first).any():
        after = "at a reset" if before is None else "after LAST"
        yield f"step_type is {timestep.step_type[due & ~first][0]} {after}; it must be 0 (FIRST)"
    for field in ("step_type", "reward", "discount") if before else ():
        new, old = (getattr(x, field).dtype for x in (timestep, before))
        if jax.dtypes.canonicalize_dtype(new) != jax.dtypes.canonicalize_dtype(old):
            yield f"{field} has dtype {new}; before it had {old}"


def _of_width(observation: Any) -> Iterator[str]:
    """Integers that lose their upper bits, since JAX keeps 32 (or 64, if asked to)."""
    for x in jax.tree.leaves(observation):
        if x.dtype.kind in "iu":
            limits = np.iinfo(jax.dtypes.canonicalize_dtype(x.dtype))
            wrong = (x < limits.min) | (x > limits.max)
            if wrong.any():
                yield f"observation has {x[wrong][0]}, which needs 64 bits; give float32"
