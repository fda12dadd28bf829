"""A trained agent that acts, without a runner: `podracer.load(RUN)`."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dm_env
import jax
import numpy as np

from podracer import starts
from podracer.agent import Agent
from podracer.errors import UserError, check_at_least_one, check_seed
from podracer.runs import spec_json
from podracer.trained import inputs
from podracer.trained.loading import Trained, restore

FIRST, MID, _ = dm_env.StepType


def load(
    folder: str | Path | None = None,
    *,
    agent: Agent | None = None,
    updates: int | None = None,
    batch_size: int | None = None,
    greedy: bool = True,
    seed: int = 0,
    trust: bool = False,
    weights: str | Path | None = None,
) -> "Policy":
    """The policy of a run: `act = podracer.load(RUN); action = act(observation)`.

    Args:
      folder: of the run.
      agent: the one that the run trained; needed where a script trained it.
      updates: of the checkpoint; default: the newest whole one.
      batch_size: number of environments that act together; default: one, without a
        batch axis.
      greedy: act without exploration.
      seed: of sampled actions.
      trust: import the modules of agent and network that the folder names, if they are
        not our own.
      weights: a file of parameters that `podracer export` has written, of this run or of
        one with the same agent and spaces; they replace those of a checkpoint.

    Raises:
      UserError: there is no run, no whole checkpoint, or it is of another agent; the
        weights are not those of this agent; a number is out of range.
    """
    if folder is None:
        raise UserError(
            "which run? podracer.load(RUN, weights=FILE): the run's folder says how the "
            "agent is built, a file of weights does not"
        )
    check_at_least_one(batch_size=batch_size)
    check_seed(seed)
    trained = restore(folder, updates, agent, trust, weights)
    return Policy(trained, batch_size, greedy, seed)


class Policy:
    """Acts, and remembers what its agent remembers of an episode (frames, an LSTM).

    It speaks the environment's own language: choices begin where its spaces do, `start` of
    the specs. `params` are the actor parameters, for `anakin.evaluate(agent, params,
    environment)`.
    """

    def __init__(
        self, trained: Trained, batch_size: int | None, greedy: bool, seed: int
    ):
        agent = trained.agent
        self.observation_spec, self.action_spec = trained[3:5]
        self.params = trained.params
        self._single, self._batch_size = batch_size is None, batch_size or 1
        self._key = jax.random.key(seed)
        actor_step = agent.greedy_actor_step if greedy else agent.actor_step
        self._step: Callable = jax.jit(actor_step)
        self._actor_state = agent.initial_actor_state(self._batch_size)
        self._steps = 0
        self._used = inputs.used(
            actor_step, trained.params, self._actor_state, self._timestep()
        )
        self.reset()

    def reset(self) -> None:
        """The next observation begins new episodes."""
        self._first = np.ones(self._batch_size, bool)

    def __call__(
        self, observation: Any, first: Any = None, reward: Any = None
    ) -> np.ndarray:
        """The actions for an observation, both as the environment has them.

        Args:
          observation: [B, ...], or [...] without a batch; a tree where the spec is one, in
            which entries may be missing that no action depends on (what a privileged critic
            sees, `network.value_sees`).
          first: bool [B], which of them begin an episode; default: none, except in the
            first call and after `reset`.
          reward: float [B], of the step that led to the observation, as the environment
            gave it; ignored where an episode begins. Only agents whose actions depend on
            it need one (`network.last_reward`).

        Raises:
          ValueError: the observation does not fit the spec.
          UserError: the agent needs `reward`, and it is missing or of another shape.
        """
        observation = self._batched(observation)
        begins = self._first if first is None else first
        begins = np.broadcast_to(begins, self._first.shape)
        timestep = self._timestep()._replace(
            step_type=np.where(begins, FIRST, MID).astype(np.int32),
            reward=self._reward(reward, begins),
            observation=observation,
        )
        self._first = np.zeros(self._batch_size, bool)
        self._steps += 1
        key = jax.random.fold_in(self._key, self._steps)
        keys = jax.random.split(key, self._batch_size)
        self._actor_state, output = self._step(
            keys, self.params, self._actor_state, timestep
        )
        action = jax.tree.map(
            lambda spec, x: starts.own(spec, np.asarray(x, spec.dtype)),
            self.action_spec,
            output.action,
        )
        return jax.tree.map(lambda x: x[0], action) if self._single else action

    def _timestep(self) -> dm_env.TimeStep:
        """Of the right shapes, all zeros."""
        size = self._batch_size
        return dm_env.TimeStep(
            np.zeros(size, np.int32),
            np.zeros(size, np.float32),
            np.ones(size, np.float32),
            jax.tree.map(
                lambda spec: np.zeros((size, *spec.shape), spec.dtype),
                self.observation_spec,
            ),
        )

    def _reward(self, reward: Any, begins: np.ndarray) -> np.ndarray:
        """[B], 0 where an episode begins. Raises UserError rather than guess."""
        if reward is None:
            if self._used.reward and not begins.all():
                raise UserError(
                    "reward is missing: the actions of this agent depend on the last "
                    "reward; call act(observation, reward=...), or act.reset() if an "
                    "episode begins"
                )
            reward = 0.0
        shape = np.shape(reward)
        if shape not in ((), begins.shape):
            raise UserError(f"reward is {shape}; it must be {begins.shape}")
        return np.where(begins, 0.0, np.asarray(reward, np.float32)).astype(np.float32)

    def _batched(self, observation: Any) -> Any:
        """[B, ...] in the spec's structure and types. Raises ValueError if it cannot be."""
        batch = () if self._single else (self._batch_size,)

        def batched(path: Any, spec: Any, x: np.ndarray) -> np.ndarray:
            if x.shape != (*batch, *spec.shape):
                part = f"'s {jax.tree_util.keystr(path)}" if path else ""
                raise ValueError(
                    f"an observation{part} is {x.shape}; this agent sees "
                    f"{(*batch, *spec.shape)} {spec.dtype}"
                )
            return x[None] if self._single else x

        observation = inputs.filled(
            self.observation_spec, self._used.observation, observation, batch
        )
        tree = spec_json.as_spec(self.observation_spec, observation)
        return jax.tree.map_with_path(batched, self.observation_spec, tree)
