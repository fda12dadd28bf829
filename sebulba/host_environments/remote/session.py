"""The server's side of one client: it creates a world, joins it, and steps.

A world is one environment, used by the client that joined it until that one leaves or is
lost.
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
from sebulba.host_environments.environment import HostEnvironment
from sebulba.host_environments.remote import protocol


class Refused(Exception):
    """A request that is refused because the client made a mistake."""


class Lost(Exception):
    """The environment began anew in mid-episode: its worker process died or hung."""


class Worlds:
    """The names of all worlds of a server."""

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
    """Answers one client's requests, in order."""

    def __init__(self, make: Callable[[], HostEnvironment], worlds: Worlds):
        self._make, self._worlds = make, worlds
        self._world: str | None = None
        self._environment: HostEnvironment | None = None

    def answer(self, request: Any) -> Any:
        """The response to a request; an error is also a response.

        Raises Lost where an episode was lost, for which the protocol has no response.
        """
        kind = request.WhichOneof("payload")
        try:
            if not hasattr(self, f"_{kind}"):
                raise Refused(f"{kind} is not supported")
            answer = getattr(self, f"_{kind}")(getattr(request, kind))
            return dm_env_rpc_pb2.EnvironmentResponse(**{kind: answer})
        except Lost:
            raise
        except (Refused, UserError) as error:
            code, message = code_pb2.INVALID_ARGUMENT, str(error)
        except BaseException:  # noqa: BLE001 also what would end a process
            code, message = code_pb2.INTERNAL, traceback.format_exc()
        status = status_pb2.Status(code=code, message=message)
        return dm_env_rpc_pb2.EnvironmentResponse(error=status)

    def leave(self) -> None:
        """Closes the environment, if there is one."""
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
        name = self._worlds.known(request.world_name)
        self._begin()
        self._world = name  # not before: a world that failed to begin can be destroyed
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
        if self._step_type is None:
            timestep = environment.reset()
        elif self._step_type == dm_env.StepType.LAST:
            timestep = environment.step(spec.generate_value()[None])
        else:
            timestep = environment.step(self._action(request.actions)[None])
        before, self._step_type = self._step_type, timestep.step_type[0]
        if timestep.first()[0] and before not in (None, dm_env.StepType.LAST):
            raise Lost
        return dm_env_rpc_pb2.StepResponse(
            state=_state(timestep),
            observations=self._observations(timestep, request.requested_observations),
        )

    def _joined(self) -> HostEnvironment:
        if self._environment is None:
            raise Refused("no world is joined: create one and join it first")
        return self._environment

    def _begin(self) -> None:
        """Makes a new environment, whose next step begins an episode."""
        if self._environment is not None:
            self._environment.close()
        self._environment, self._step_type = self._make(), None
        self._action_spec = self._environment.action_spec()
        observation = protocol.flatten(self._environment.observation_spec())
        reward = {protocol.REWARD: dm_env.specs.Array((), np.float32)}
        self._specs = dm_env_rpc_pb2.ActionObservationSpecs(
            actions=protocol.tensor_specs({protocol.ACTION: self._action_spec}),
            observations=protocol.tensor_specs(observation | reward),
        )
        self._actions = spec_manager.SpecManager(self._specs.actions)
        self._names = spec_manager.SpecManager(self._specs.observations)

    def _action(self, tensors: Any) -> np.ndarray:
        """The action; the spec's minimum where none was sent.

        Continuous ones may be out of bounds: environments clip them or not.
        """
        if unknown := tensors.keys() - self._actions.uids():
            raise Refused(f"there is no action {min(unknown)}")
        try:
            actions = self._actions.unpack(tensors)
            spec = self._action_spec
            action = np.asarray(actions.get(protocol.ACTION, spec.generate_value()))
            if np.dtype(spec.dtype).kind == "f":
                spec = dm_env.specs.Array(spec.shape, spec.dtype)
            return spec.validate(action)
        except ValueError as error:
            raise Refused(str(error)) from error

    def _observations(
        self, timestep: dm_env.TimeStep, requested: Iterable[int]
    ) -> dict:
        """The requested parts of a timestep [1], as tensors of the protocol."""
        if unknown := set(requested) - self._names.uids():
            raise Refused(f"there is no observation {min(unknown)}")
        values = protocol.flatten(timestep.observation) | {
            protocol.REWARD: timestep.reward
        }
        return {
            number: tensor_utils.pack_tensor(values[self._names.uid_to_name(number)][0])
            for number in requested
        }


def _state(timestep: dm_env.TimeStep) -> int:
    if timestep.step_type[0] != dm_env.StepType.LAST:
        return dm_env_rpc_pb2.RUNNING
    terminated = timestep.discount[0] == 0
    return dm_env_rpc_pb2.TERMINATED if terminated else dm_env_rpc_pb2.INTERRUPTED


def _no_settings(request: Any) -> None:
    if request.settings:
        raise Refused(
            f"there is no setting {min(request.settings)!r}: `sebulba serve` takes them "
            "as flags"
        )
