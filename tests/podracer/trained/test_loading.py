"""Trained agents, out of their run folders: acting, evaluation, pictures, export."""

import collections
import dataclasses
import json
import pickle
import re
import runpy
import shutil
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.flax
import safetensors.numpy
import yaml
from dm_env import StepType, TimeStep, specs
from PIL import Image

import anakin
import anakin.command.subcommands as anakin_command
import envs_jax
import podracer
import podracer.__main__ as command
import sebulba
import sebulba.command.subcommands as sebulba_command
from podracer import exported, metrics
from podracer.agents import ppo
from podracer.errors import UserError
from podracer.runs import comparison, evaluation, spec_json
from podracer.trained import exporting, filming, hub, loading, policy, video, weights
from sebulba import host_environments
from tests.agents import reinforce
from tests.environments import Counter, HostCounter
from tests.jitted import jitted

DOCS = Path(__file__).parents[3] / "docs"
NAME = "params.head.bias"
TIMES = ("seconds", "waiting", "per_second", "evaluation")


def train(command, folder, flags):
    """A run by the command, in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("podracer.parallel.use_cpu_cores", lambda *_, **__: None)
        command.train([*flags.split(), "--quiet", "--run", str(folder)])
    return folder


SMALL = "--agent ppo --batch-size 8 --unroll-length 8 --network.hidden-sizes 8"


@pytest.fixture(scope="module")
def catch(tmp_path_factory):
    """Two runs that differ in `--evaluate` alone; they have a memory."""
    flags = f"--env catch {SMALL} --network.memory lstm --network.memory-size 4 --cores 2 --total-steps 1280"
    folders = [tmp_path_factory.mktemp("runs") / name for name in ("apart", "plain")]
    train(anakin_command, folders[0], f"{flags} --evaluate.steps 500")
    train(anakin_command, folders[1], flags)
    return folders


@pytest.fixture(scope="module")
def pong(tmp_path_factory):
    flags = f"--env Pong-v5 {SMALL} --total-steps 128 --actor-cores 1"
    folder = tmp_path_factory.mktemp("runs") / "pong"
    return train(sebulba_command, folder, f"{flags} --learner-cores 1 --env.per-life")


def seen(trained_agent, batch_size, steps):
    """Drawn observations [steps, B, ...]."""
    spec = trained_agent.observation_spec
    shape = (steps, batch_size, *spec.shape)
    return np.random.default_rng(0).integers(0, 2, shape).astype(spec.dtype)


def test_a_loaded_policy_acts_as_the_agent_does(catch):
    act = podracer.load(catch[0], batch_size=3)
    agent = loading.restore(catch[0])
    state = jax.tree.map(np.asarray, agent.agent.initial_actor_state(3))
    greedy_actor_step = jax.jit(agent.agent.greedy_actor_step)
    keys = jax.random.split(jax.random.key(0), 3)
    single = podracer.load(catch[0])
    for step, observation in enumerate(seen(agent, 3, 8)):
        first = np.array([step in (0, 5), step == 0, step in (0, 2)])
        kinds = np.where(first, StepType.FIRST, StepType.MID).astype(np.int32)
        timestep = TimeStep(kinds, np.zeros(3, "f4"), np.ones(3, "f4"), observation)
        state, output = greedy_actor_step(keys, agent.params, state, timestep)
        state = jax.tree.map(np.asarray, state)
        np.testing.assert_array_equal(act(observation, first), output.action)
        if step == 5:
            single.reset()
        assert single(observation[0]) == output.action[0]


def test_actions_have_the_dtype_of_their_spec(catch):
    trained = loading.restore(catch[0])
    spec = trained.action_spec.replace(dtype=np.uint8)
    act = policy.Policy(trained._replace(action_spec=spec), 2, True, 0)
    action = act(np.zeros((2, 10, 5), np.float32))
    assert action.dtype == np.uint8 and spec.validate(action[0]) == action[0]


def test_sampled_actions_differ_and_repeat(catch):
    observation = np.zeros((64, 10, 5), np.float32)
    one, same, other = (
        podracer.load(catch[0], batch_size=64, greedy=False, seed=seed)(observation)
        for seed in (0, 0, 1)
    )
    assert (one == same).all() and (one != other).any() and len({*one.tolist()}) > 1


def test_what_cannot_be_loaded_is_one_line(catch, tmp_path):
    with pytest.raises(
        ValueError, match=r"is \(3,\); this agent sees \(10, 5\) float32"
    ):
        podracer.load(catch[0])(np.zeros(3))
    with pytest.raises(UserError, match="not a run"):
        podracer.load(tmp_path)
    with pytest.raises(UserError, match="no such checkpoint; there are 20"):
        podracer.load(catch[0], updates=7)
    shutil.copy(catch[0] / "config.json", tmp_path)
    with pytest.raises(UserError, match="no whole checkpoint"):
        podracer.load(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    del config["config"]["specs"]
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="use the version that wrote it"):
        podracer.load(tmp_path)


def test_an_exported_agent_comes_back(catch, tmp_path):
    file = tmp_path / "weights.safetensors"
    exporting.export(catch[0], file)
    act, exported = podracer.load(catch[0]), podracer.load(catch[1], weights=file)
    jax.tree.map(np.testing.assert_array_equal, act.params, exported.params)
    tensors = safetensors.numpy.load_file(file)
    assert {"params.policy_head.Dense_0.kernel"} < tensors.keys()
    shutil.copy(catch[0] / "config.json", tmp_path)  # a folder without checkpoints
    alone = podracer.load(tmp_path)
    jax.tree.map(np.testing.assert_array_equal, act.params, alone.params)
    with pytest.raises(UserError, match=r"which run\? podracer.load\(RUN, weights="):
        podracer.load(weights=file)
    with pytest.raises(UserError, match="updates and weights: choose one"):
        podracer.load(catch[0], weights=file, updates=20)


@pytest.mark.parametrize(
    "change, line",
    [
        ({NAME: None}, f"has no {NAME}, which the agent of this run needs"),
        ({"more": np.zeros(2)}, "has 'more', which the agent of this run has not"),
        ({NAME: np.zeros(2, "f4")}, rf"{NAME} is F32 \(2,\); .* needs F32 \(3,\)"),
        ({NAME: np.zeros(3, "f8")}, rf"{NAME} is F64 \(3,\); .* needs F32 \(3,\)"),
    ],
)
def test_weights_of_another_agent_are_one_line(tmp_path, change, line):
    params = {"params": {"head": {"bias": jnp.zeros(3)}}, "key": jax.random.key(1)}
    tensors = {NAME: np.ones(3, "f4")} | change
    file = tmp_path / "x.safetensors"
    present = {k: x for k, x in tensors.items() if x is not None}
    safetensors.numpy.save_file(present, file)
    with pytest.raises(UserError, match=line):
        weights.read(file, params)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int32", "uint8"])
def test_weights_come_back_bit_for_bit(tmp_path, dtype):
    """Bit for bit, whatever the dtype; a NaN is a number of the run's own."""
    there = jnp.array([1, 2, np.nan if "float" in dtype else 3]).astype(dtype)
    params = {"x": jnp.zeros(3, dtype), "key": jax.random.key(1)}
    file = tmp_path / "x.safetensors"
    safetensors.flax.save_file({"x": there}, file)
    found = weights.read(file, params)
    assert found["x"].tobytes() == there.tobytes() and found["x"].dtype == dtype
    assert found["key"] is params["key"]


