"""The command `evaluate`: checkpoints, environments and their options, and what it keeps."""

import json
import os
import subprocess
import sys

import gymnasium
import jax
import numpy as np
import pytest

import anakin
import anakin.command.subcommands as anakin_command
import envs_jax
import podracer.__main__ as podracer_command
import sebulba
import sebulba.command.subcommands as sebulba_command
from podracer.checkpoints import retention
from podracer.errors import UserError
from podracer.runs import evaluation
from podracer.trained import evaluating, loading, settings
from sebulba import host_environments
from tests.podracer.trained.test_loading import SMALL, counting_agent, train


@pytest.fixture(scope="module")
def car(tmp_path_factory):
    """A run in mountain-car, which says whether an episode succeeds, with two checkpoints."""
    folder = tmp_path_factory.mktemp("runs") / "car"
    flags = f"--env mountain-car {SMALL} --cores 1 --total-steps 256"
    return train(anakin_command, folder, f"{flags} --checkpoint.steps 128")


@pytest.fixture(scope="module")
def grid(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "grid"
    flags = f"--env grid-empty {SMALL} --network.torso mlp --cores 1 --total-steps 64"
    train(anakin_command, folder, flags)
    path = folder / "config.json"
    config = json.loads(path.read_text()) | {"command": f"anakin train {flags}"}
    path.write_text(json.dumps(config))  # not pytest's
    return folder


def results(folder):
    lines = (folder / "evaluation.jsonl").read_text().splitlines()
    return [json.loads(line, parse_constant=pytest.fail) for line in lines]


def test_it_keeps_every_episode_and_its_statistics(car, capsys):
    anakin_command.evaluate([str(car), "--episodes", "50", "--seed", "3", "--sampled"])
    (kept,) = results(car)
    assert len(kept["returns"]) == 50 == kept["episodes"] and kept["unfinished"] == 0
    assert kept["episode_return"] == pytest.approx(np.mean(kept["returns"]))
    assert kept["low"] <= kept["episode_return"] <= kept["high"]
    assert (kept["checkpoint"], kept["seed"], kept["sampled"]) == (4, 3, True)
    agent = loading.restore(car)
    environment = envs_jax.make("mountain-car")
    found = anakin.evaluate(
        agent.agent, agent.params, environment, episodes=50, seed=3, greedy=False
    )
    assert kept["returns"] == found.episode_return.tolist()
    assert kept["lengths"] == found.episode_length.tolist()
    said = capsys.readouterr().out
    assert said.startswith(
        "mountain-car: mean return -200 (-200 to -200, 95 %), median"
    )
    assert "over 50 episodes of 200 steps, sampled, after 4 updates; 0.0% succ" in said


def test_each_checkpoint_and_value_is_a_line(car, grid, capsys, tmp_path):
    out = tmp_path / "results.jsonl"
    flags = "--episodes 2 --max-steps 3 --checkpoint 2 newest 4 --out"
    anakin_command.evaluate([str(car), *flags.split(), str(out)])
    kept = [json.loads(line) for line in out.read_text().splitlines()]
    assert [x["checkpoint"] for x in kept] == [2, 4]  # each once
    flags = "--env.size 8 5 --env.no-random-start --env.see-through False True"
    with pytest.raises(UserError, match="see"):  # a switch takes no value
        anakin_command.evaluate([str(grid), *flags.split()])
    capsys.readouterr()
    flags = "--env.size 8 5 --env.random-start --episodes 2 --max-steps 3"
    anakin_command.evaluate([*flags.split(), str(grid)])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("grid-empty (random_start: False -> True): mean")
    assert lines[1].startswith(
        "grid-empty (size: 8 -> 5, random_start: False -> True):"
    )
    assert [x["options"]["size"] for x in results(grid)] == [8, 5]
    assert results(grid)[1]["differs"] == [
        "size: 8 -> 5",
        "random_start: False -> True",
    ]


def test_other_environments_of_the_same_shapes(grid, capsys):
    flags = "--episodes 2 --max-steps 3 --env grid-door-key grid-empty --env.size 6"
    anakin_command.evaluate([str(grid), *flags.split()])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("grid-door-key (size: 8 -> 6): mean return 0")
    assert lines[1].startswith("grid-empty (size: 8 -> 6): mean return")
    with pytest.raises(
        UserError, match=r"^catch: its observations are float32 \[10, 5"
    ):
        anakin_command.evaluate([str(grid), "--env", "catch"])
    with pytest.raises(UserError, match="unknown name 'grid-epmty'; did you mean"):
        anakin_command.evaluate([str(grid), "--env", "grid-epmty"])


def test_the_other_architecture_plays_where_it_is_told_where(grid, capsys):
    with pytest.raises(UserError, match="a run of anakin, not of sebulba: say anakin"):
        sebulba_command.evaluate([str(grid)])
    flags = "--env jax:grid-empty --env.size 5 --episodes 3 --environments 2"
    sebulba_command.evaluate([str(grid), *flags.split(), "--max-steps", "101"])
    (kept,) = results(grid)
    assert kept["env"] == "jax:grid-empty" and kept["environments"] == 2
    assert len(kept["succeeded"]) == 3 and "% succeeded" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--checkpoint last", "checkpoint is last; it must be a number of updates,"),
        ("--checkpoint", "checkpoint is empty; name some, or newest"),
        ("--env --seed 3", "--env: a name is missing"),
        ("--checkpoint 3", "no such checkpoint; there are 2, 4"),
        ("--env.size 7", "--env.size: no such flag"),
        ("--env.length", "--env.length: no such flag"),
        ("--episodes", "episodes"),
        ("--agent dqn", "--agent is dqn, but"),
        ("--out /proc/none/x.jsonl", "cannot write"),
    ],
)
def test_bad_flags_are_one_line(car, flags, line):
    with pytest.raises(UserError, match=line) as error:
        anakin_command.evaluate([str(car), "--max-steps", "2", *flags.split()])
    assert "\n" not in str(error.value)


