"""The watchdog alone: an end waits for the other hosts, and their failure is ours."""

import json
import os
import threading
import time

import numpy as np
import pytest

from podracer.errors import UserError
from podracer.parallel import watch
from podracer.runs import evaluation

pytestmark = pytest.mark.core


class Client:
    """JAX's key-value service, as one host sees it."""

    def __init__(self):
        self.values = {}

    def key_value_set(self, key, value):
        self.values[key] = value

    def key_value_delete(self, key):
        del self.values[key]

    def key_value_dir_get(self, folder):
        return [item for item in self.values.items() if item[0].startswith(folder)]


class Exit(BaseException):
    """In place of the end of the process."""


@pytest.fixture
def exits(monkeypatch):
    codes = []

    def leave(code):
        codes.append(code)
        raise Exit

    monkeypatch.setattr(os, "_exit", leave)
    monkeypatch.setattr(watch, "LAST_SECONDS", 0.0)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    return codes


def make(client, number=0, limit=60.0):
    host = watch._Watch(client, number, 2, limit)
    host.start()
    return host


@pytest.fixture(autouse=True)
def polled(monkeypatch):
    monkeypatch.setattr(watch, "POLL_SECONDS", 0.01)


def test_an_end_waits_for_the_others(exits):
    client = Client()
    host = make(client)
    ending = threading.Thread(target=host.end)
    ending.start()
    time.sleep(0.3)
    assert ending.is_alive() and f"{watch.ENDED}/0" in client.values
    client.key_value_set(f"{watch.ENDED}/1", "1")
    ending.join(30)
    assert not ending.is_alive() and not host.is_alive() and exits == []


def test_a_failure_while_it_waits_is_its_own(exits, capsys):
    client = Client()
    host = make(client)
    ending = threading.Thread(target=host.end, daemon=True)
    ending.start()
    time.sleep(0.1)
    failure = json.dumps({"code": 7, "why": "disk full"})
    client.key_value_set(f"{watch.FAILED}/1", failure)
    host.join(30)
    assert exits == [7]
    assert "[host 0 of 2] host 1 failed: \ndisk full" in capsys.readouterr().err
    client.key_value_set(f"{watch.ENDED}/1", "1")  # lets the thread of the test end
    ending.join(30)


def test_an_end_waits_so_long_and_no_longer(exits, monkeypatch):
    monkeypatch.setattr(watch, "END_SECONDS", 0.2)
    client = Client()
    host = make(client)
    with pytest.raises(Exit):
        host.end()
    assert exits == [1]
    assert "longer than this host" in client.values[f"{watch.FAILED}/0"]


def test_without_host_0_there_is_no_good_end(exits, monkeypatch):
    host = watch._Watch(Client(), 1, 2, limit=60.0)
    monkeypatch.setattr(host._client, "key_value_dir_get", lambda _: 1 / 0)
    with pytest.raises(Exit):
        host.end()
    assert exits == [1]


def test_an_evaluation_of_host_0_is_no_stall(exits, monkeypatch):
    """The others, too, wait longer than their limit for it, and then have it again."""
    monkeypatch.setattr(watch.faulthandler, "dump_traceback", lambda **_: None)
    client = Client()
    first, second = make(client, 0, limit=1.0), make(client, 1, limit=1.0)
    monkeypatch.setattr(watch, "_watch", first)

    def play(state, episodes):
        second.moved = time.monotonic()  # it waits for the first
        time.sleep(2.0)
        return evaluation.Evaluation(np.ones(1), np.ones(1, int), np.ones(1, bool))

    evaluator = evaluation.Evaluator(evaluation.Schedule(steps=1), play, 0)
    assert evaluator(None, {"steps": 1})["evaluation_return"] == 1
    assert first.is_alive() and second.is_alive() and not exits
    assert [*client.values] == []
    first.join(30)  # no progress now
    second.join(30)
    assert exits[0] == 1


def test_an_evaluation_takes_so_long_and_no_longer(exits, monkeypatch):
    monkeypatch.setattr(watch.faulthandler, "dump_traceback", lambda **_: None)
    monkeypatch.setattr(watch, "EVALUATION_SECONDS", 0.6)
    client = Client()
    host = make(client, limit=0.1)
    started = time.monotonic()
    with host.evaluating():
        host.join(30)
    assert exits == [1] and time.monotonic() - started > 0.6
    assert "no progress for" in client.values[f"{watch.FAILED}/0"]


@pytest.mark.parametrize("limit", ["soon", "0", "-5", "nan"])
def test_a_limit_is_a_number_of_seconds(monkeypatch, limit):
    """With 0 or less every host would end at once, and with NaN none ever."""
    monkeypatch.setenv(watch.STALL, limit)
    monkeypatch.setattr(watch._Watch, "start", lambda _: 1 / 0)
    monkeypatch.setattr(watch, "_watch", None)
    with pytest.raises(
        UserError, match=f"{watch.STALL} is '{limit}'; it must be a num"
    ):
        watch.start(Client(), 0, 2)


def test_a_host_that_follows_ends_before_host_0(exits, monkeypatch):
    """Whose end JAX answers with SIGABRT."""
    monkeypatch.setattr(watch, "LAST_SECONDS", 60.0)
    client = Client()
    failure = json.dumps({"code": 2, "why": "seed is -1"})
    client.key_value_set(f"{watch.FAILED}/0", failure)
    make(client, number=1).join(5.0)
    assert exits == [2]