def test_flags_are_weights_and_random_keys_stay(tmp_path):
    """SAC acts at random while its flag says that it is untrained."""
    file = tmp_path / "w.safetensors"
    saved = {"untrained": jnp.array([True, False]), "w": jnp.arange(3.0)}
    file.write_bytes(weights.written(saved | {"key": jax.random.key(1)}))
    fresh = jax.tree.map(jnp.zeros_like, saved) | {"key": jax.random.key(2)}
    read = weights.read(file, fresh)
    assert jax.random.key_data(read.pop("key")).tolist() == [0, 2]
    jax.tree.map(np.testing.assert_array_equal, read, saved)


def test_a_damaged_file_of_weights_is_one_line(tmp_path):
    params, file = {"x": jnp.zeros(3)}, tmp_path / "x.safetensors"
    with pytest.raises(UserError, match="cannot read: No such file"):
        weights.read(file, params)
    whole = safetensors.numpy.save({"x": np.zeros(3, "f4")})
    flipped = whole[:12] + b"\xff" + whole[13:]
    for data in (b"", whole[:20], whole[:-1], flipped, pickle.dumps(1), b"\xff" * 99):
        file.write_bytes(data)
        with pytest.raises(UserError, match="no safetensors, or damaged"):
            weights.read(file, params)


def test_an_export_replaces_no_file_of_the_run(catch):
    file = catch[0] / "config.json"
    before = file.read_bytes()
    with pytest.raises(UserError, match=r"json; it must end in \.safetensors, "):
        exporting.export(catch[0], file)
    assert file.read_bytes() == before


