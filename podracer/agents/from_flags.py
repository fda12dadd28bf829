"""Agents from flags and run folders: chosen by name, and made for an environment."""

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from dm_env import specs

from podracer import command, imports, networks, transformations
from podracer.agent import FAILED, Agent, Key, Trajectory
from podracer.agents import AGENTS, algorithm
from podracer.agents.algorithm import Algorithm, Preset
from podracer.errors import UserError, nearest
from podracer.networks import masks
from podracer.networks.policies import Categorical
from podracer.transformations import Interface, normalizer, ranges
from podracer.transformations.learning import with_learning
from podracer.transformations.replay import Config as Replay
from podracer.transformations.replay import replay as replaying

AGENT = "the algorithm, or MODULE: one of your own with Config and make_agent"
NETWORK = (
    "MODULE:FUNCTION that makes the network: (observation_spec, action_spec) -> it"
)
PRESET = "hyperparameters to start from, published ones or ours"

NOTHING_ALLOWED = FAILED + (
    "the environment's action_mask allows no action in the middle of an episode: correct the "
    "environment"
)

# (observation_spec, action_spec, config) -> Network
MakeNetwork = Callable[[Any, specs.Array, Any], Any]


class Parts(NamedTuple):
    """What an agent for an environment is made of."""

    algorithm: Algorithm
    config: Any  # the algorithm's own
    network: Any  # the network's configuration
    observation_spec: Any  # of the environment
    action_spec: specs.Array  # of the environment
    interface: Interface = Interface()  # what is normalized, scaled and clipped
    frame_stack: int = 1  # number of frames that the agent sees at once
    make_network: MakeNetwork | None = None  # None: the algorithm's own
    replay: Replay = Replay()  # trajectories to learn from again
    unroll_length: int = 1  # of these trajectories


class Chosen(NamedTuple):
    """An agent and its network, as the flags name them."""

    name: str  # --agent
    algorithm: Algorithm
    network: str | None  # --network; None: the built-in one
    make_network: MakeNetwork
    preset: Preset  # hyperparameters to start from
    flags: tuple[command.Choice, ...]  # for --help


def choose(
    agent: str | None,
    preset: str | None,
    network: str | None,
    *,
    unroll_length: int,
    batch_size: int,
) -> Chosen:
    """The agent `agent` with the hyperparameters of a preset, or its defaults.

    Args:
      agent: of `AGENTS`, or a module of the user's own; None: impala.
      preset: of the agent's; None: its `PRESETS["none"]`, or its defaults and the two below.
      network: `MODULE:FUNCTION`; None: the agent's own, or `networks.actor_critic`.
      unroll_length: without a preset.
      batch_size: without a preset.

    Raises:
      UserError: a name is unknown, or a user's own module does not provide what it must.
    """
    name = "impala" if agent is None else agent
    chosen = algorithm_named(name)
    default = Preset(chosen.config, unroll_length, batch_size)
    presets = {"none": default, **chosen.presets}
    preset = preset or "none"
    names = [*presets, preset] if preset in chosen.renamed else [*presets]
    choice = command.make_choice("preset", preset, names, PRESET)
    start = presets[chosen.renamed.get(preset, preset)]
    make_network, config = network_maker(network, chosen)
    if network is not None or start.network is None:
        start = start._replace(network=config)
    known = tuple(AGENTS) if name in AGENTS else ()
    flags = (
        command.Choice("agent", name, known, AGENT),
        choice,
        command.Choice("network", network, (), NETWORK),
    )
    return Chosen(name, chosen, network, make_network, start, flags)


def algorithm_named(name: str) -> Algorithm:
    """An algorithm of `AGENTS`, or of a user's own module.

    Raises UserError where there is none of that name, and as `algorithm.of`.
    """
    if name in AGENTS:
        return algorithm.of(AGENTS[name])
    imports.refuse_file(name, "--agent")
    if not imports.exists(name):
        raise UserError(
            f"--agent: unknown name {name!r}{nearest(name, AGENTS)}; or a module of your "
            "own, in the current folder or installed"
        )
    return algorithm.of(imports.module(name, "--agent"))


