"""Trajectories one way, parameters the other; every wait has a limit."""

import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from podracer import parallel
from sebulba import transport
from sebulba.transport import Closed, Delivery, ParameterServer, TrajectoryQueue

pytestmark = pytest.mark.core


def handed(name):
    return Delivery([name], None, None, 0, np.zeros(1, int))


def in_thread(function, *arguments):
    """Runs it in a thread; the thread and a list that will hold its result."""
    results = []

    def run():
        try:
            results.append(function(*arguments))
        except BaseException as error:  # noqa: BLE001 the test looks at it
            results.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread, results


def test_first_finished_is_first_learned():
    queue = TrajectoryQueue(capacity=2)
    a, b = queue.begin(), queue.begin()
    queue.put(b, handed("b"))
    queue.put(a, handed("a"))
    assert [queue.get().parts for _ in range(2)] == [["b"], ["a"]]


def test_an_actor_waits_for_space_and_its_wait_is_counted():
    queue = TrajectoryQueue(capacity=1)
    queue.put(queue.begin(), handed("a"))
    thread, results = in_thread(queue.put, queue.begin(), handed("b"))
    time.sleep(0.1)
    assert not results
    assert queue.waited()["actors"] > 0.05  # an unfinished wait counts too
    queue.get()
    thread.join(5)
    assert results == [None] and 0.05 < queue.waited()["actors"] < 5
    assert queue.waited()["learner"] < 0.05


def test_with_a_lag_the_order_is_that_of_the_beginnings():
    queue = TrajectoryQueue(capacity=1, max_lag=1)
    a, b = queue.begin(), queue.begin()
    queue.put(b, handed("b"))
    thread, results = in_thread(queue.get)
    time.sleep(0.1)
    assert not results  # b must not overtake a
    queue.put(a, handed("a"))
    thread.join(5)
    assert results[0].parts == ["a"]
    third, begun = in_thread(queue.begin)
    time.sleep(0.1)
    assert not begun  # a is not learned yet, and b is on its way too
    queue.learned()
    third.join(5)
    assert begun == [2]
    assert queue.get().parts == ["b"]


def test_closing_ends_every_wait_with_the_reason():
    queue = TrajectoryQueue(capacity=1, max_lag=0)
    waiting = [in_thread(queue.get), in_thread(queue.get)]
    queue.begin()
    waiting.append(in_thread(queue.begin))
    reason = RuntimeError("the simulator broke")
    queue.close(reason)
    queue.close()  # the first reason stays
    for thread, results in waiting:
        thread.join(5)
        assert results == [reason]
    with pytest.raises(RuntimeError):
        queue.get()


def test_closed_without_a_reason():
    queue = TrajectoryQueue(capacity=1)
    queue.close()
    with pytest.raises(Closed):
        queue.get()


def test_a_wait_has_an_end(monkeypatch):
    monkeypatch.setattr(transport, "PATIENCE", 0.1)
    with pytest.raises(TimeoutError, match="nothing moved"):
        TrajectoryQueue(capacity=1).get()
    started = time.perf_counter()
    with pytest.raises(TimeoutError, match="nothing moved for 1 s"):
        TrajectoryQueue(capacity=1, patience=1.0).get()
    assert time.perf_counter() - started > 1.0


def test_neither_a_slow_caller_nor_a_long_trajectory_is_a_hang(monkeypatch):
    monkeypatch.setattr(transport, "PATIENCE", 0.2)
    queue = TrajectoryQueue(capacity=1)
    queue.put(0, "first")
    actor = threading.Thread(target=lambda: queue.put(1, "second"), daemon=True)
    actor.start()
    actor.join(0.6)  # the caller holds a report
    assert actor.is_alive()
    got = [queue.get(), queue.get()]
    learner = threading.Thread(target=lambda: got.append(queue.get()), daemon=True)
    learner.start()
    for _ in range(12):  # steps of one trajectory
        queue.stepped()
        time.sleep(0.05)
    queue.put(2, "third")
    for thread in (actor, learner):
        thread.join(5)
    assert got == ["first", "second", "third"]


def test_one_hanging_actor_among_others_is_noticed(monkeypatch):
    """But not one that waits for space, or has ended; nor while the caller holds a report."""
    seconds = [1000.0]
    monkeypatch.setattr(transport.time, "perf_counter", lambda: seconds[0])
    queue = TrajectoryQueue(capacity=1)
    acted, ends, hangs = threading.Event(), threading.Event(), threading.Event()

    def waiting():
        queue.stepped()
        queue.put(1, "second")
        acted.set()
        ends.wait(20)

    def hanging():
        queue.stepped()
        acted.set()
        hangs.wait(20)

    def start(function, name):
        thread = threading.Thread(target=function, name=name, daemon=True)
        thread.start()
        return thread

    queue.put(0, "first")
    other = start(waiting, "actor 2")
    while not queue.waited()["actors"]:
        time.sleep(0.01)
        seconds[0] += 2 * transport.PATIENCE
    actor = start(hanging, "actor 3")
    assert acted.wait(20)
    with queue.paused():
        seconds[0] += 10_000.0
    acted.clear()
    assert queue.get() == "first"
    assert acted.wait(20)
    assert queue.get() == "second"  # the other's time began again
    ends.set()
    other.join(20)
    queue.put(2, "third")
    seconds[0] += transport.PATIENCE + 1
    with pytest.raises(TimeoutError, match="^actor 3 has not moved for 600 s: its env"):
        queue.get()
    hangs.set()
    actor.join(20)
    assert queue.get() == "third"


def test_parameters_are_copies_that_donation_cannot_delete():
    mesh = parallel.make_mesh(2)
    make = parallel.over_cores(lambda: jnp.ones(3), mesh, (), parallel.SHARED)
    double = parallel.over_cores(
        lambda x: 2 * x, mesh, (parallel.SHARED,), parallel.SHARED, donate=(0,)
    )
    params = make()
    server = ParameterServer([jax.devices()[0], jax.devices()[5]])
    server.publish(params, 7)
    after = double(params)
    assert params.is_deleted()
    for device in (jax.devices()[0], jax.devices()[5]):
        copy, version = server.latest(device)
        assert copy.devices() == {device} and version == 7
        np.testing.assert_array_equal(copy, np.ones(3))
    np.testing.assert_array_equal(parallel.on_host(after), 2 * np.ones(3))
