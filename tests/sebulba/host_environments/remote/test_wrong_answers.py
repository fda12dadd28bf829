"""Servers that answer wrongly: one line with the address, at the start and in mid-run."""

import numpy as np
import pytest
from dm_env_rpc.v1 import dm_env_rpc_pb2, tensor_utils
from google.rpc import status_pb2

from podracer.errors import UserError
from sebulba.host_environments.remote import session
from tests.sebulba.host_environments.remote.local import client, serve

OBSERVATION, REWARD = 1, 2  # their numbers in a HostCounter's answers


class Step:
    """What a server may make of the response to a step."""

    def no_reward(response):
        del response.step.observations[REWARD]

    def no_observation(response):
        del response.step.observations[OBSERVATION]

    def nothing_seen(response):
        response.step.observations.clear()

    def reward_of_text(response):
        response.step.observations[REWARD].CopyFrom(tensor_utils.pack_tensor("much"))

    def reward_without_elements(response):
        response.step.observations[REWARD].CopyFrom(dm_env_rpc_pb2.Tensor())

    def unknown_observation(response):
        response.step.observations[99].CopyFrom(tensor_utils.pack_tensor(1.0))

    def no_state(response):
        response.step.state = 0

    def state_of_another_version(response):
        response.step.state = 77

    def another_response(response):
        response.reset_world.SetInParent()

    def no_response(response):
        response.Clear()

    def error_without_words(response):
        response.error.CopyFrom(status_pb2.Status(code=2))

    def error_of_300_lines(response):
        text = "\n".join(f"line {i}" for i in range(300))
        response.error.CopyFrom(status_pb2.Status(code=3, message=text))


class Join:
    """What a server may make of the response to a client that joins."""

    def no_specs(response):
        response.join_world.specs.Clear()

    def no_actions(response):
        response.join_world.specs.actions.clear()

    def no_observations(response):
        response.join_world.specs.observations.clear()

    def of_no_type(response):
        response.join_world.specs.observations[1].dtype = 0

    def of_unknown_type(response):
        response.join_world.specs.observations[1].dtype = 99

    def of_any_size(response):
        response.join_world.specs.observations[1].shape[:] = [-1]


def changes(kind):
    return [x for name, x in vars(kind).items() if not name.startswith("_")]


def answering(monkeypatch, kind, change, count):
    """Servers of ours change their response to that request, as often as it came."""
    answer, seen = session.Session.answer, []

    def changed(self, request):
        response = answer(self, request)
        seen.extend([kind] * (request.WhichOneof("payload") == kind))
        if len(seen) == count:
            change(response)
        return response

    monkeypatch.setattr(session.Session, "answer", changed)


@pytest.mark.parametrize("change", changes(Step), ids=lambda x: x.__name__)
def test_a_wrong_answer_in_mid_run(monkeypatch, closing, change):
    answering(monkeypatch, "step", change, 3)
    with serve() as address:
        environment = closing(address)
        environment.step(np.zeros(1, int))
        with pytest.raises(UserError, match=f"^{address}: ") as error:
            environment.step(np.zeros(1, int))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400


@pytest.mark.parametrize("change", changes(Join), ids=lambda x: x.__name__)
def test_a_wrong_answer_to_a_client_that_joins(monkeypatch, change):
    answering(monkeypatch, "join_world", change, 1)
    with serve() as address, pytest.raises(UserError, match=f"^{address}") as error:
        client(address).step(np.zeros(1, int))
    assert "\n" not in str(error.value) and len(str(error.value)) < 400