def network_maker(path: str | None, chosen: Algorithm) -> tuple[MakeNetwork, Any]:
    """What makes a network, and its configuration at the defaults.

    Args:
      path: `MODULE:FUNCTION`, whose function takes an environment's two specs and, if it
        has a third parameter whose default is a dataclass, that; None: the built-in one.
      chosen: where it has such a function `make_network`, that is the built-in one, and
        networks are of any kind that the agent accepts.

    Raises:
      UserError: there is no such function.
    """
    own = chosen.make_network
    kind = networks.Network if own is None else object
    given = path is not None
    if path is None:
        path, function = f"{chosen.name}.make_network", own or networks.actor_critic
    else:
        function = imports.resolve(path, "--network")
    try:
        parameters = [*inspect.signature(function).parameters.values()]
        inspect.signature(function).bind(None, None)
    except (TypeError, ValueError):
        raise UserError(
            f"--network: {path} must be a function of (observation_spec, action_spec)"
        ) from None
    config = parameters[2].default if len(parameters) > 2 else None
    has_flags = dataclasses.is_dataclass(config) and not isinstance(config, type)

    def make(observation_spec: Any, action_spec: specs.Array, config: Any):
        arguments = (observation_spec, action_spec, *([config] if has_flags else []))
        try:
            network = function(*arguments)
        except UserError:
            raise
        except Exception as error:
            if not given:
                raise
            raise UserError(
                f"--network: {path} fails: {imports.describe(error)}"
            ) from error
        if not isinstance(network, kind):
            raise UserError(
                f"--network: {path} gives {type(network).__name__}; it must be "
                "podracer.networks.Network"
            )
        if given and chosen.name.startswith(f"{__package__}.") and own is None:
            where = f"--network: {path}"
            _check_predictions(where, network, observation_spec, action_spec)
        return network

    return make, config if has_flags else imports.NoOptions()


def _check_predictions(
    where: str, network: Any, observation_spec: Any, action_spec: specs.Array
) -> None:
    """Raises UserError unless a network predicts what our agents learn from. Only traces."""
    size = 2
    arrays = jax.tree.map(
        lambda x: jax.ShapeDtypeStruct((size, *x.shape), x.dtype),
        (
            specs.Array((), np.int32),
            specs.Array((), np.float32),
            specs.Array((), np.float32),
            observation_spec,
        ),
    )

    def step(timestep: dm_env.TimeStep) -> Any:
        params = network.init(jax.random.key(0))
        return network.step(params, network.initial_memory(size), timestep)

    try:
        result = jax.eval_shape(step, dm_env.TimeStep(*arrays))
    except Exception as error:
        raise UserError(f"{where}: step fails: {imports.describe(error)}") from error
    wanted = "networks.Predictions(policy, value)"
    if not isinstance(result, tuple) or len(result) != 2:
        kind = type(result).__name__
        raise UserError(f"{where}: step gives {kind}; it must be (memory, {wanted})")
    predictions = result[1]
    if not isinstance(predictions, networks.Predictions):
        kind = type(predictions).__name__
        raise UserError(f"{where}: predicts {kind}; it must be {wanted}")
    if not hasattr(predictions.policy, "log_prob"):
        kind = type(predictions.policy).__name__
        raise UserError(
            f"{where}: its policy is {kind}; it must be a policy of podracer.networks, as "
            "policies.Categorical(logits)"
        )
    _check_choices(where, predictions.policy, action_spec)
    if (shape := getattr(predictions.value, "shape", None)) != (size,):
        raise UserError(
            f"{where}: its value is {shape} for {size} timesteps; it must be ({size},), as "
            "value[..., 0] of a layer with one unit"
        )


def _check_choices(where: str, policy: Any, action_spec: specs.Array) -> None:
    """Raises UserError for another number of logits than the action has choices.

    With fewer of them, a run would never try the last actions, and nothing else would say so.
    """
    if isinstance(policy, Categorical) and isinstance(action_spec, specs.DiscreteArray):
        has, choices = policy.logits.shape[-1], int(action_spec.num_values)
        if has != choices:
            raise UserError(
                f"{where}: its policy has {has} logits; the environment has {choices} "
                "actions: give it action_spec.num_values logits"
            )


def upgraded(chosen: Algorithm, values: Any) -> Any:
    """What a config.json has of the agent's Config, as of today; `command.filled` checks it."""
    return chosen.upgraded(values) if isinstance(values, Mapping) else values


def for_run(config: Any, total_steps: int) -> Any:
    """An agent's config with the length of the run, if it has a place for that."""
    if not algorithm.has(config, "total_steps") or config.total_steps:
        return config
    return dataclasses.replace(config, total_steps=total_steps)