def test_an_export_replaces_no_rule_of_a_run(catch, tmp_path):
    file = tmp_path / "rule.safetensors"
    assert exporting.export(catch[0], file)  # there is no run beside it
    (tmp_path / "config.json").write_text("{}")
    before = file.read_bytes()
    with pytest.raises(UserError, match=r"it is the rule of a run: choose another"):
        exporting.export(catch[1], file, updates=20)
    assert file.read_bytes() == before


def test_exported_parameters_are_those_that_act(catch, tmp_path):
    from safetensors import safe_open

    file = tmp_path / "policy.safetensors"
    numbers = exporting.write_parameters(loading.restore(catch[0]), file)
    leaves = map(np.asarray, jax.tree.leaves(loading.restore(catch[0]).params))
    leaves = [*leaves]
    with safe_open(file, "numpy") as tensors:
        assert tensors.metadata() == {"agent": "ppo", "env": "catch", "updates": "20"}
        kept = {name: tensors.get_tensor(name) for name in tensors.keys()}  # noqa: SIM118
    assert sum(x.size for x in kept.values()) == numbers == sum(x.size for x in leaves)
    assert any(name.endswith("kernel") for name in kept)
    assert sorted(map(np.sum, kept.values())) == sorted(np.sum(x) for x in leaves)


def test_the_command_compares_a_program_in_the_environment_of_its_run(
    catch, tmp_path, capsys
):
    folder, file = tmp_path / "run", tmp_path / "policy.stablehlo"
    shutil.copytree(catch[0], folder)
    config = json.loads((folder / "config.json").read_text())
    config["command"] = "anakin train"  # not pytest
    (folder / "config.json").write_text(json.dumps(config))
    command.export([str(folder), str(file), "--checkpoint", "20"])
    assert re.fullmatch(
        r".*policy\.stablehlo: 0\.\d\d MB, greedy; acts as podracer\.load, bit for bit "
        r"\(\d+ actions on played observations\)\n",
        capsys.readouterr().out,
    )
    assert exported.load(file).header["updates"] == 20


@pytest.mark.slow
def test_a_program_of_a_host_environment_sees_drawn_observations(
    pong, tmp_path, capsys
):
    command.export([str(pong), str(tmp_path / "policy.stablehlo")])
    assert "actions on drawn observations" in capsys.readouterr().out


def test_evaluation_leaves_the_bits_of_training_alone(catch):
    apart, plain = ([*metrics.read(x / "metrics.jsonl")] for x in catch)

    def timeless(rows):
        return [
            {k: v for k, v in row.items() if not any(t in k for t in TIMES)}
            for row in rows
        ]

    assert timeless(apart) == timeless(plain)
    params = (loading.restore(folder).params for folder in catch)
    jax.tree.map(np.testing.assert_array_equal, *params)
    due = [row["steps"] for row in apart if row["evaluation_episodes"]]
    assert due == [512, 1024] and "evaluation_return" not in plain[0]
    for row in apart:
        if row["evaluation_episodes"]:
            assert row["evaluation_episodes"] == 32
            assert (
                row["evaluation_low"]
                <= row["evaluation_return"]
                <= row["evaluation_high"]
            )
        else:
            assert row["evaluation_return"] is None


def test_a_run_of_the_other_architecture_is_one_line(catch, tmp_path):
    text = (catch[0] / "config.json").read_text()
    config = json.loads(text) | {"command": "anakin train --env catch"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    for flags in (["--resume", str(tmp_path)], [str(tmp_path)]):
        called = sebulba_command.train if len(flags) == 2 else sebulba_command.evaluate
        with pytest.raises(
            UserError, match="a run of anakin, not of sebulba: say anakin"
        ):
            called(flags)


@pytest.mark.slow
def test_games_are_whole_whatever_an_episode_was(pong, capsys):
    flags = "--episodes 2 --max-steps 30 --environments 2"
    sebulba_command.evaluate([str(pong), *flags.split()])
    assert "2 unfinished after 30 steps" in capsys.readouterr().out
    stored = loading.restore(pong).run
    environment = sebulba_command.environments.of_run(stored, 1, 0)
    environment.close()
    assert stored.config["env"]["per_life"] and environment.finished_games() is None


def counting_agent():
    """PPO, untrained, for HostCounter."""
    host = HostCounter()
    network = podracer.networks.actor_critic(
        host.observation_spec(),
        host.action_spec(),
        podracer.networks.Config(hidden_sizes=(4,)),
    )
    agent = ppo.make_agent(ppo.Config(), network)
    return agent, agent.actor_params(agent.initial_learner_state(jax.random.key(0)))


def test_each_environment_plays_its_share():
    agent, params = counting_agent()
    found = sebulba.evaluate(agent, params, HostCounter(4), episodes=6)
    # Environment i begins at i, so that its first episode is i steps shorter.
    assert sorted(found.episode_length.tolist()) == [2, 3, 4, 5, 5, 5]
    assert found.finished.all()
    cut = sebulba.evaluate(agent, params, HostCounter(1), episodes=9, max_steps=3)
    assert cut.episode_length.tolist() == [3] and not cut.finished.any()


@pytest.mark.parametrize("play", ["evaluate", "film"])
def test_a_host_environment_plays_with_actions_of_its_own_dtype(play):
    class Typed(HostCounter):
        def action_spec(self):
            return specs.DiscreteArray(2, np.uint8)

        def step(self, action):
            dtypes.append(action.dtype)
            return super().step(action)

        def render(self):
            return np.zeros((2, 2), np.uint8)

    dtypes = []
    getattr(sebulba, play)(*counting_agent(), Typed(1), episodes=1)
    assert dtypes and set(dtypes) == {np.dtype(np.uint8)}


@pytest.mark.parametrize("play", ["evaluate", "film"])
@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"episodes": 0}, "episodes is 0; it must be from 1 to"),
        ({"max_steps": 0}, "max_steps is 0; it must be from 1 to"),
        ({"seed": 2**32}, f"seed is {2**32}; it must be from 0 to"),
    ],
)
def test_a_script_cannot_play_with_impossible_numbers(play, options, line):
    with pytest.raises(UserError, match=line):
        getattr(anakin, play)(*counting_agent(), envs_jax.Catch(), **options)
    with pytest.raises(UserError, match=line):
        getattr(sebulba, play)(*counting_agent(), HostCounter(1), **options)


