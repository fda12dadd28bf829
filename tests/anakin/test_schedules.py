"""Hyperparameters that change as a run trains."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anakin
import anakin.command.subcommands as command
from anakin import schedules
from anakin.schedules import Schedule
from podracer.errors import UserError
from podracer.runs import lineage, run_folder
from tests.anakin.test_adaptation import maker
from tests.environments import Bandit

RATES = {"learning_rate": Schedule((0, 64, 70), (1e-2, 0.0, 0.0))}


def test_a_value_holds_from_the_first_update_after_its_steps():
    make = schedules.scheduled(
        lambda numbers: numbers["x"], {"x": RATES["learning_rate"]}, 16
    )
    at = make({"y": 1})
    assert [float(at(jnp.uint32(i))) for i in (0, 3, 4, 5)] == [
        np.float32(1e-2)
    ] * 2 + [0] * 2


def test_a_run_follows_its_schedule():
    """It learns until the learning rate is 0, as one that never changes it does."""
    options = {"batch_size": 4, "unroll_length": 4, "total_steps": 96, "cores": 1}
    options |= {"updates_per_report": 4}

    def learners(agent):
        runs = anakin.train(agent, Bandit(), **options)
        params = [jax.device_get(state.learner.shared.params) for state, _ in runs]
        return [np.concatenate([x.ravel() for x in jax.tree.leaves(p)]) for p in params]

    constant = {"learning_rate": jnp.float32(1e-2)}
    after_4, after_6 = learners(schedules.scheduled(maker(), RATES, 16)({}))
    plain_4, plain_6 = learners(maker()(constant))
    np.testing.assert_allclose(after_4, plain_4, atol=1e-6)
    np.testing.assert_array_equal(after_6, after_4)
    assert (plain_6 != plain_4).any()


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (["learning-rate=1e-3"], "it must be FIELD=STEPS:VALUE,STEPS:VALUE"),
        (["learning-rate=1:1e-3"], "its steps must begin with 0 and increase"),
        (["learning-rate=0:1,5:2,5:3"], "its steps must begin with 0 and increase"),
        (["clip=0:1", "agent.clip=0:1"], "schedule has clip twice"),
    ],
)
def test_bad_schedules_are_one_line(texts, line):
    with pytest.raises(UserError, match=line):
        schedules.parse(texts)


def test_text_and_back():
    lives = [{"learning_rate": x, "clip": 0.1} for x in (1e-3, 1e-3, 0.123456789012)]
    texts = schedules.to_text([0, 10.0, 500_000.0], lives)
    assert schedules.parse(texts) == {
        "learning_rate": Schedule((0, 500_000), (1e-3, 0.123456789012)),
        "clip": Schedule((0,), (0.1,)),
    }


def run(*flags):
    command.train(["--quiet", *flags])


@pytest.mark.slow
def test_a_population_and_the_schedule_of_its_best_member(tmp_path, monkeypatch):
    """By the command: folders, lineage, a single run that repeats it; resumed as one only."""
    monkeypatch.setattr(command.parallel, "use_cpu_cores", lambda *_, **__: None)
    several, single = tmp_path / "several", tmp_path / "single"
    flags = (
        "--agent impala --env catch --batch-size 8 --unroll-length 8 --total-steps 3200"
    )
    flags = [*flags.split(), "--network.hidden-sizes", "8"]
    pbt = "--population 4 --cores 2 --pbt.interval 640 --pbt.fields learning-rate=1e-6..1e-1"
    run(*flags, *pbt.split(), f"--run={several}")
    history = lineage.read(several)
    assert history.starts == {i: 640.0 * i for i in range(5)}
    life = lineage.of_folder(several)
    assert [x.steps for x in life] == [*history.starts.values()]
    config = several / "member-1" / "config.json"
    stored = run_folder.load_config(config.parent)["config"]
    assert stored["population"] == 4 and stored["train"]["population"] is None
    run(f"--config={config}", f"--schedule={several}", "--cores=2", f"--run={single}")
    train = json.loads((single / "config.json").read_text())["config"]["train"]
    [schedule] = schedules.parse(train["schedule"]).values()
    assert schedule.values[-1] == life[-1].hyperparameters["learning_rate"]
    with pytest.raises(
        UserError, match=f"a member of a population.*--resume {several}"
    ):
        run(f"--resume={config.parent}")
    run(f"--resume={several}")
    with pytest.raises(UserError, match="holds no population"):
        run(*flags, f"--schedule={single}")
    with pytest.raises(UserError, match="schedule: learning_rate is -1"):
        run(*flags, "--schedule=learning-rate=0:-1")
    with pytest.raises(
        UserError, match="schedule has epochs; it must be one of the agent's"
    ):
        run(*flags, "--schedule=epochs=0:1")
    with pytest.raises(
        UserError, match="--schedule and --sweep both have learning_rate"
    ):
        run(*flags, "--schedule=learning-rate=0:1", "--sweep=learning-rate=1,2")
