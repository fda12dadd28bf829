"""Whatever is damaged in a run's folder, each command works or ends in one line."""

import copy
import dataclasses
import itertools
import json
import os
import random
import shutil
import stat
from typing import NamedTuple

import jax
import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

import anakin
import anakin.command.subcommands as anakin_command
import envs_jax
import podracer.__main__ as command
from podracer import metrics
from podracer.errors import UserError
from podracer.runs import listing, run, run_folder
from podracer.trained import loading
from podracer.training import configuring
from tests.podracer.trained.test_loading import SMALL, train

FLAGS = f"--env catch {SMALL} --cores 1 --total-steps 640 --updates-per-report 2"
EXAMPLES = int(os.environ.get("PODRACER_FUZZ", "3"))  # docs/reliability.md has more


FUZZ = settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="PODRACER_FUZZ" not in os.environ,
    phases=[Phase.generate],  # an example takes a second: none is made smaller
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


NUMBERS = itertools.count()


class Begun(Exception):
    """Raised in place of training."""


class Case(NamedTuple):
    """A run, and what the reading of it is compared with."""

    folder: run_folder.Path
    fresh: anakin.State
    states: dict[int, list[np.ndarray]]  # by updates


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "whole"
    train(anakin_command, folder, f"{FLAGS} --checkpoint.steps 192")
    begun = []

    def note(*state):
        begun.append(state)
        raise Begun

    with pytest.raises(Begun):
        anakin.train(
            loading.restore(folder).agent,
            envs_jax.make("catch"),
            batch_size=8,
            unroll_length=8,
            total_steps=640,
            cores=1,
            restore=note,
        )
    ((fresh, _),) = begun
    states = {}
    for path in (folder / "checkpoints").iterdir():
        alone = tmp_path_factory.mktemp("alone")
        shutil.copytree(path, alone / path.name)
        states[int(path.name)] = leaves(loading.Checkpoints(alone).restore(*begun[0]))
    assert len(states) >= 3
    return Case(folder, fresh, states)


def leaves(state):
    return [
        np.asarray(jax.random.key_data(x) if is_key(x) else x)
        for x in jax.tree.leaves(state)
    ]


def is_key(x):
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


def one_line(function, *arguments):
    """What it gives, or None if it ends in a UserError of one line."""
    try:
        return function(*arguments)
    except UserError as error:
        assert str(error) and "\n" not in str(error)


def resume(case, folder):
    """`anakin train --resume`, with one update in place of training; what was restored."""
    configured = configuring.configure(
        ["--resume", str(folder), "--quiet"],
        anakin_command.Train,
        "anakin",
        anakin_command.ENVIRONMENTS,
    )
    read = []

    def start(restore, stopped):
        state = restore(case.fresh, anakin.training.LAYOUT)
        read.append((int(state.updates), leaves(state)))
        row = {"steps": 10**6, "updates": read[0][0] + 1, "seconds": 1.0}
        row |= {"steps_per_second": 1.0, "compile_seconds": 0.0, "episodes": 0}
        after = state._replace(updates=state.updates + 1)
        return (update for update in [(after, row | {"episode_return": np.nan})])

    longer = dataclasses.replace(configured.config, total_steps=10**6)
    run.train(start, longer, lambda *_: None, **configured.names)
    return read[0] if read else None  # a damaged row may say that all is done


def check_everything(case, folder):
    """All that reads a run, of this one beside a whole one."""
    for place in (folder, folder.parent):
        one_line(command.plot, [str(place), "--out", str(folder.parent / "x.png")])
    rows = listing.table(listing.find_all(folder.parent))
    config = (folder / "config.json").exists()
    assert len(rows) == 1 + config and any(row[-1].endswith("/other") for row in rows)
    trained = one_line(loading.restore, folder)
    if trained:
        assert trained.updates in case.states
    resumed = one_line(resume, case, folder)
    if resumed:
        updates, state = resumed
        for x, y in zip(state, case.states[updates], strict=True):
            np.testing.assert_array_equal(x, y)
        assert [*metrics.read(folder / "metrics.jsonl")][-1]["steps"] == 10**6
    return trained, resumed


def damaged_copy(case, tmp_path):
    base = tmp_path / str(next(NUMBERS))  # hypothesis calls a test many times
    shutil.copytree(case.folder, base / "damaged")
    shutil.copytree(case.folder, base / "other", ignore=lambda *_: ["checkpoints"])
    return base / "damaged"


ODD = [None, {}, [], [1], -1, 0, 2**70, 1e300, True, "x", "", {"a": {}}, [[[]]], [None]]
TEXTS = [b"", b"null", b"[]", b"{}", b'{"a": 1}', b"\0" * 50, b"\xff\xfe", b"[" * 10**5]


def places(tree, path=()):
    """The path of every part of a JSON value."""
    yield path
    parts = enumerate(tree) if isinstance(tree, list) else ()
    for name, part in tree.items() if isinstance(tree, dict) else parts:
        yield from places(part, (*path, name))


def replaced(tree, path, value):
    """The same with another value, or without the part where that is `places`."""
    if not path:
        return value
    tree = copy.deepcopy(tree)
    part = tree
    for name in path[:-1]:
        part = part[name]
    if value is places:
        del part[path[-1]]
    else:
        part[path[-1]] = value
    return tree


def mutate(chance, path):
    """Damages a file."""
    content = path.read_bytes()
    kind = chance.choice(["cut", "flip", "gone", "text", "insert"])
    where = chance.randrange(max(len(content), 1))
    if kind == "cut":
        path.write_bytes(content[:where])
    elif kind == "flip" and content:
        bit = 1 << chance.randrange(8)
        path.write_bytes(
            content[:where] + bytes([content[where] ^ bit]) + content[where + 1 :]
        )
    elif kind == "gone":
        path.unlink()
    elif kind == "text":
        path.write_bytes(chance.choice(TEXTS))
    elif kind == "insert":
        text = chance.choice(TEXTS)
        path.write_bytes(content[:where] + text + b"\n" + content[where:])