@pytest.mark.parametrize("film", [anakin.film, sebulba.film, video.Config])
def test_a_film_fits_in_memory(film):
    play = () if film is video.Config else (*counting_agent(), None)
    with pytest.raises(UserError, match="^max_steps is 30001; .* from 1 to 30000$"):
        film(*play, max_steps=30_001)


def test_many_episodes_are_played_in_parts(monkeypatch):
    """Memory holds one part; the episodes are those that are played side by side."""
    agent, params = counting_agent()
    sizes = []

    def initial_actor_state(size):
        sizes.append(size)
        return agent.initial_actor_state(size)

    seen = agent._replace(initial_actor_state=initial_actor_state)
    environment = envs_jax.make("bandit", arms=2, noise=1.0)
    options = {"episodes": 10, "greedy": False}
    whole = anakin.evaluate(seen, params, environment, **options)
    monkeypatch.setattr(anakin.evaluation, "AT_ONCE", 4)
    parts = anakin.evaluate(seen, params, environment, **options)
    assert sizes == [10, 4]
    jax.tree.map(np.testing.assert_array_equal, whole, parts)
    assert len({*whole.episode_return.tolist()}) > 1


def test_an_environment_without_a_hash_is_evaluated():
    """As it is trained in: a dataclass that is not frozen, or has an array, has none."""

    @dataclasses.dataclass(eq=True)
    class Plain:
        environment: Counter
        __getattr__ = lambda self, name: getattr(self.environment, name)

    found = anakin.evaluate(*counting_agent(), Plain(Counter()), episodes=2)
    assert found.episode_length.tolist() == [5, 5]


def test_the_interval_is_of_the_mean():
    random = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        low, high = evaluation.interval(random.normal(3.0, 2.0, (40, 1)))
        covered += int(low[0] <= 3.0 <= high[0])
    assert 50 <= covered  # 57 expected of a 95 % interval
    one = evaluation.Evaluation(np.ones(1), np.ones(1, int), np.ones(1, bool))
    assert evaluation.summary(one)["low"] is None


def test_the_interval_of_many_episodes_takes_no_more_memory(monkeypatch):
    values, sizes = np.random.default_rng(1).normal(size=(50, 1)), []

    def mean(resamples, axis):
        sizes.append(resamples.size)
        return np.mean(resamples, axis=axis)

    expected = evaluation.interval(values, mean)
    assert max(sizes) == 100 * 50
    sizes.clear()
    monkeypatch.setattr(evaluation, "MOST_DRAWN", 500)
    assert evaluation.interval(values, mean) == expected
    assert max(sizes) == 500


def seconds_of(path):
    """How long each picture of a .gif is shown."""
    with Image.open(path) as film:
        return [
            film.info["duration"] / 1000
            for n in range(film.n_frames)
            if film.seek(n) is None
        ]


