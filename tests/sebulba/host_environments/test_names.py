"""Names of environments on the host: their adapters, seeds, and what a fuzzer types."""

import string

import hypothesis
import pytest
from hypothesis import strategies as st

from podracer.errors import UserError
from sebulba import host_environments
from sebulba.host_environments import envpool, options
from sebulba.host_environments.remote import client_options


def test_seeds_of_threads_do_not_overlap():
    ranges = [
        range(first, first + 64)
        for first in (
            host_environments.first_seed(3, thread, 64) for thread in range(8)
        )
    ]
    assert len(set().union(*ranges)) == 8 * 64
    assert max(max(x) for x in ranges) < 2**31
    assert host_environments.first_seed(3, 0, 64) != host_environments.first_seed(
        4, 0, 64
    )


@pytest.mark.parametrize(
    ("name", "brings"),
    [
        ("dm:os:system", True),
        ("dm:bsuite:load_from_id", True),
        ("gym:module:Id-v0", True),
        ("gym:GymV21Environment-v0", True),  # its arguments name another
        ("jax:module:Class", True),
        ("unheard-of:x", True),
        ("Pong-v5", False),
        ("Jumanji/Game2048-v1", False),
        ("jax:catch", False),
        ("gym:CartPole-v1", False),
        ("grpc://localhost:8611", False),
        ("grpcs://a:1,b:2", False),
    ],
)
def test_which_names_bring_code(name, brings):
    assert host_environments.brings_code(name) is brings


def test_an_unknown_kind_is_one_line():
    line = "'gmy' in 'gmy:CartPole-v1' is no kind of environment; did you mean 'gym'"
    with pytest.raises(UserError, match=line):
        host_environments.default_options("gmy:CartPole-v1")


@pytest.mark.parametrize("name", ["CartPole-v1", "jax:catch", "gym:CartPole-v1"])
@pytest.mark.parametrize(
    ("field", "number"),
    [
        ("batch_size", 0),
        ("batch_size", -1),
        ("env_threads", 0),
        ("env_threads", -1),
        ("env_threads", 100_000),
    ],
)
def test_numbers_that_would_abort_are_refused(name, number, field):
    """EnvPool's C++ aborts the process at them."""
    sizes = {"batch_size": 1, "env_threads": 1} | {field: number}
    given = host_environments.default_options(name)
    with pytest.raises(
        UserError, match=f"{field} is {number}; it must be (at least|from) 1"
    ):
        host_environments.make(
            name, sizes["batch_size"], 0, sizes["env_threads"], given
        )
    if name == "CartPole-v1":
        with pytest.raises(UserError, match=f"{field} is {number}"):
            envpool.EnvPool(name, sizes["batch_size"], 0, sizes["env_threads"], given)


# A fuzzer accepts a UserError of one line, or success.

PARTS = st.sampled_from(
    [
        "dm",
        "gym",
        "jax",
        "ale",
        "grpc",
        "grpcs",
        "",
        "math",
        "sqrt",
        "hypot",
        ".",
        "x-1",
    ]
    + ["CartPole-v1", "catch", "pong", "Pong-v5", "//localhost:1", "//", "//a", "99999"]
    + ["GymV21Environment-v0", "json", "decoder.JSONDecoder", "posixpath", "join", "²"]
)
NAMES = st.one_of(
    st.lists(PARTS, min_size=1, max_size=4).map(":".join),
    st.text(string.printable + "é", max_size=12),
    st.tuples(PARTS, st.text(string.printable, max_size=8)).map(":".join),
)


def tried(function):
    """What it returns; None for a UserError, which must be one line."""
    try:
        return function()
    except UserError as error:
        line = str(error)
        assert line and "\n" not in line, line


@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(NAMES)
@hypothesis.example("dm:\n:x")
def test_any_name_has_options_or_one_line(name):
    assert host_environments.brings_code(name) in (True, False)
    tried(lambda: host_environments.default_options(name))


NUMBERS = st.one_of(
    st.integers(-3, 10), st.floats(), st.integers(), st.sampled_from([1e6, 1e9])
)
TEXTS = st.one_of(
    st.text(max_size=8),
    st.sampled_from(['{"a": 1}', "{", "[]", "null", '{"size": NaN}', "[" * 100_000]),
)


@hypothesis.settings(deadline=None, max_examples=300)
@hypothesis.given(st.data())
def test_any_options_are_made_or_one_line(data):
    kind = data.draw(
        st.sampled_from([envpool.AtariOptions, options.Options, client_options.Options])
    )
    given = {}
    for name, default in vars(kind()).items():
        if data.draw(st.booleans()):
            of = TEXTS if isinstance(default, str) else NUMBERS
            given[name] = data.draw(of)
    tried(lambda: kind(**given))


def test_an_environment_of_ones_own_is_told_its_kind(tmp_path, monkeypatch):
    (tmp_path / "an_env_of_mine.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    line = "JAX environment of your own is --env jax:an_env_of_mine:Chase"
    with pytest.raises(UserError, match=line):
        host_environments.default_options("an_env_of_mine:Chase")