def with_numbers(config: Any, numbers: Mapping[str, Any]) -> Any:
    """A config with other hyperparameters, which may be traced.

    Made without `__post_init__`, whose checks need concrete values.
    """
    made = object.__new__(type(config))
    for field in dataclasses.fields(config):
        value = numbers.get(field.name, getattr(config, field.name))
        object.__setattr__(made, field.name, value)  # as a frozen one's own __init__
    return made


def make_agent(parts: Parts) -> Agent:
    """The agent for an environment, with pre- and post-processing and replay.

    Raises UserError for parts that do not fit together.
    """
    observation_spec, action_spec = parts.observation_spec, parts.action_spec
    interface, frame_stack = parts.interface, parts.frame_stack
    config, network = parts.config, parts.network
    if parts.replay.capacity:
        check_off_policy(parts.algorithm)
        config = with_learned_steps(config, parts.replay)
    make_network = parts.make_network or network_maker(None, parts.algorithm)[0]
    last_action = algorithm.has(network, "last_action") and network.last_action
    frame_spec = observation_spec
    if interface.scale_observations or interface.normalize_observations:
        frame_spec = ranges.scaled_spec(observation_spec)
    spec = frame_spec
    if frame_stack > 1:
        spec = transformations.stacked_spec(spec, frame_stack)
    inner_actions = action_spec
    continuous = ranges.has_floats(action_spec)
    if continuous and interface.actions == "scale":
        inner_actions = ranges.scaled_action_spec(action_spec)
    if last_action:
        spec = (spec, inner_actions)
    network = make_network(spec, inner_actions, network)
    agent = parts.algorithm.make_agent(config, network)
    if not isinstance(agent, Agent):
        raise UserError(
            f"--agent: {parts.algorithm.name}.make_agent gives {type(agent).__name__}; it "
            "must be podracer.agent.Agent"
        )
    # From the agent outwards: the last of these sees what the environment gives.
    if last_action:
        agent = transformations.observe_last_action(agent, inner_actions)
    if frame_stack > 1:
        agent = transformations.stack_frames(agent, frame_stack, frame_spec)
    if interface.normalize_rewards:
        if not algorithm.has(config, "discount_factor"):
            raise UserError(
                "normalize_rewards needs the agent's discount_factor, which "
                f"{parts.algorithm.name}.Config does not have"
            )
        agent = normalizer.normalize_rewards(agent, config.discount_factor)
    if interface.normalize_observations:
        seen = frame_spec if interface.scale_observations else observation_spec
        agent = normalizer.normalize_observations(agent, seen)
    if interface.scale_observations:
        agent = ranges.scale_observations(agent, observation_spec)
    if continuous:
        bounded = {"scale": ranges.scale_actions, "clip": ranges.clip_actions}
        agent = bounded[interface.actions](agent, action_spec)
    agent = refuse_empty_masks(agent, observation_spec, action_spec)
    return replaying(agent, parts.replay, observation_spec, parts.unroll_length)


def refuse_empty_masks(agent: Agent, observation_spec: Any, action_spec: Any) -> Agent:
    """The agent, whose learner stops the run where a mask allows no action."""
    nothing_allowed = masks.find_nothing_allowed(observation_spec, action_spec)
    if nothing_allowed is None:
        return agent

    def wrap(step: Callable) -> Callable:
        def learn(key: Key, learner_state: Any, trajectory: Trajectory, *weight: Any):
            results = step(key, learner_state, trajectory, *weight)
            learner_state, metrics, *priority = results
            count = jnp.sum(nothing_allowed(trajectory.timesteps).astype(jnp.float32))
            return learner_state, metrics | {NOTHING_ALLOWED: count}, *priority

        return learn

    return with_learning(agent, wrap)


def check_off_policy(chosen: Algorithm) -> None:
    """Raises UserError for an agent that learns from its own newest trajectories only."""
    if not chosen.off_policy:
        known = [x for x, module in AGENTS.items() if algorithm.of(module).off_policy]
        raise UserError(
            f"replay.capacity is above 0, but {chosen.name} does not say OFF_POLICY = True: "
            f"it may not correct for stale data; choose 0, or another agent "
            f"({', '.join(known)})"
        )


def with_learned_steps(config: Any, replay: Replay) -> Any:
    """An agent's config whose total_steps counts what is learned from, replayed or not."""
    if not algorithm.has(config, "total_steps") or not config.total_steps:
        return config
    total = round(config.total_steps * replay.learned_per_insert)
    return with_numbers(config, {"total_steps": total})
