"""Checks that an environment follows the protocol; one line names the broken rule."""

import os
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from envs_jax.environment import Environment, ProtocolError
from envs_jax.masks import allowed_actions
from envs_jax.wrappers import AutoReset, TimeLimit, Wrapper, unwrapped

COPIES = 8  # of a fair coin, all show the same side with probability 1 / 128
ROUNDING = 1e-6  # of a bound, by which real numbers may exceed it
# What Python's `if`, `while`, `int()` and `range()`, and functions of NumPy, raise for a
# value that JAX traces, and the way out.
_BRANCH = "use jnp.where or jax.lax.cond in place of `if`"
TRACED = {
    jax.errors.ConcretizationTypeError: _BRANCH,
    jax.errors.TracerIntegerConversionError: _BRANCH,
    jax.errors.TracerArrayConversionError: "use jnp in place of np",
}
METHODS = ("initial_state", "step", "observation_spec", "action_spec")


def check(
    environment: Environment,
    *,
    steps: int = 100,
    seed: int = 0,
    deterministic: bool = False,
) -> None:
    """Plays random actions, if masked allowed ones; raises `ProtocolError` for the first
    broken rule.

    Several copies take the same actions with different keys, under `AutoReset` and a time
    limit of half the steps, so that each is reset at least once. The first copy's steps are
    then repeated without `vmap`.

    Args:
      environment: a single environment, not a batch.
      steps: number of steps, at least 2; more steps cover more of the environment.
      seed: of the keys and the actions.
      deterministic: True if nothing may depend on the keys; if False, something must.
    """
    check_structure(environment)
    name = name_of(environment)
    actions = random_actions(environment.action_spec(), steps, seed)
    keys = jax.random.split(jax.random.key(seed), (COPIES, steps))
    machine = AutoReset(TimeLimit(allowed_actions(environment), steps // 2))
    play = jax.jit(lambda keys, actions: _play(machine, keys, actions))
    played = attempt(f"{name} in jit, vmap and scan", play, keys, actions)
    together, alone = jax.device_get(played)

    timesteps = together["timestep"]
    begins = np.insert(timesteps.last()[:, :-1], 0, True, axis=1)
    require_all(name, order_rules(timesteps, begins))
    require_all(name, timestep_rules(timesteps, environment.observation_spec()))
    require_all(name, _purity_rules(together, alone))
    alike = all(np.all(leaf == leaf[:1]) for leaf in jax.tree.leaves(timesteps))
    if alike != deterministic:
        outcome = "equal" if alike else "different"
        raise ProtocolError(
            f"{name}: {COPIES} keys give {outcome} timesteps, expected the opposite with "
            f"deterministic={deterministic}"
        )


def check_structure(environment: Environment) -> None:
    """Raises `ProtocolError` if specs, structures, shapes and dtypes do not agree.

    It traces but does not compile, and so is cheap enough to run before every training.
    """
    for _ in range(2):  # the first time, an attribute may be a cache that is filled
        before = _attributes(environment)
        _check_structure(environment)
        after = _attributes(environment)
        changed = [x for x in after if x not in before or after[x] is not before[x]]
        if not changed:
            return
    raise ProtocolError(
        f"{changed[0]} is set by initial_state or step, expected pure functions: keep in "
        "the state what changes"
    )


def _attributes(environment: Environment) -> dict[str, Any]:
    """The attributes of the environment and of those that it wraps."""
    layers = [environment]
    while isinstance(layers[-1], Wrapper):
        layers.append(layers[-1].environment)
    return {
        f"{type(layer).__name__}.{name}": value
        for layer in layers
        for name, value in getattr(layer, "__dict__", {}).items()
    }


def _check_structure(environment: Environment) -> None:
    name = name_of(environment)
    for method in METHODS:
        if not hasattr(environment, method):
            raise ProtocolError(f"{name}.{method} is missing")
        if not callable(getattr(environment, method)):
            raise ProtocolError(
                f"{name}.{method} is no method (a property?), expected one"
            )
    where = f"{name}.observation_spec"
    observation = _specs(where, environment.observation_spec, specs.Array)
    where = f"{name}.action_spec"
    action = _specs(where, environment.action_spec, specs.BoundedArray)
    for spec in jax.tree.leaves(action):
        if np.issubdtype(spec.dtype, np.integer) and spec.minimum.any():
            actual = f"integers from {spec.minimum.tolist()}"
            raise ProtocolError(f"{name}.action_spec has {actual}, expected from 0")

    scalar, number = specs.Array((), np.int32), specs.Array((), np.float32)
    timestep = dm_env.TimeStep(scalar, number, number, observation)
    action = jax.tree.map(lambda a: jax.ShapeDtypeStruct(a.shape, a.dtype), action)
    where, key = f"{name}.initial_state", jax.random.key(0)
    state, first = _trace(where, environment.initial_state, key)
    _require_equal(f"{where}: timestep", first, timestep)
    where = f"{name}.step"
    stepped, mid = _trace(where, environment.step, key, state, action)
    _require_equal(f"{where}: timestep", mid, timestep)
    _require_equal(f"{where}: state", stepped, state)
    if hasattr(unwrapped(environment), "succeeded"):
        where = f"{name}.succeeded"
        goal = attempt(where, jax.eval_shape, environment.succeeded, state)
        _require_equal(where, goal, specs.Array((), bool))


def _play(machine: AutoReset, keys: jax.Array, actions: Any) -> tuple[dict, dict]:
    """Records of all copies [copies, steps, ...] and of the first alone [1, steps, ...]."""

    def step(state, inputs):
        after, timestep = machine.step(inputs[0], state, inputs[1])
        return after, (state, after, timestep)

    def unroll(keys, actions):
        state, _ = machine.initial_state(keys[0])
        over = state._replace(last=jnp.bool_(True))  # so that the first step is a reset
        return jax.lax.scan(step, over, (keys, actions))[1]

    # Alone, each step starts from a state of `before`: rounding does not accumulate.
    before, *together = jax.vmap(unroll)(keys, actions)
    inputs = jax.tree.map(lambda leaf: leaf[0], (keys, before, actions))
    alone = jax.lax.map(lambda inputs: machine.step(*inputs), inputs)
    return _record(*together), _record(*jax.tree.map(lambda leaf: leaf[None], alone))


def _record(state: Any, timestep: dm_env.TimeStep) -> dict:
    """The environment's own state and the timestep, with typed keys as integers."""

    def numbers(leaf):
        is_key = jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        return jax.random.key_data(leaf) if is_key else leaf

    return jax.tree.map(numbers, {"state": state.inner.inner, "timestep": timestep})


# (field, expectation, whether it holds [copies, steps, ...], values of that shape)
Rules = Iterator[tuple[str, str, np.ndarray, np.ndarray]]


def order_rules(timesteps: dm_env.TimeStep, begins: np.ndarray) -> Rules:
    """`begins` [copies, steps]: where an episode does."""
    follows = timesteps.first() == begins
    yield "step_type", "0 (FIRST) from initial_state only", follows, timesteps.step_type


def timestep_rules(timesteps: dm_env.TimeStep, observation_spec: Any) -> Rules:
    """What holds of each timestep, whatever is before and after it."""
    step_type, reward, discount, observation = timesteps
    first = timesteps.first()
    named, unit = np.isin(step_type, (0, 1, 2)), (0 <= discount) & (discount <= 1)
    yield "step_type", "0 (FIRST), 1 (MID) or 2 (LAST)", named, step_type
    yield "reward", "a finite number", np.isfinite(reward), reward
    yield "reward", "0 at FIRST", (reward == 0) | ~first, reward
    yield "discount", "0 to 1", unit, discount
    yield "discount", "1 at FIRST", (discount == 1) | ~first, discount
    yield from _observation_rules(observation, observation_spec)


def _observation_rules(observation: Any, observation_spec: Any) -> Rules:
    for (path, values), spec in zip(
        jax.tree_util.tree_leaves_with_path(observation),
        jax.tree.leaves(observation_spec),
    ):
        field = "observation" + jax.tree_util.keystr(path)
        yield field, "a finite number", np.isfinite(values), values
        if isinstance(spec, specs.BoundedArray):
            low, high = np.float64(spec.minimum), np.float64(spec.maximum)
            if np.issubdtype(spec.dtype, np.floating):  # a cosine may be 1 + 1e-7
                low, high = low - ROUNDING * np.abs(low), high + ROUNDING * np.abs(high)
            within = (low <= values) & (values <= high)
            bounds = f"{np.min(spec.minimum):g} to {np.max(spec.maximum):g}"
            yield field, f"a value within the spec's bounds, {bounds}", within, values


def _purity_rules(together: dict, alone: dict) -> Rules:
    for (path, expected), values in zip(
        jax.tree_util.tree_leaves_with_path(together), jax.tree.leaves(alone)
    ):
        tolerance = 1e-4 if jnp.issubdtype(values.dtype, jnp.floating) else 0
        same = np.isclose(values, expected[:1], tolerance, tolerance, equal_nan=True)
        rule = "the same from the same inputs, batched or not"
        yield path[0].key + jax.tree_util.keystr(path[1:]), rule, same, values


def require_all(name: str, rules: Rules) -> None:
    for field, rule, holds, values in rules:
        if not holds.all():
            index = tuple(np.argwhere(~holds)[0].tolist())
            element = f"[{', '.join(map(str, index[2:]))}]" if index[2:] else ""
            raise ProtocolError(
                f"{name}: {field}{element} of timestep {index[1]} is {values[index]}, "
                f"expected {rule}"
            )


def _specs(where: str, method: Callable, kind: type) -> Any:
    """The specs that `method` returns, all of that kind."""
    tree = attempt(where, method)
    for spec in jax.tree.leaves(tree) or [tree]:
        if not isinstance(spec, kind):
            actual, expected = type(spec).__name__, kind.__name__
            raise ProtocolError(f"{where} has {actual}, expected dm_env's {expected}")
    return tree


def _require_equal(where: str, actual: Any, expected: Any) -> None:
    """Raises unless two trees of arrays or specs agree in structure, shapes and dtypes."""
    ours, theirs = _leaves(actual), _leaves(expected)
    paths = [(p, ours.get(p, "absent"), theirs.get(p, "absent")) for p in theirs | ours]
    whole = ("", jax.tree.structure(actual), jax.tree.structure(expected))
    for path, one, other in (*paths, whole):
        if one != other:
            raise ProtocolError(f"{where}{path} is {one}, expected {other}")


def _leaves(tree: Any) -> dict[str, str]:
    """For example {".reward": "float32[]"}."""
    return {
        jax.tree_util.keystr(path): f"{leaf.dtype}{list(leaf.shape)}"
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def _trace(where: str, function: Callable, *inputs: Any) -> tuple[Any, dm_env.TimeStep]:
    result = attempt(where, jax.eval_shape, function, *inputs)
    match result:
        case (_, dm_env.TimeStep()):
            return result
    kind = type(result).__name__
    raise ProtocolError(f"{where} returns {kind}, expected (state, dm_env.TimeStep)")


def attempt(where: str, function: Callable, *inputs: Any) -> Any:
    try:
        return function(*inputs)
    except Exception as error:
        reason = next(iter(str(error).splitlines()), "")
        reason = f"{type(error).__name__}: {reason}"
        for kind, way_out in TRACED.items():
            if isinstance(error, kind):
                reason += f"{_place(error)}: {way_out}"
        raise ProtocolError(f"{where}: {reason}") from error


def _place(error: Exception) -> str:
    """The line of an environment that raised an error of JAX's."""
    jaxs = os.path.dirname(jax.__file__)
    frames = traceback.extract_tb(error.__traceback__)
    theirs = [x for x in frames if not x.filename.startswith(jaxs) and x.line]
    return f" ({theirs[-1].filename}:{theirs[-1].lineno})" if theirs else ""


def random_actions(action_spec: Any, steps: int, seed: int) -> Any:
    """[COPIES, steps, ...], equal in all copies, uniform within the bounds.

    A float's bound that is infinite or beyond 1,000 is replaced by one at distance 1 from
    the valid value nearest to 0.
    """
    random = np.random.default_rng(seed)

    def sample(spec):
        shape, low, high = (steps, *spec.shape), spec.minimum, spec.maximum
        if np.issubdtype(spec.dtype, np.integer):
            actions = random.integers(low, high, shape, spec.dtype, endpoint=True)
        else:
            nearest = np.clip(0.0, low, high)
            low = np.where(low < -1e3, nearest - 1, low)
            high = np.where(high > 1e3, nearest + 1, high)
            actions = random.uniform(low, high, shape).astype(spec.dtype)
        return np.broadcast_to(actions, (COPIES, *shape))

    return jax.tree.map(sample, action_spec)


def name_of(environment: Environment) -> str:
    """For example "AutoReset(TimeLimit(CartPole))"."""
    name = type(environment).__name__
    inner = getattr(environment, "environment", None)
    return name if inner is None else f"{name}({name_of(inner)})"
