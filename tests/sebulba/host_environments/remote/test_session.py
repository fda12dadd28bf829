"""dm_env_rpc's own compliance tests of servers."""

from types import MappingProxyType

import grpc
import pytest
from dm_env_rpc.v1 import connection, dm_env_rpc_pb2
from dm_env_rpc.v1.compliance import (
    create_destroy_world,
    join_leave_world,
    reset,
    reset_world,
    step,
)

from tests.sebulba.host_environments.remote.local import serve


@pytest.fixture
def connected(request):
    with serve() as address, grpc.insecure_channel(address.partition("//")[2]) as way:
        request.cls.connection = connection.Connection(way)
        answer = request.cls.connection.send(dm_env_rpc_pb2.CreateWorldRequest())
        request.cls.world_name = answer.world_name
        yield


@pytest.fixture
def joined(connected, request):
    join = dm_env_rpc_pb2.JoinWorldRequest(world_name=request.cls.world_name)
    request.cls.specs = request.cls.connection.send(join).specs


@pytest.mark.usefixtures("connected")
class TestCreateDestroyWorld(create_destroy_world.CreateDestroyWorld):
    connection = None
    required_world_settings = MappingProxyType({})
    invalid_world_settings = MappingProxyType({"level": dm_env_rpc_pb2.Tensor()})
    has_multiple_world_support = True


@pytest.mark.usefixtures("connected")
class TestJoinLeaveWorld(join_leave_world.JoinLeaveWorld):
    connection = world_name = None
    invalid_join_settings = MappingProxyType({"level": dm_env_rpc_pb2.Tensor()})


@pytest.mark.usefixtures("connected")
class TestReset(reset.Reset):
    connection = None

    def join_world(self):
        join = dm_env_rpc_pb2.JoinWorldRequest(world_name=self.world_name)
        return self.connection.send(join).specs


@pytest.mark.usefixtures("connected")
class TestResetWorld(reset_world.ResetWorld):
    connection = world_name = None
    invalid_world_name = "nowhere"


@pytest.mark.usefixtures("joined")
class TestStep(step.Step):
    connection = specs = None


del create_destroy_world, join_leave_world, reset, reset_world, step  # only their heirs