@FUZZ
@given(seed=st.integers(0, 2**64 - 1))
@pytest.mark.timeout(36_000)
def test_any_file_may_be_damaged(case, tmp_path, seed):
    chance = random.Random(seed)
    folder = damaged_copy(case, tmp_path)
    names = ["config.json", "state.json", "metrics.jsonl"]
    names += sorted(
        str(x.relative_to(folder)) for x in folder.rglob("[!.]*") if x.is_file()
    )
    for name in chance.choices(names, k=chance.choice([1, 2])):
        if (folder / name).exists():
            mutate(chance, folder / name)
    check_everything(case, folder)
    shutil.rmtree(folder.parent)


@FUZZ
@given(seed=st.integers(0, 2**64 - 1))
@pytest.mark.timeout(36_000)
@pytest.mark.slow
def test_any_value_may_be_odd(case, tmp_path, seed):
    chance = random.Random(seed)
    folder = damaged_copy(case, tmp_path)
    path = folder / chance.choice(["config.json"] * 3 + ["state.json"])
    tree = json.loads(path.read_text())
    where = chance.choice([*places(tree)])
    value = chance.choice([*ODD, places] if where else ODD)
    path.write_text(json.dumps(replaced(tree, where, value)))
    check_everything(case, folder)
    shutil.rmtree(folder.parent)


# In place of a file: (its path, somebody else's folder) -> None
NO_FILES = {
    "device": lambda path, other: path.symlink_to("/dev/zero"),
    "pipe": lambda path, other: os.mkfifo(path),
    "link": lambda path, other: path.symlink_to(other / "file"),
    "link to nothing": lambda path, other: path.symlink_to(other / "new"),
    "link to a folder": lambda path, other: path.symlink_to(other),
    "folder": lambda path, other: path.mkdir(),
    "socket": lambda path, other: os.mknod(path, stat.S_IFSOCK | 0o600),
    "large": lambda path, other: path.touch() or os.truncate(path, 2**40),
}


@FUZZ
@given(seed=st.integers(0, 2**64 - 1))
@pytest.mark.timeout(600)
@pytest.mark.slow
def test_any_file_may_be_none_and_no_other_is_written(case, tmp_path, seed):
    chance = random.Random(seed)
    folder = damaged_copy(case, tmp_path)
    other = folder.parent.parent / f"{folder.parent.name}-others"
    other.mkdir()
    (other / "file").write_text("theirs")
    names = ["config.json", "state.json", "metrics.jsonl", "checkpoints", "curve.png"]
    names += [".lock", "profile", "tensorboard", "wandb", "evaluation.jsonl"]
    names += sorted(str(x.relative_to(folder)) for x in folder.rglob("*"))
    path = folder / chance.choice(names)
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    NO_FILES[chance.choice([*NO_FILES])](path, other)
    check_everything(case, folder)
    assert [x.name for x in other.iterdir()] == ["file"]
    assert (other / "file").read_text() == "theirs"
    shutil.rmtree(folder.parent)


def odd(**changes):
    return lambda x: {**x, "config": {**x["config"], **changes}}


@pytest.mark.parametrize(
    "change, line",
    [
        (lambda x: None, "config.json: damaged, or not the configuration of a run (no"),
        (lambda x: {}, "not the configuration of a run (without 'command')"),
        (lambda x: {**x, "config": []}, "(config is [])"),
        (lambda x: {**x, "command": 3}, "(command is 3)"),
        (odd(agent=None), "(agent is null)"),
        (odd(env=["catch"]), '(env is ["catch"])'),
        (odd(train=None), "(train is null)"),
        (odd(agent="pppo"), "names code to import, --agent pppo; if you trust"),
        (odd(specs={"observation": 1}), "config.json: damaged, no agent can be made"),
        (odd(specs=[]), "(specs is [])"),
        (
            odd(specs={"observation": {"shape": [2**40], "dtype": "float32"}}),
            "a spec of more than",
        ),
        (
            lambda x: odd(train={**x["config"]["train"], "agent": None})(x),
            "config.json: agent is None",
        ),
        (
            lambda x: odd(train={**x["config"]["train"], "network": {"torso": 5}})(x),
            "config.json: network.torso is 5; it must be of type",
        ),
    ],
)
def test_an_odd_configuration_is_one_line(case, tmp_path, change, line):
    folder = damaged_copy(case, tmp_path)
    path = folder / "config.json"
    path.write_text(json.dumps(change(json.loads(path.read_text()))))
    with pytest.raises(UserError) as error:
        loading.restore(folder)
    assert line in str(error.value) and str(folder) in str(error.value)
    check_everything(case, folder)


def test_a_damaged_run_hides_no_other(case, tmp_path, capsys, monkeypatch):
    folder = damaged_copy(case, tmp_path)
    (folder / "config.json").write_text("null")
    (folder.parent / "other" / "state.json").write_text('{"state": 5, "started": "x"}')
    command.list_runs([str(folder.parent)])
    _, *lines = capsys.readouterr().out.splitlines()
    found = {line.rpartition("/")[2]: line.split()[:3] for line in lines}
    assert found["damaged"] == ["damaged", "-", "-"]
    assert found["other"] == ["unknown", "ppo", "catch"]
    command.plot([str(folder.parent), "--out", str(tmp_path / "x.png")])
    first, second, *_ = capsys.readouterr().out.splitlines()
    assert first.startswith(f"{folder}/config.json: damaged") and "left out" in first
    assert second == "ppo on catch: 1 run"
