"""All of what acting computes as one function of arrays: a program, before it is written.

From an environment's own observation to its own action: preprocessing is inside, memory a state
in and out. Inputs that change no action, now or later, are left out.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from jax.extend import core
from jax.interpreters import partial_eval

from podracer import exported, starts
from podracer.errors import UserError
from podracer.observations import named
from podracer.runs import spec_json
from podracer.trained import inputs
from podracer.trained.loading import Trained

BATCH = "batch"  # in a shape: any number of environments
FIRST, MID, _ = dm_env.StepType


class Program(NamedTuple):
    """What acting computes, and what its arrays are called."""

    # (weights, inputs) -> outputs: the actions, and the state after
    act: Callable[[Sequence[Any], Sequence[Any]], list[jax.Array]]
    weights: list[np.ndarray]
    header: dict[str, Any]  # see docs/export.md


class Arguments(NamedTuple):
    """All that acting may depend on, for a batch of B environments."""

    weights: Any  # the actor parameters
    key: Any  # uint32 [2], the seed and the number of the step, from 1
    state: Any  # [B, ...] the actor state
    first: Any  # bool [B], which environments begin an episode
    reward: Any  # float32 [B], as the environment gave it; anything where one begins
    observation: Any  # [B, ...] in the environment's own numbers


def make_program(trained: Trained, greedy: bool) -> Program:
    """The program of a run's policy, `greedy` or sampled.

    Raises UserError for choices that the program's integers cannot count.
    """
    example = _example(trained)
    leaves, structure = jax.tree.flatten(example)
    names = [
        *named(example.weights),
        "key",
        *(f"state.{i}" for i in range(len(jax.tree.leaves(example.state)))),
        "first",
        "reward",
        *exported.named("observation", example.observation),
    ]
    key, states = len(jax.tree.leaves(example.weights)), names.index("first")
    actions = len(jax.tree.leaves(trained.action_spec))
    step = _step(trained, greedy)

    def whole(*leaves: Any) -> list[Any]:
        state, action = step(structure.unflatten(leaves))
        return [*jax.tree.leaves(state), *jax.tree.leaves(action)]

    jaxpr = jax.make_jaxpr(whole)(*leaves).jaxpr
    needed = inputs.needed(jaxpr, key + 1, states - key - 1, actions)
    needed[key] &= not greedy  # a search that draws numbers draws the same at each step
    if not any(needed[key + 1 :]):
        needed[states] = True  # `first` says how many environments there are
    outputs = [*needed[key + 1 : states], *[True] * actions]

    def act(weights: Sequence[Any], inputs: Sequence[Any]) -> list[jax.Array]:
        batch = inputs[-1].shape[0]  # the key is the first
        given = iter([*weights, *inputs])
        filled = [
            next(given) if is_needed else _zeros(leaf, batch if i > key else None)
            for i, (leaf, is_needed) in enumerate(zip(leaves, needed))
        ]
        closed = jax.make_jaxpr(whole)(*filled)
        pruned, used = partial_eval.dce_jaxpr(closed.jaxpr, outputs)
        function = core.jaxpr_as_fun(core.ClosedJaxpr(pruned, closed.consts))
        results = function(*(x for x, is_used in zip(filled, used) if is_used))
        return [*results[-actions:], *results[:-actions]]

    kept = [(names[i], leaves[i], i) for i, is_needed in enumerate(needed) if is_needed]
    weights = [(name, np.asarray(x)) for name, x, i in kept if i < key]
    of_action = exported.named("action", trained.action_spec).items()
    header = {
        "agent": trained.run.agent,
        "env": trained.run.env,
        "updates": trained.updates,
        "actions": "greedy" if greedy else "sampled",
        "jax": jax.__version__,
        "observation_spec": spec_json.encode(trained.observation_spec),
        "action_spec": spec_json.encode(trained.action_spec),
        "inputs": [_input(name, x) for name, x, i in kept if i >= key],
        "outputs": [
            *(_array(name, _dtype(x), BATCH, *x.shape) for name, x in of_action),
            *(
                _array(f"next_{name}", x.dtype, BATCH, *x.shape[1:])
                for name, x, i in kept
                if key < i < states
            ),
        ],
        "weights": [_array(name, x.dtype, *x.shape) for name, x in weights],
    }
    return Program(act, [x for _, x in weights], header)


def _example(trained: Trained) -> Arguments:
    """Of two environments, at the start of an episode."""
    return Arguments(
        trained.params,
        jnp.zeros(2, jnp.uint32),
        trained.agent.initial_actor_state(2),
        jnp.ones(2, bool),
        jnp.zeros(2),
        jax.tree.map(
            lambda spec: jnp.zeros((2, *spec.shape), _dtype(spec)),
            trained.observation_spec,
        ),
    )


def _step(trained: Trained, greedy: bool) -> Callable[[Arguments], tuple[Any, Any]]:
    """(arguments) -> (actor state, action in the environment's own numbers).

    As `podracer.load`'s policy calls the agent, key by key.
    """
    agent = trained.agent
    actor_step = agent.greedy_actor_step if greedy else agent.actor_step

    def from_own(spec: Any, x: jax.Array) -> jax.Array:
        return x - _start(spec, x.shape) if starts.of(spec).any() else x

    def to_own(spec: Any, x: jax.Array) -> jax.Array:
        x = x.astype(_dtype(spec))
        return x + _start(spec, x.shape) if starts.of(spec).any() else x

    def step(arguments: Arguments) -> tuple[Any, Any]:
        params, (seed, number), state, first, reward, observation = arguments
        key = jax.random.fold_in(jax.random.key(seed), number)
        timestep = dm_env.TimeStep(
            jnp.where(first, jnp.int32(FIRST), jnp.int32(MID)),
            jnp.where(first, 0.0, reward),
            jnp.ones_like(reward),
            jax.tree.map(from_own, trained.observation_spec, observation),
        )
        keys = jax.random.split(key, reward.shape[0])
        state, output = actor_step(keys, params, state, timestep)
        return state, jax.tree.map(to_own, trained.action_spec, output.action)

    return step


def _dtype(spec: Any) -> np.dtype:
    """Of the program's arrays: JAX has no 64 bits unless it is told to."""
    return jax.dtypes.canonicalize_dtype(spec.dtype)


def _start(spec: Any, shape: Any) -> jax.Array:
    """What the environment's own numbers begin with, in the program's integers."""
    start, most = starts.of(spec), np.iinfo(_dtype(spec))
    if (start < most.min).any() or (start + spec.maximum > most.max).any():
        raise UserError(
            f"choices begin with {start.min()}, beyond a program's {most.dtype}: count them "
            "from another number in the environment"
        )
    return jnp.broadcast_to(start.astype(_dtype(spec)), shape)


def _zeros(example: jax.Array, batch: Any) -> jax.Array:
    """In place of an input on which no action depends; batch None: it has no such axis."""
    shape = example.shape if batch is None else (batch, *example.shape[1:])
    return jnp.zeros(shape, example.dtype)


def _array(name: str, dtype: np.dtype, *shape: Any) -> dict[str, Any]:
    return {"name": name, "dtype": dtype.name, "shape": [*shape]}


def _input(name: str, example: jax.Array) -> dict[str, Any]:
    """An input; of a state, with what it is before the first step of one environment."""
    if name == "key":
        return _array(name, example.dtype, *example.shape)
    described = _array(name, example.dtype, BATCH, *example.shape[1:])
    if not name.startswith("state."):
        return described
    one = np.asarray(example)[0]
    equal = one.size and (one == one.flat[0]).all()
    return described | {"initial": (one.flat[0] if equal else one).tolist()}


def first_line(error: Exception) -> str:
    """What a library says, for an error of ours."""
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