def test_episodes_as_a_film(catch, tmp_path, capsys):
    out = tmp_path / "episodes.gif"
    anakin_command.render([str(catch[0]), str(out), "--episodes", "2"])
    # Ten timesteps an episode; Catch falls at five a second, and each end is held.
    said = capsys.readouterr().out
    assert "20 frames, 320 x 374, 5 per second, 2 whole episodes" in said
    assert seconds_of(out) == ([0.2] * 9 + [1.0]) * 2
    anakin_command.render([str(catch[0]), str(out), "--fps", "10", "--max-steps", "3"])
    assert "4 frames" in capsys.readouterr().out
    assert seconds_of(out) == [0.1] * 3 + [1.0]
    with pytest.raises(UserError, match="it must end in .gif or .mp4"):
        anakin_command.render([str(catch[0]), "film.avi"])
    with pytest.raises(UserError, match="episodes is 0"):
        anakin_command.render([str(catch[0]), str(out), "--episodes", "0"])
    for counter in (Counter(), envs_jax.TimeLimit(Counter(), 3)):
        with pytest.raises(ValueError, match="Counter has no pictures"):
            anakin.film(*counting_agent(), counter)


def test_a_film_of_a_wrapped_environment():
    class Drawn(Counter):
        def render(self, state):
            return jnp.full((4, 4, 3), state, jnp.uint8)

    class Own(envs_jax.Wrapper):
        pass

    film = anakin.film(*counting_agent(), Own(envs_jax.TimeLimit(Drawn(), 3)))
    assert [frame.picture.max() for frame in film.frames] == [0, 1, 2, 3]


@pytest.mark.slow
def test_a_game_as_a_film(pong, tmp_path, capsys):
    out = tmp_path / "pong.gif"
    sebulba_command.render([str(pong), str(out), "--max-steps", "5"])
    said = capsys.readouterr().out
    assert "6 frames, 320 x 444, 14.29 per second, the nearest to 15" in said
    assert said.endswith("that a .gif has, 0 whole episodes\n")
    with pytest.raises(ValueError, match="it has no pictures"):
        sebulba.film(*counting_agent(), HostCounter(1))


def test_both_architectures_film_the_same_score(catch):
    """Rewards and ends are the timesteps'; a reset is no environment step."""
    environment = envs_jax.make("catch")
    trained = loading.restore(catch[0])
    host = host_environments.make(
        "jax:catch", 1, 0, 1, host_environments.default_options("jax:catch")
    )
    options = {"episodes": 2, "max_steps": 13}
    films = (
        anakin.film(trained.agent, trained.params, environment, **options),
        sebulba.film(trained.agent, trained.params, host, **options),
    )
    for film in films:
        assert film.fps == 5
        first = [bool(frame.timestep.first()) for frame in film.frames]
        assert first == [n in (0, 10) for n in range(15)]
        *_, ninth, tenth, eleventh = list(video.scores(film))[:12]
        reward = float(film.frames[9].timestep.reward)
        assert abs(reward) == 1
        assert ninth == f"episode 1   return {reward:g}   step 9"
        assert tenth == "episode 2   return 0   step 0"
        assert eleventh == "episode 2   return 0   step 1"


def a_film(size, steps):
    """One episode whose pictures grow lighter, a reward of 1 in each step."""
    kinds = [StepType.FIRST, *[StepType.MID] * (steps - 1), StepType.LAST]
    return filming.Film(
        [
            filming.Frame(
                np.full(size, 20 * n, np.uint8),
                TimeStep(np.int32(kind), np.float32(n > 0), np.float32(1), ()),
            )
            for n, kind in enumerate(kinds)
        ],
        fps=100.0,
    )


def test_the_score_stands_below_the_picture(tmp_path):
    out = tmp_path / "x.gif"
    said = video.write(a_film((5, 7), 6), out)
    # As many pixels as are whole multiples, both sides even, no faster than viewers.
    assert said.endswith("7 frames, 322 x 254, 50 per second, 1 whole episode")
    with Image.open(out) as film:
        film.seek(6)
        last = np.asarray(film.convert("RGB"))
        film.seek(5)
        before = np.asarray(film.convert("RGB"))
    assert (last[:230] == 120).all() and (before[:230] == 100).all()
    assert last[-video.TEXT :].max() > 200  # letters
    assert (last[-video.TEXT :] != before[-video.TEXT :]).any()


@pytest.mark.parametrize(
    ("asked", "said", "seconds"),
    [
        (100, "50 per second, the nearest to 100 that a .gif has, 1", 0.02),
        (30, "33.33 per second, the nearest to 30 that a .gif has, 1", 0.03),
        (25, "254, 25 per second, 1", 0.04),
        (0.1, "254, 0.1 per second, 1", 10.0),
    ],
)
def test_the_pace_of_a_gif_is_said(tmp_path, asked, said, seconds):
    line = video.write(a_film((5, 7), 3), tmp_path / "x.gif", asked)
    assert line.endswith(f"{said} whole episode")
    assert seconds_of(tmp_path / "x.gif") == [seconds] * 3 + [1.0]


