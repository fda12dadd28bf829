"""A trained agent from its run folder, without a runner."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax

from podracer import command
from podracer.agent import Agent, LearnerState
from podracer.agents import AGENTS, from_flags
from podracer.checkpoints.checkpoint import Checkpoints
from podracer.errors import UserError
from podracer.runs import run, run_folder, spec_json
from podracer.trained.weights import WEIGHTS, is_kept
from podracer.trained.weights import read as read_weights
from podracer.transformations import Interface


class Trained(NamedTuple):
    """An agent and what its actors need, from one checkpoint of a run."""

    run: run.StoredRun
    agent: Agent
    params: Any  # actor parameters, on one core
    observation_spec: Any
    action_spec: Any
    updates: int  # of the checkpoint; 0 where the parameters are those of a file


def restore(
    folder: str | Path,
    updates: int | None = None,
    agent: Agent | None = None,
    trust: bool = False,
    weights: str | Path | None = None,
) -> Trained:
    """Reads a run's agent.

    Args:
      folder: of the run.
      updates: of the checkpoint; default: the newest whole one.
      agent: the one that the run trained; default: made from the run's configuration,
        which is there if a command trained it.
      trust: import the modules of agent and network that the folder names.
      weights: a file of parameters, which replace those of a checkpoint; default: the
        folder's own, where it has no checkpoints.

    Raises:
      UserError: there is no run or no whole checkpoint, its configuration is damaged,
        another version wrote it, `agent` is another one, or `weights` are not its own.
    """
    if weights is not None and updates is not None:
        raise UserError("updates and weights: choose one, each says which parameters")
    stored = run.read_run(folder)
    if stored.is_of_meta_train:
        raise UserError(
            f"{folder}: a run of meta-train, which has no agent but a rule: anakin train "
            f"--agent lpg --update-rule {stored.folder / run_folder.RULE}"
        )
    if not stored.specs:
        raise UserError(
            f"{folder}: does not say what its agent sees: use the version that wrote it"
        )
    if agent is None and "script" in stored.config:
        raise UserError(
            f"{folder}: recorded by the script {stored.config['script']}: give the agent "
            "that it trained, podracer.load(RUN, agent=agent)"
        )
    if agent is None:
        run.check_trusted(stored, {"trust": trust}, AGENTS, lambda env: False)
    # A user's agent has been made for the types of the user's own environment.
    types = spec_json.users_named_tuple if agent else spec_json.named_tuple
    with _damaged(stored):
        names = "observation", "action"
        specs = [spec_json.decode(stored.specs[x], types) for x in names]
        agent = agent or _in_types_of(specs[0], _agent(stored, *specs))
        fresh = jax.eval_shape(agent.initial_learner_state, jax.random.key(0))
    trained = Trained(stored, agent, None, *specs, 0)
    shared = stored.folder / WEIGHTS
    has_checkpoints = (stored.folder / run_folder.CHECKPOINTS).exists()
    if updates is None and not has_checkpoints and shared.exists():
        weights = weights or shared
    if weights is None:
        return at(trained, updates, fresh)
    params = jax.eval_shape(agent.actor_params, fresh)
    if not all(map(is_kept, jax.tree.leaves(params))):  # the others are the run's
        params = at(trained, updates, fresh).params
    return trained._replace(params=read_weights(weights, params))


def at(trained: Trained, updates: int | None = None, fresh: Any = None) -> Trained:
    """The same agent with the parameters of a checkpoint; of the newest whole one for None.

    `fresh` is its learner state, as shapes, if they are known. Raises UserError as `restore`.
    """
    stored, agent = trained.run, trained.agent
    if fresh is None:
        fresh = jax.eval_shape(agent.initial_learner_state, jax.random.key(0))
    checkpoints = Checkpoints(stored.folder / run_folder.CHECKPOINTS)
    shared = checkpoints.restore_shared(fresh.shared, updates)

    # One program, so that no memory is allocated for what acting does not need: replay.
    @jax.jit
    def acting_params(key, shared):
        local = agent.initial_learner_state(key).local
        return agent.actor_params(LearnerState(shared, local))

    params = acting_params(jax.random.key(0), shared)
    return trained._replace(params=params, updates=checkpoints.restored_updates)


def _agent(stored: run.StoredRun, observation_spec: Any, action_spec: Any) -> Agent:
    """The agent of a run that a command trained."""
    config, algorithm = stored.config, from_flags.algorithm_named(stored.agent)
    make_network, default = from_flags.network_maker(stored.network, algorithm)
    of_agent = from_flags.upgraded(algorithm, config["agent"])
    of_agent = command.filled(algorithm.config, of_agent, "agent.")
    return from_flags.make_agent(
        from_flags.Parts(
            algorithm,
            from_flags.for_run(of_agent, config["total_steps"]),
            command.filled(default, config["network"], "network."),
            observation_spec,
            action_spec,
            command.filled(Interface(), config["interface"], "interface."),
            stored.specs["frame_stack"],
            make_network,
        )
    )


def _in_types_of(observation_spec: Any, agent: Agent) -> Agent:
    """The agent, which takes an environment's own NamedTuples for those of the spec."""

    def of(actor_step: Callable) -> Callable:
        def step(key: Any, params: Any, state: Any, timestep: Any) -> Any:
            seen = spec_json.in_types_of(observation_spec, timestep.observation)
            return actor_step(key, params, state, timestep._replace(observation=seen))

        return step

    return agent._replace(
        actor_step=of(agent.actor_step), greedy_actor_step=of(agent.greedy_actor_step)
    )


@contextlib.contextmanager
def _damaged(stored: run.StoredRun) -> Iterator[None]:
    """One line where no agent can be made of what `config.json` says, whatever fails."""
    path = stored.folder / run_folder.CONFIG
    jax.devices()  # where JAX cannot start, the run is not to blame
    try:
        yield
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    except Exception as error:
        reason = (str(error).strip().splitlines() or [""])[0][:100]
        raise UserError(
            f"{path}: damaged, no agent can be made of it "
            f"({type(error).__name__}: {reason})"
        ) from error