def test_the_best_checkpoint_is_that_of_the_best_return(tmp_path):
    for updates, number in ((3, "1.5"), (5, "2"), (8, "2"), (9, "NaN"), (10, "null")):
        path = tmp_path / str(updates) / "metrics"
        path.mkdir(parents=True)
        (path / "metrics").write_text(f'{{"episode_return": {number}}}')
    assert retention.best(tmp_path, [10, 9, 8, 5, 3]) == 8
    assert retention.best(tmp_path, [10, 9]) == 10  # nothing is known of either


def test_a_name_takes_values_until_the_next_flag():
    argv = (
        "RUN --env.x 1 -2 --episodes 3 --env a b --env.y=4 --env.z --sampled --env.x 5"
    )
    rest, names, options = settings.split(argv.split())
    assert rest == ["RUN", "--episodes", "3", "--sampled"] and names == ["a", "b"]
    assert options == [
        ["--env.x", "1", "-2", "5"],
        ["--env.y", "4"],
        ["--env.z"],
    ]


def test_success_is_that_of_the_last_timestep_in_both_architectures():
    """Some of those that go forward from anywhere in four squares come to the goal."""
    environment = envs_jax.make("grid-empty", size=4, random_start=True)
    played = anakin.evaluate(*forward(), environment, episodes=64)
    assert played.succeeded.dtype == bool
    np.testing.assert_array_equal(played.succeeded, played.episode_return > 0)
    assert 0 < played.succeeded.sum() < 64
    options = host_environments.default_options("jax:grid-empty")
    options = type(options)(size=4, random_start=True)
    host = host_environments.make("jax:grid-empty", 8, 0, 1, options)
    played = sebulba.evaluate(*forward(), host, episodes=16)
    np.testing.assert_array_equal(played.succeeded, played.episode_return > 0)
    assert 0 < played.succeeded.sum() < 16
    assert evaluation.summary(played)["success_rate"] == played.succeeded.mean()