def test_a_film_for_everyone(tmp_path):
    pytest.importorskip("imageio_ffmpeg")
    said = video.write(a_film((5, 7), 5), tmp_path / "x.mp4", 10.0)
    assert said.endswith("6 frames, 322 x 254, 10 per second, 1 whole episode")
    assert b"ftyp" in (tmp_path / "x.mp4").read_bytes()[:12]


SPECS = {
    "several": (
        specs.BoundedArray((3,), "f4", -np.inf, np.inf),
        specs.DiscreteArray(4),
    ),
    "flags": specs.BoundedArray((2,), bool, False, True),
    "image": specs.BoundedArray((8, 8), np.uint8, 0, 255),
    "free": specs.Array((), np.float32),
    "choices": specs.BoundedArray((2,), np.int64, 0, [3, 2**60 + 1]),
    "half": specs.BoundedArray((2,), np.float32, [-1, -np.inf], [0.1, 2]),
}


def test_specs_come_back_out_of_json():
    text = json.dumps(spec_json.encode(SPECS), allow_nan=False)
    after = spec_json.decode(json.loads(text))
    assert jax.tree.leaves(after) == jax.tree.leaves(SPECS)
    assert jax.tree.structure(after) == jax.tree.structure(SPECS)
    arrays = jax.tree.map(lambda spec: jnp.zeros(spec.shape, "f4"), SPECS)
    assert spec_json.as_spec(SPECS, arrays)["choices"].dtype == np.int64


class Tenths(HostCounter):
    """A host environment with the reward 0.1 in each step."""

    def _timestep(self, step_type):
        timestep = super()._timestep(step_type)
        return timestep._replace(
            reward=np.where(step_type == StepType.FIRST, 0, np.float32(0.1))
        )


@pytest.mark.slow
def test_the_return_of_a_long_episode_does_not_drift():
    """The float32 sum of 10,000 rewards of 0.1 is 999.90."""
    environment = Tenths(batch_size=1, length=10_000)
    agent = reinforce(1, 2)
    params = agent.actor_params(agent.initial_learner_state(jax.random.key(0)))
    played = sebulba.evaluate(agent, params, environment, episodes=1)
    np.testing.assert_allclose(played.episode_return, 1000.0, rtol=1e-6)
    assert played.episode_return.dtype == np.float32


@pytest.mark.parametrize("keys", [(0.5, 1.5), ((0, 1), (1, 0))])
def test_keys_that_cannot_be_stored_are_refused(keys):
    spec = dict.fromkeys(keys, specs.Array((), np.float32))
    with pytest.raises(UserError, match="must be all text, or all integers"):
        spec_json.encode(spec)


def test_an_observation_is_read_by_its_names():
    """A dictionary of another order, as an OrderedDict keeps it, is the same observation."""
    spec = {"a": specs.Array((), np.float32), "b": (specs.Array((2,), np.uint8),)}
    seen = spec_json.as_spec(
        spec, collections.OrderedDict(b=[np.array([1, 255])], a=np.float32(0.5))
    )
    assert seen["a"] == np.float32(0.5) and seen["b"][0].tolist() == [1, 255]
    assert seen["b"][0].dtype == np.uint8


@pytest.mark.parametrize(
    ("observation", "line"),
    [
        (
            {"x": 0, "y": [np.array([1, 2])]},
            "lacks 'a', having x, y; it must be a dictionary of a, b",
        ),
        ([1, 2], "is list; it must be a dictionary of a, b"),
        ({"a": 0, "b": [[1], [2]]}, "is list; it must be 1 arrays"),
        ({"a": None, "b": [np.array([1, 2])]}, "is None; it must be float32"),
        ({"a": 0, "b": [np.array([0.5, 1])]}, "has 0.5; it must be uint8"),
        ({"a": 0, "b": [np.array([0, 256])]}, "has 256; it must be uint8"),
        ({"a": 0, "b": [np.array([0, np.nan])]}, "has nan; it must be uint8"),
    ],
)
def test_an_observation_that_does_not_fit_is_refused(observation, line):
    spec = {"a": specs.Array((), np.float32), "b": (specs.Array((2,), np.uint8),)}
    with pytest.raises(ValueError, match=f"^an observation {line}$"):
        spec_json.as_spec(spec, observation)


def test_a_batch_or_seed_out_of_range_is_refused(tmp_path):
    with pytest.raises(UserError, match="batch_size is 0; it must be at least 1"):
        podracer.load(tmp_path, batch_size=0)
    with pytest.raises(UserError, match="seed is -1; it must be from 0"):
        podracer.load(tmp_path, seed=-1)


