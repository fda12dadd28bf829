"""One client of the dm_env_rpc protocol: creates a world, joins it, steps.

A world is one environment; who joins it has it alone, until he leaves or is gone.
"""

import itertools
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import dm_env
import numpy as np
from dm_env_rpc.v1 import dm_env_rpc_pb2, spec_manager, tensor_utils
from google.rpc import code_pb2, status_pb2

from podracer.errors import UserError
from sebulba.host_environments import wire
from sebulba.host_environments.environment import HostEnvironment


class Refused(Exception):
    """A request that cannot be answered: the client's mistake."""


class Worlds:
    """The names of the worlds that there are."""

    def __init__(self):
        self._names: set[str] = set()
        self._numbers = map(str, itertools.count())

    def create(self) -> str:
        name = next(self._numbers)
        self._names.add(name)
        return name

    def known(self, name: str) -> str:
        """The name. Raises Refused if there is no such world."""
        if name not in self._names:
            raise Refused(f"there is no world {name!r}")
        return name

    def destroy(self, name: str) -> None:
        self._names.remove(self.known(name))


class Session:
    """Answers one client's requests, in turn."""

    def __init__(self, make: Callable[[], HostEnvironment], worlds: Worlds):
        self._make, self._worlds = make, worlds
        self._world: str | None = None
        self._environment: HostEnvironment | None = None

    def answer(self, request: Any) -> Any:
        """The response to a request; an error is one, too."""
        kind = request.WhichOneof("payload")
        try:
            if not hasattr(self, f"_{kind}"):
                raise Refused(f"{kind} is not supported")
            answer = getattr(self, f"_{kind}")(getattr(request, kind))
            return dm_env_rpc_pb2.EnvironmentResponse(**{kind: answer})
        except (Refused, UserError) as error:
            code, message = code_pb2.INVALID_ARGUMENT, str(error)
        except Exception:  # noqa: BLE001 of the environment
            code, message = code_pb2.INTERNAL, traceback.format_exc()
        status = status_pb2.Status(code=code, message=message)
        return dm_env_rpc_pb2.EnvironmentResponse(error=status)

    def leave(self) -> None:
        """Ends the environment, if there is one."""
        environment, self._environment, self._world = self._environment, None, None
        if environment is not None:
            environment.close()

    def _create_world(self, request):
        _no_settings(request)
        name = self._worlds.create()
        return dm_env_rpc_pb2.CreateWorldResponse(world_name=name)

    def _join_world(self, request):
        _no_settings(request)
        if self._world is not None:
            raise Refused(f"world {self._world!r} is joined already")
        self._world = self._worlds.known(request.world_name)
        self._begin()
        return dm_env_rpc_pb2.JoinWorldResponse(specs=self._specs)

    def _reset(self, request):
        _no_settings(request)
        self._joined()
        self._begin()
        return dm_env_rpc_pb2.ResetResponse(specs=self._specs)

    def _reset_world(self, request):
        _no_settings(request)
        if self._worlds.known(request.world_name) == self._world:
            self._begin()
        return dm_env_rpc_pb2.ResetWorldResponse()

    def _leave_world(self, request):
        self.leave()
        return dm_env_rpc_pb2.LeaveWorldResponse()

    def _destroy_world(self, request):
        if request.world_name == self._world:
            raise Refused(f"world {self._world!r} is joined: leave it first")
        self._worlds.destroy(request.world_name)
        return dm_env_rpc_pb2.DestroyWorldResponse()

    def _step(self, request):
        environment, spec = self._joined(), self._action_spec
        if self._before is None:
            timestep = environment.reset()
        elif self._before == dm_env.StepType.LAST:
            timestep = environment.step(spec.generate_value()[None])
        else:
            timestep = environment.step(self._action(request.actions)[None])
        self._before = timestep.step_type[0]
        return dm_env_rpc_pb2.StepResponse(
            state=_state(timestep),
            observations=self._seen(timestep, request.requested_observations),
        )

    def _joined(self) -> HostEnvironment:
        if self._environment is None:
            raise Refused("no world is joined: create one and join it first")
        return self._environment

    def _begin(self) -> None:
        """A new environment, whose next step is the first of an episode."""
        if self._environment is not None:
            self._environment.close()
        self._environment, self._before = self._make(), None  # its last step type
        self._action_spec = self._environment.action_spec()
        observation = wire.flat(self._environment.observation_spec())
        reward = {wire.REWARD: dm_env.specs.Array((), np.float32)}
        self._specs = dm_env_rpc_pb2.ActionObservationSpecs(
            actions=wire.tensor_specs({wire.ACTION: self._action_spec}),
            observations=wire.tensor_specs(observation | reward),
        )
        self._actions = spec_manager.SpecManager(self._specs.actions)
        self._names = spec_manager.SpecManager(self._specs.observations)

    def _action(self, tensors: Any) -> np.ndarray:
        """The action; the least there is where none was sent."""
        if unknown := tensors.keys() - self._actions.uids():
            raise Refused(f"there is no action {min(unknown)}")
        try:
            actions = self._actions.unpack(tensors)
            nothing = self._action_spec.generate_value()
            return self._action_spec.validate(
                np.asarray(actions.get(wire.ACTION, nothing))
            )
        except ValueError as error:
            raise Refused(str(error)) from error

    def _seen(self, timestep: dm_env.TimeStep, requested: Iterable[int]) -> dict:
        """Those parts of a timestep [1], as messages."""
        if unknown := set(requested) - self._names.uids():
            raise Refused(f"there is no observation {min(unknown)}")
        seen = wire.flat(timestep.observation) | {wire.REWARD: timestep.reward}
        return {
            number: tensor_utils.pack_tensor(seen[self._names.uid_to_name(number)][0])
            for number in requested
        }


def _state(timestep: dm_env.TimeStep) -> int:
    if timestep.step_type[0] != dm_env.StepType.LAST:
        return dm_env_rpc_pb2.RUNNING
    over = timestep.discount[0] == 0
    return dm_env_rpc_pb2.TERMINATED if over else dm_env_rpc_pb2.INTERRUPTED


def _no_settings(request: Any) -> None:
    if request.settings:
        raise Refused(
            f"there is no setting {min(request.settings)!r}: `sebulba serve` takes them "
            "as flags"
        )