FORWARD = 2


def forward():
    """An agent that takes a step forward whatever it sees."""
    agent, params = counting_agent()

    def step(key, params, state, timestep):
        seen = timestep._replace(observation=np.zeros((len(timestep.reward), 1)))
        state, output = agent.actor_step(key, params, state, seen)
        return state, output._replace(
            action=jax.numpy.full_like(output.action, FORWARD)
        )

    return agent._replace(greedy_actor_step=step), params


def test_an_environment_without_a_goal_has_no_rate():
    played = anakin.evaluate(*counting_agent(), envs_jax.make("bandit"), episodes=2)
    assert played.succeeded is None
    assert evaluation.summary(played)["success_rate"] is None


class Reaching(gymnasium.Env):
    """Two steps an episode; the odd episodes succeed, and the last info says so."""

    def __init__(self):
        self.observation_space = gymnasium.spaces.Box(0, 1, (1,), np.float32)
        self.action_space = gymnasium.spaces.Discrete(2)
        self.episode = -1

    def reset(self, *, seed=None, options=None):
        self.episode, self.steps = self.episode + 1, 0
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        info = {"is_success": self.episode % 2 == 1} if self.steps == 2 else {}
        return np.zeros(1, np.float32), 1.0, False, self.steps == 2, info


def test_success_is_read_from_an_info_of_gymnasium():
    from sebulba.host_environments.options import Options
    from sebulba.host_environments.processes import Processes

    host = Processes("gym:reaching", lambda seed: Reaching, 1, 0, Options())
    try:
        agent, params = counting_agent()
        played = sebulba.evaluate(agent, params, host, episodes=4)
    finally:
        host.close()
    assert played.succeeded.tolist() == [False, True, False, True]


def result(returns, finished=True, config=None):
    returns = np.array(returns)
    count = len(returns)
    played = evaluation.Evaluation(
        returns, np.ones(count, int), np.full(count, finished)
    )
    means = evaluation.summary(played)
    return evaluating.described(means, config or evaluating.Config(), 5)


def test_an_outlier_moves_the_mean_and_its_interval_alone():
    returns = np.array([1.0, 2.0, 2.0, 3.0, 3.0, 4.0, 4.0, 1000.0])
    ones = np.ones(8, int)
    means = evaluation.summary(evaluation.Evaluation(returns, ones, ones > 0))
    assert means["episode_return"] == returns.mean()
    assert means["iqm"] == means["median"] == 3.0
    assert means["low"] < 10 and means["high"] > 200
    assert 2 <= means["iqm_low"] <= 3 <= means["iqm_high"] < 260


def test_the_line_counts_what_was_played():
    """Not what was asked for: an environment whose episode is cut off plays no other."""
    line = result([1.0], False, evaluating.Config(episodes=9, max_steps=3))
    assert "over 1 episodes of 1 steps" in line
    assert line.endswith("after 5 updates; 1 unfinished after 3 steps")


def test_a_return_that_is_not_finite_has_no_interval():
    assert result([1.0, np.nan]).startswith("mean return -, median -, IQM - over 2")


def test_podracer_evaluate_is_the_command_of_the_runs_architecture(car, monkeypatch):
    called = []
    monkeypatch.setattr(os, "execv", lambda *x: called.append(x))
    podracer_command.evaluate(["--episodes", "3", str(car)])
    expected = [sys.executable, "-m", "anakin", "evaluate", "--episodes", "3", str(car)]
    assert called == [(sys.executable, expected)]
    for argv, line in (([], "which run?"), (["gone"], "gone/config.json: No such")):
        with pytest.raises(UserError, match=line):
            podracer_command.evaluate(argv)


def test_podracer_evaluate_as_a_user_types_it(car):
    line = [sys.executable, "-m", "podracer", "evaluate", str(car)]
    done = subprocess.run(
        [*line, "--episodes", "2", "--max-steps", "3"],
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    assert "2 unfinished after 3 steps" in done.stdout