@pytest.fixture(scope="module")
def rewarded(tmp_path_factory):
    """A run whose network sees the last reward, and remembers it."""
    flags = f"--env cartpole {SMALL} --network.memory lstm --network.memory-size 4 --cores 1 --total-steps 1280"
    folder = tmp_path_factory.mktemp("runs") / "rewarded"
    return train(anakin_command, folder, f"{flags} --network.last-reward")


@pytest.mark.slow
def test_an_agent_that_sees_rewards_acts_as_in_training(rewarded):
    """The same actions as the runner's own, step by step of an environment."""
    trained = loading.restore(rewarded)
    act, agent = podracer.load(rewarded), jitted(trained.agent)
    environment = envs_jax.make("cartpole")
    start, step = jax.jit(environment.initial_state), jax.jit(environment.step)
    key, without = jax.random.key(3), []
    keys = jax.random.split(key, 1)

    def logits_of(timestep):
        _, output = agent.actor_step(keys, trained.params, memory, timestep)
        return np.asarray(jax.tree.leaves(output.extras)[0])

    for episode in range(2):
        state, timestep = start(jax.random.key(episode))
        memory = jax.tree.map(np.asarray, agent.initial_actor_state(1))
        act.reset()
        for _ in range(8):
            timestep = jax.tree.map(np.asarray, timestep)
            batch = jax.tree.map(lambda x: x[None], timestep)
            nothing = batch._replace(reward=np.zeros(1, np.float32))
            without.append(logits_of(batch) - logits_of(nothing))
            memory, output = agent.greedy_actor_step(
                keys, trained.params, memory, batch
            )
            memory, output = jax.tree.map(np.asarray, (memory, output))
            action = act(timestep.observation, reward=timestep.reward)
            assert action == output.action[0]
            jax.tree.map(np.testing.assert_array_equal, act._actor_state, memory)
            state, timestep = step(key, state, output.action[0])
    assert np.abs(without).max() > 1e-3  # the reward is no idle input


def test_a_reward_is_not_guessed(rewarded, catch):
    act, batch = podracer.load(rewarded), podracer.load(rewarded, batch_size=2)
    observation = np.zeros(4, np.float32)
    act(observation)  # the first of an episode
    with pytest.raises(UserError, match="reward is missing"):
        act(observation)
    act.reset()
    act(observation)
    both = np.stack([observation] * 2)
    batch(both)
    with pytest.raises(UserError, match="reward is missing"):
        batch(both, first=[True, False])
    batch(both, first=[True, True])
    batch(both, reward=1.0)
    batch(both, reward=[1.0, 2.0])
    with pytest.raises(UserError, match=r"reward is \(3,\); it must be \(2,\)"):
        batch(both, reward=np.zeros(3))
    other = podracer.load(catch[0])  # whose actions depend on no reward
    for _ in range(2):
        other(np.zeros((10, 5), np.float32))


@pytest.mark.parametrize(
    "flags",
    [
        "--network.memory gru --network.memory-size 4",
        pytest.param("--interface.normalize-observations", marks=pytest.mark.slow),
    ],
)
def test_what_the_policy_does_not_see_need_not_be_there(tmp_path, flags, capsys):
    """Also where the value remembers it, and where it is normalized."""
    environment = "tests.environments:Privileged"
    sees = "--network.policy-sees state --network.value-sees state privileged_state"
    folder = tmp_path / "run"
    flags = f"--env {environment} {SMALL} {sees} {flags} --cores 1 --total-steps 640"
    train(anakin_command, folder, flags)
    states = np.arange(5, dtype=np.float32)[:, None]
    random = np.random.default_rng(0)
    without, zeros, noise = (
        [
            act({"state": x} | ({"privileged_state": other()} if other else {}))
            for x in states
        ]
        for act, other in (
            (podracer.load(folder, trust=True), None),
            (podracer.load(folder, trust=True), lambda: np.zeros(2, np.float32)),
            (podracer.load(folder, trust=True), lambda: random.normal(size=2)),
        )
    )
    assert without == zeros == noise
    with pytest.raises(ValueError, match="dictionary of privileged_state, state"):
        podracer.load(folder, trust=True)({"privileged_state": np.zeros(2)})
    anakin_command.evaluate([str(folder), "--trust", "--episodes", "2"])
    assert "over 2 episodes" in capsys.readouterr().out


