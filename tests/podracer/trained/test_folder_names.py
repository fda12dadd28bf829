"""Whatever a run's folder is called: it works, or is refused in one line before training."""

import contextlib
import shutil
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs
from hypothesis import Phase, example, given, settings
from hypothesis import strategies as st

import podracer
from podracer import parallel
from podracer.agent import LearnerState
from podracer.checkpoints.checkpoint import Checkpoints
from podracer.errors import UserError
from podracer.metrics.lines import JsonLines
from podracer.runs import listing, recording, run_folder
from podracer.runs.run import encode_specs
from tests.agents import reinforce
from tests.podracer.trained.test_damaged_runs import FUZZ

AGENT = reinforce(3, 2)
SPECS = specs.Array((3,), np.float32), specs.DiscreteArray(2)
CONFIG = {"agent": "mine", "env": "own", "specs": encode_specs(*SPECS)}
CONFIG["train"] = {"script": "mine.py", "total_steps": 1, "seed": 0}
ODD = " []{}()'\"\\*?!\n\r\t.-~$%&;:|<>é日🎉\u202e\0\ud800ab1"
NAMES = st.text(ODD, min_size=1, max_size=12) | st.text(
    "é日a ", min_size=80, max_size=300
)


class State(NamedTuple):
    learner: LearnerState
    updates: Any


LAYOUT = State(LearnerState(parallel.SHARED, parallel.LOCAL), parallel.SHARED)
make_state = jax.jit(
    lambda: State(AGENT.initial_learner_state(jax.random.key(0)), jnp.uint32(1))
)


def write(folder):
    """What a run of one update does in its folder."""
    run_folder.check_startable(folder, False)
    with run_folder.created(folder, CONFIG) as path, recording.track_state(path, 1):
        with Checkpoints(path / run_folder.CHECKPOINTS) as checkpoints:
            checkpoints.save(make_state(), None)
        with JsonLines(path / run_folder.METRICS) as lines:
            lines.write({"steps": 1, "updates": 1})


def read(folder, base):
    """Its action, and whether it is the only run of the folder that holds it."""
    action = podracer.load(folder, agent=AGENT)(np.ones(3, np.float32))
    restored = Checkpoints(folder / run_folder.CHECKPOINTS).restore(
        make_state(), LAYOUT
    )
    (found,) = listing.find([base])
    assert found.folder == folder and int(restored.updates) == 1
    assert run_folder.load_state(folder)["state"] == "finished"
    return action


@contextlib.contextmanager
def or_one_line():
    try:
        yield
    except UserError as error:
        assert str(error) and len(str(error).splitlines()) == 1, str(error)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    base = tmp_path_factory.mktemp("whole")
    write(base / "run")
    return base / "run", read(base / "run", base)


@settings(FUZZ, phases=[Phase.explicit, Phase.generate])
@example(name="[lr 1e-3]")
@example(name="-rf")
@example(name="run..")
@example(name="a\nb")
@example(name="日" * 90)
@example(name=" ")
@given(name=NAMES)
def test_any_name_works_or_is_one_line(name, whole, tmp_path_factory):
    base = tmp_path_factory.mktemp("runs")
    folder = base / name
    if folder.parent != base or name in ("..", "."):
        return
    refused = True
    with or_one_line():
        write(folder)
        refused = False
    if refused:
        assert not [*base.iterdir()]
    else:
        assert read(folder, base) == whole[1]
    # It may get its name later.
    with contextlib.suppress(OSError, ValueError):
        shutil.copytree(whole[0], base / f"{name}2")
        with or_one_line():
            podracer.load(base / f"{name}2", agent=AGENT)
        with or_one_line():
            listing.find([base])
