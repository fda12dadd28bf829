"""Any flags with any values: a run may start, or it is one line and exit code 2."""

import contextlib
import dataclasses
import importlib
import io
import itertools
import json
import os
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import anakin
import anakin.command.subcommands as anakin_command
import anakin.population
import sebulba
import sebulba.command.subcommands as sebulba_command
from podracer import command, errors
from podracer.agents import AGENTS, from_flags
from tests.environments import HostCounter

COMMANDS = {"anakin": anakin_command, "sebulba": sebulba_command}


def names(config, prefix="--"):
    """The flags of a command's configuration."""
    return [flag for flag, _ in command.flags._kinds(config, prefix)]


def known(program):
    """The flags that `train` has, with every agent."""
    owner = COMMANDS[program]
    train = dataclasses.replace(owner.Train(None, None))
    found = {*names(train)}
    for agent in AGENTS:
        chosen = from_flags.choose(agent, None, None, unroll_length=1, batch_size=1)
        found |= {*names(chosen.preset.config, "--agent.")}
    read_first = {"--agent", "--env", "--preset", "--network", "--config", "--trust"}
    return sorted(found | read_first | {"--env.rows", "--env.nope", "--nope", "-h"})


ODD = [
    *("", " ", "0", "-1", "1", "2", "3", "1.5", "-0.0", "nan", "inf", "-inf", "1e400"),
    *(str(2**31), str(2**32), str(2**63), str(2**64), str(10**40), "0x10", "1_000"),
    *("None", "True", "null", "{}", "[]", '{"a": 1}', "true", "'", '"', "--", "-"),
    *("ppo", "impala", "batch_ppo", "catch", "cartpole", "jax:catch", "small", "none"),
    *("json", "json:loads", "os:getcwd", "gymnax:Catch", "dm:os:getcwd", "gym:No-v0"),
    *("a:b:c", ":", "::", "jax:", "gym:", ".", "..", "/", "/proc/1", "/dev/null"),
    *(
        "missing",
        "nothing.json",
        "run.yaml",
        "lstm",
        "relu",
        "wait",
        "é",
        "\u2028",
        "🏎",
    ),
    *("learning-rate=1e-3,3e-3", "learning-rate=", "clip=nan", "=", "x" * 300),
]


def line(program):
    text = st.text(st.characters(exclude_characters="\0", codec="utf-8"), max_size=8)
    value = st.sampled_from(ODD) | text
    flag = st.sampled_from(known(program))
    pair = st.tuples(flag, value).map(list)
    joined = st.tuples(flag, value).map(lambda x: [f"{x[0]}={x[1]}"])
    alone = (flag | value).map(lambda x: [x])
    # Pairs most of the time: they come further than what is no flag at all.
    part = st.one_of(pair, pair, pair, joined, alone)
    return st.lists(part, max_size=4).map(lambda parts: [*itertools.chain(*parts)])


class Started(Exception):
    """A run would begin to compile now."""


def start(*_, **__):
    raise Started


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder to start commands in, and no run starts."""
    place, before = tmp_path_factory.mktemp("fuzz"), os.getcwd()
    (place / "nothing.json").write_text("null")
    (place / "run.yaml").write_text("agent: ppo\ntrain: {seed: 1}\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(anakin_command.parallel, "use_cpu_cores", lambda *_, **__: None)
        for module in (anakin, anakin.population, sebulba):
            patch.setattr(module, "train", start)
        example = HostCounter()  # instead of processes and simulators
        patch.setattr(sebulba_command.environments, "example", lambda *_: example)
        os.chdir(place)
        yield place
        os.chdir(before)


def check(program, folder, argv):
    """Runs a command line until it would compile; else it is one line and nothing more."""
    before, out, error = sorted(os.listdir(folder)), io.StringIO(), io.StringIO()
    code = 0
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(error),
    ):
        patch.setattr(sys, "argv", [program, *argv])
        try:
            importlib.import_module(f"{program}.__main__").main()
        except Started:
            pass
        except SystemExit as end:
            code = end.code
    said = error.getvalue()
    shown = json.dumps(argv)
    assert code in (0, 2), f"{shown}: exit code {code}: {said}"
    assert (code == 2) == (said.count("\n") == 1), f"{shown}: {said}"
    if code == 2:
        assert said.startswith(f"{program}: error: ") and len(said) > 20, shown
    assert sorted(os.listdir(folder)) == before, shown


@pytest.mark.parametrize("program", COMMANDS)
@settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(data=st.data())
def test_any_command_line_is_a_run_or_one_line(program, folder, data):
    check(program, folder, ["train", *data.draw(line(program))])


@pytest.mark.parametrize("program", COMMANDS)
@pytest.mark.parametrize("flag", ["agent", "env", "network", "config", "resume"])
def test_any_name_is_a_run_or_one_line(program, folder, flag):
    """These decide what is imported and read, so each gets every odd value."""
    for value in ODD:
        check(program, folder, ["train", f"--{flag}={value}"])


@pytest.mark.parametrize("program", COMMANDS)
@pytest.mark.parametrize("verb", ["evaluate", "render"])
def test_any_folder_is_one_line(program, folder, verb):
    for value in ODD:
        check(program, folder, [verb, value])


def test_a_seed_that_jax_takes_is_taken():
    errors.check_seed(errors.MOST_SEED)
    with pytest.raises(ValueError, match="seed is 4294967295 to 4294967296"):
        errors.check_seed(errors.MOST_SEED, 2)