@pytest.mark.slow
def test_masks_and_a_privileged_critic_in_sebulba(tmp_path):
    """What is forbidden would be rewarded with NaN, which stops a run."""
    sees = "--network.policy-sees pixels state --network.value-sees state action_mask"
    flags = f"--env jax:tests.environments:Mixed {SMALL} {sees} --total-steps 640"
    flags += " --actor-cores 1 --learner-cores 1 --interface.normalize-observations"
    folder = train(sebulba_command, tmp_path / "run", flags)
    act = podracer.load(folder, trust=True, batch_size=4)
    observation = {
        "action_mask": np.eye(4, dtype=bool),
        "pixels": np.zeros((4, 3, 3, 1), np.uint8),
        "state": np.zeros((4, 2), np.float32),
    }
    np.testing.assert_array_equal(act(observation), [0, 1, 2, 3])
    sebulba_command.evaluate([str(folder), "--trust", "--episodes", "2"])


ATTACK = "a: [b`|<script>\n---\n```"


def test_a_folder_for_the_hub_is_a_run_to_load(catch, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run = tmp_path / "run"
    shutil.copytree(catch[1], run)
    (run / "evaluation.json").write_text(
        '{"episodes": 9, "episode_return": 0.5, "low": 0, "high": 1,'
        ' "asked": {"checkpoint": 20}}'
    )
    (run / "x.gif").write_bytes(b"GIF89a")
    description = json.loads((run / "config.json").read_text())
    description["command"] = f"anakin train --run {run} --agent ppo --x={run}/y"
    description["versions"] = {"jax": ATTACK}
    (run / "config.json").write_text(json.dumps(description))
    command.hub(["run", "shared"])
    named, line = capsys.readouterr().out.splitlines()
    others = "config.json, curve.png, metrics.jsonl, replay.gif, weights.safetensors"
    assert named == f"shared: README.md, {others}"
    assert line.endswith("have read README.md: hf upload USER/shared shared .")
    card = (tmp_path / "shared/README.md").read_text()
    for name in ("README.md", "config.json", "weights.safetensors"):
        assert str(tmp_path).encode() not in (tmp_path / "shared" / name).read_bytes()
    assert "    anakin train --agent ppo --x=y\n" in card
    _, front, text = card.split("---\n", 2)
    about = yaml.safe_load(front)
    assert about["library_name"] == "podracer" and about["tags"][-2:] == [
        "ppo",
        "catch",
    ]
    (model,) = about["model-index"]
    assert model["results"][0]["metrics"][0]["value"] == 0.5
    assert "![An episode](replay.gif)" in text and "```\n```" not in text
    again = podracer.load("shared")
    jax.tree.map(np.testing.assert_array_equal, again.params, podracer.load(run).params)
    with pytest.raises(UserError, match="shared: is there already; choose another"):
        command.hub(["run", "shared"])
    with pytest.raises(UserError, match="which run, and where to"):
        command.hub(["run"])


def test_the_examples_of_comparing_and_sharing(catch, tmp_path, monkeypatch, capsys):
    """Each command and line of its page, with a run in place of RUN."""
    monkeypatch.chdir(tmp_path)
    shutil.copytree(catch[1], "runs/mine")
    text = (DOCS / "comparing.md").read_text()
    lines = re.findall(r"^podracer (\w+) RUN(?: \[RUN ...\])?(.*)$", text, re.MULTILINE)
    assert [name for name, _ in lines] == ["compare", "export", "hub"]
    for name, arguments in lines:
        command.COMMANDS[name](["runs/mine", *arguments.strip("[ ]").split()])
    assert "compared in comparison.html" in capsys.readouterr().out
    (example,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    Path("example.py").write_text(example)
    runpy.run_path("example.py")
    assert podracer.load("FOLDER")(np.zeros((10, 5), "f4")) in range(3)
    names = re.findall(r"^\| `(params\.[^`]*)`", text, re.MULTILINE)
    assert {*names} < safetensors.numpy.load_file("weights.safetensors").keys()


def test_names_leave_neither_yaml_nor_markdown(catch):
    trained = loading.restore(catch[0])
    stored = trained.run._replace(agent=ATTACK, env=ATTACK)
    about = {"command": ATTACK, "versions": {ATTACK: ATTACK}}
    found = comparison.Mean(1.0, 0.0, 2.0)
    card = hub._card(trained._replace(run=stored), ATTACK, about, found, None, False)
    _, front, text = card.split("---\n", 2)
    named = ATTACK.replace("\n", "\\n")
    model = yaml.safe_load(front)["model-index"][0]
    assert model["name"] == named and model["results"][0]["dataset"]["type"] == named
    lines = [x for x in text.splitlines() if "<script>" in x]
    assert all(x.startswith("    ") or x.count("`") in (2, 4) for x in lines)
    assert sum(x.startswith("```") for x in text.splitlines()) == 2
