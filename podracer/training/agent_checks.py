"""Checks what an agent's functions return: rows for B environments, states that stay alike."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from podracer.agent import FAILED, ActorOutput, Agent, LearnerState, Metrics, PyTree
from podracer.errors import UserError


def checked_initial(actor_state: PyTree, batch_size: int) -> PyTree:
    """What `initial_actor_state(batch_size)` gave.

    Raises UserError for a leaf without a row for each environment.
    """
    _check_rows(f"initial_actor_state({batch_size})", actor_state, batch_size)
    return actor_state


def check_initial(agent: Agent, batch_size: int) -> None:
    """Raises UserError as `checked_initial`, without computing anything."""
    jax.eval_shape(
        lambda: checked_initial(agent.initial_actor_state(batch_size), batch_size)
    )


def check_step(
    actor_state: PyTree, output: Any, before: PyTree, batch_size: int
) -> None:
    """Raises UserError if `actor_step` gave no ActorOutput, or another kind of actor state.

    And for extras without a row for each environment; the environment checks the action.

    Args:
      actor_state, output: what it gave.
      before: the actor state that it was given.
      batch_size: B.
    """
    if not isinstance(output, ActorOutput):
        kind = "an array" if hasattr(output, "shape") else type(output).__name__
        raise UserError(
            f"actor_step gave {kind} as its second result; it must return (actor_state, "
            "ActorOutput): correct the agent"
        )
    _check_rows("actor_step: extras", output.extras, batch_size)
    check_alike("actor_step: the actor state", before, actor_state, "agent")


def checked_update(results: Any, before: LearnerState) -> tuple[LearnerState, Metrics]:
    """What `learner_step` returned, given the state `before`.

    Raises UserError unless it is a state like that one, and a dictionary of scalars.
    """
    wanted = "it must return (LearnerState, metrics): correct the agent"
    if isinstance(results, LearnerState) or not _is_pair(results):
        raise UserError(f"learner_step gave {type(results).__name__}; {wanted}")
    learner, metrics = results
    if not (isinstance(learner, LearnerState) and isinstance(metrics, dict)):
        gave = ", ".join(type(x).__name__ for x in results)
        raise UserError(f"learner_step gave ({gave}); {wanted}")
    check_alike("learner_step: the learner state", before, learner, "agent")
    for name, x in metrics.items():
        if np.shape(x) and not name.startswith(FAILED):
            raise UserError(
                f"learner_step: the metric {name!r} has shape {np.shape(x)}; it must be a "
                "scalar, such as a mean: correct the agent"
            )
    return learner, metrics


def check_alike(what: str, before: PyTree, after: PyTree, whose: str) -> None:
    """Raises UserError where a step changes the shape, dtype or structure of a tree."""
    old, new = _leaves(before), _leaves(after)
    for name in old | new:
        had, has = (_kind(x[name]) if name in x else "missing" for x in (old, new))
        if had != has:
            raise UserError(
                f"{what}{name} is {had} before a step and {has} after it; it must stay as "
                f"it was: correct the {whose}"
            )


def _check_rows(what: str, tree: PyTree, batch_size: int) -> None:
    for name, x in _leaves(tree).items():
        if np.shape(x)[:1] != (batch_size,):
            raise UserError(
                f"{what}{name} has shape {np.shape(x)}; it must have {batch_size} rows, "
                "one for each environment: correct the agent"
            )


def _leaves(tree: PyTree) -> dict[str, Any]:
    """A tree's leaves by their path."""
    return {
        jax.tree_util.keystr(path): x
        for path, x in jax.tree_util.tree_leaves_with_path(tree)
    }


def _kind(x: Any) -> str:
    return f"{jnp.result_type(x)} {np.shape(x)}"


def _is_pair(x: Any) -> bool:
    return isinstance(x, tuple) and len(x) == 2
