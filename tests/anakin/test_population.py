"""Many runs in one program: each as if alone, and none waits for another."""

import dataclasses
import functools
import json
import os
import shutil
import subprocess
import sys
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import anakin
import anakin.command.subcommands as command
import envs_jax
from anakin import population
from podracer import metrics, networks, parallel
from podracer.agents import from_flags, impala, ppo
from podracer.errors import UserError
from podracer.parallel import cpu
from podracer.runs import listing, members
from podracer.trained import loading
from tests import interruptions
from tests.agents import counting
from tests.environments import Counter

KILL = 400  # seconds that a process of ours may live
SIZES = {"batch_size": 4, "unroll_length": 4, "total_steps": 16 * 10}


@functools.cache
def maker(module=impala, environment=Counter()):  # noqa: B008 frozen
    network = networks.actor_critic(
        environment.observation_spec(),
        environment.action_spec(),
        networks.Config(hidden_sizes=(8,)),
    )

    def make_agent(numbers):
        config = from_flags.with_numbers(module.Config(total_steps=160), numbers)
        return module.make_agent(config, network)

    return make_agent


def last(iterator):
    for item in iterator:
        pass
    return item


@pytest.mark.parametrize(
    ("module", "name"),
    [
        (impala, "learning_rate"),
        pytest.param(ppo, "entropy_cost", marks=pytest.mark.slow),
    ],
)
def test_each_is_the_run_that_it_would_be_alone(module, name):
    environment, values = envs_jax.make("catch"), [1e-3, 3e-3, 1e-3, 3e-3]
    make_agent = maker(module, environment)
    state, rows = last(
        population.train(
            make_agent,
            environment,
            seeds=[5, 5, 6, 6],
            hyperparameters={name: values},
            cores=2,
            **SIZES,
        )
    )
    agent = make_agent({name: values[3]})
    alone, row = last(anakin.train(agent, environment, seed=6, cores=1, **SIZES))
    mine = population.member(state, 3)
    np.testing.assert_array_equal(state.hyperparameters[name], np.float32(values))
    assert jax.tree.structure(mine) == jax.tree.structure(alone)
    assert jax.tree.map(jnp.shape, mine) == jax.tree.map(jnp.shape, alone)

    def same(a, b):
        if not jax.dtypes.issubdtype(a.dtype, jax.dtypes.prng_key):
            np.testing.assert_allclose(
                np.asarray(a, "f4"), np.asarray(b, "f4"), atol=1e-5
            )

    jax.tree.map(same, mine, alone)
    for word in row.keys() - {"seconds", "compile_seconds", "steps_per_second"}:
        np.testing.assert_allclose(rows[3][word], row[word], atol=1e-4, err_msg=word)
    others = [jax.tree.leaves(population.member(state, i).learner) for i in range(4)]
    assert all((others[3][-2] != x[-2]).any() for x in others[:3])


def make_breaking(numbers):
    """An agent whose loss is NaN where `x` is positive."""
    agent = maker()({})

    def learner_step(key, state, trajectory):
        state, told = agent.learner_step(key, state, trajectory)
        broken = jnp.where(numbers["x"] > 0, jnp.nan, 0.0)
        return state, told | {"loss/total": told["loss/total"] + broken}

    return agent._replace(learner_step=learner_step)


@pytest.mark.parametrize("values", [[0.0, 1.0], [1.0, 1.0]], ids=["one", "all"])
def test_who_is_no_longer_finite_is_named(values):
    """Its error is in place of its rows; the others go on to the end, if there are any."""
    seen = []
    with pytest.raises(FloatingPointError, match=r"run 1 \(seed 8\), update 1"):
        for _, rows in population.train(
            make_breaking,
            Counter(),
            seeds=[7, 8],
            hyperparameters={"x": values},
            **SIZES,
            cores=2,
        ):
            seen.append(rows)
    assert all("update 1: loss/total" in str(rows[1]) for rows in seen)
    if all(values):
        assert len(seen) == 1 and isinstance(seen[0][0], FloatingPointError)
    else:
        assert [rows[0]["updates"] for rows in seen] == [*range(1, 11)]


def test_a_failure_is_told_where_all_end_between_two_reports():
    """Or a checkpoint would be written of a run that is no longer finite."""
    error, failed = FloatingPointError("update 1"), {}

    def runs():
        yield "first", [{"updates": 1}, {"updates": 1}]
        failed[1] = error
        yield "last", None

    reports = population._with_failures(runs(), failed, [7, 8])
    assert next(reports)[1] == [{"updates": 1}] * 2
    assert next(reports)[1] == [None, error]
    with pytest.raises(FloatingPointError, match=r"^run 1 \(seed 8\), update 1$"):
        next(reports)


def test_the_unit_of_all_is_traced_once():
    agent, calls = counting(maker()({}))
    values = {"learning_rate": [0.1, 0.2]}
    runs = population.train(
        lambda numbers: agent,
        Counter(),
        seeds=[0, 1],
        hyperparameters=values,
        cores=2,
        **SIZES,
    )
    next(runs)
    assert calls == {"actor_step": 1, "learner_step": 1}


def test_other_hyperparameters_need_no_other_program():
    """With them a run trains as a fresh one does, bit for bit."""
    environment, updates = envs_jax.make("catch"), 5
    sizes = SIZES | {"total_steps": 16 * updates, "updates_per_report": updates}
    make_agent = maker(impala, environment)
    mesh = parallel.make_mesh(2)
    programs = population.make_programs(make_agent, environment, mesh, 4, None)
    keys = jax.vmap(jax.random.key)(jnp.arange(4, dtype=jnp.uint32))
    before, after = (
        {"learning_rate": jnp.float32(rates)}
        for rates in ([1e-3, 1e-3, 3e-3, 3e-3], [3e-3, 1e-3, 1e-2, 3e-3])
    )
    first = programs.start(keys, before, jnp.arange(4))
    call = programs.call.lower(first, jnp.uint32(1), jnp.bool_(True)).compile()
    changed = first._replace(hyperparameters=after)
    changed, _, _ = call(changed, jnp.uint32(updates), jnp.bool_(True))
    for values in after, before:
        fresh, _ = last(
            population.train(
                make_agent,
                environment,
                seeds=range(4),
                hyperparameters=values,
                cores=2,
                **sizes,
            )
        )
        rates = zip(values["learning_rate"], after["learning_rate"], strict=True)
        for i, (rate, expected) in enumerate(rates):
            learners = (population.member(x, i).learner for x in (changed, fresh))
            pairs = zip(*map(jax.tree.leaves, learners), strict=True)
            assert all((x == y).all() for x, y in pairs) == (rate == expected)


def test_what_cannot_differ_is_refused():
    with pytest.raises(
        UserError, match="max_kl: one of these decides what is compiled"
    ):
        population.train(
            maker(ppo),
            Counter(),
            seeds=[0, 1],
            hyperparameters={"max_kl": [1, 2]},
            cores=1,
            **SIZES,
        )
    with pytest.raises(UserError, match="seeds are 3 runs, which 2 cores cannot share"):
        population.train(maker(), Counter(), seeds=[0, 1, 2], cores=2, **SIZES)


@pytest.mark.parametrize(
    ("runs", "line"),
    [
        ({"seeds": [0, -1]}, "seed is -1; it must be from 0"),
        ({"seeds": [0, 2**32]}, "seed is 4294967296; it must be from 0"),
        (
            {"seeds": [0, 1], "hyperparameters": {"learning_rate": [0.1]}},
            "must have one number for each of the 2 seeds",
        ),
    ],
)
def test_impossible_runs_are_one_line(runs, line):
    with pytest.raises(UserError, match=line):
        population.train(maker(), Counter(), cores=1, **SIZES, **runs)


def test_cores_that_would_wait_for_ever_are_refused(monkeypatch):
    monkeypatch.setenv(cpu.THREADS, "3")
    with pytest.raises(UserError, match="use cores=1, or set PJRT_NPROC=4"):
        cpu.check_threads(jax.devices()[:2])
    cpu.check_threads(jax.devices()[:1])
    monkeypatch.setenv(cpu.THREADS, "4")
    cpu.check_threads(jax.devices()[:2])


def test_the_command_keeps_a_folder_of_each(tmp_path):
    """In a process with no more threads than this computer gives it: it must not hang."""
    flags = "--agent ppo --env catch --batch-size 64 --unroll-length 32 --cores 2"
    flags += " --network.hidden-sizes 64 64 --total-steps 40960 --seeds 2 --run here"
    environment = {k: v for k, v in os.environ.items() if k != "PJRT_NPROC"}
    several = "--xla_force_host_platform_device_count"  # not the cores of the tests
    flags_of_xla = [x for x in os.environ["XLA_FLAGS"].split() if several not in x]
    done = subprocess.run(
        [sys.executable, "-m", "anakin", "train", *flags.split(), "--seed", "3"],
        cwd=tmp_path,
        env=environment | {"XLA_FLAGS": " ".join(flags_of_xla)},
        capture_output=True,
        text=True,
        timeout=KILL,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    base = tmp_path / "here"
    assert {x.name for x in base.iterdir()} == {
        *("curve.png", "together.json", "seed-3", "seed-4")
    }
    for seed in (3, 4):
        folder = base / f"seed-{seed}"
        config = json.loads((folder / "config.json").read_text())["config"]["train"]
        assert (config["seed"], config["seeds"], config["cores"]) == (seed, 1, 1)
        rows = [*metrics.read(folder / "metrics.jsonl")]
        assert rows[-1]["steps"] == 40960 and len(rows) == 20
        assert (folder / "curve.png").exists()
        assert loading.restore(folder).updates == 20
    assert f"2 runs, recorded in {base}" in done.stdout
    assert [x.folder.name for x in listing.find([tmp_path])] == ["seed-3", "seed-4"]


ADAPTING = "--population 2 --pbt.interval 3200 --pbt.fields learning-rate=1e-5..1e-2"


@pytest.mark.timeout(900)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("several", "name"), [("--seeds 2", "seed"), (ADAPTING, "member")]
)
def test_killed_they_resume_together_to_the_same_bits(tmp_path, several, name):
    """Each alone would be another program, whose rounding differs."""
    flags = (
        f"--agent ppo --env catch --batch-size 8 --unroll-length 8 --cores 2 {several}"
    )
    flags += " --network.hidden-sizes 8 --total-steps 32000 --updates-per-report 50"
    how = ("train", *flags.split(), "--checkpoint.steps", "6400", "--quiet")
    whole, killed, said = tmp_path / "whole", tmp_path / "killed", tmp_path / "said"
    process = interruptions.start("anakin", *how, f"--run={whole}", output=said)
    assert interruptions.ended(process) == 0, said.read_text()
    process = interruptions.start("anakin", *how, f"--run={killed}", output=said)
    names = [f"{name}-{i}" for i in (0, 1)]
    try:
        interruptions.until(
            lambda: all(len(interruptions.checkpoints(killed / x)) > 1 for x in names)
        )
        assert process.exitcode is None, said.read_text()
    finally:
        process.kill()
        interruptions.ended(process)
    # As if between the two writes of a checkpoint: one of them is ahead.
    newest = max(map(int, interruptions.checkpoints(killed / names[1])))
    shutil.rmtree(killed / names[1] / "checkpoints" / str(newest))
    resume = "train", f"--resume={killed}"
    process = interruptions.start("anakin", *resume, output=said)
    assert interruptions.ended(process) == 0, said.read_text()
    for folder in names:
        interruptions.assert_equal(killed / folder, whole / folder)


def keep_nothing(folder, seeds, overwrite=False):
    """What `members.train` does in a folder before anything is trained."""
    config = command.Train(ppo.Config(), None, seeds=seeds)
    keep = dataclasses.replace(config.keep, run=folder, overwrite=overwrite)
    members.train(
        lambda stopped: (x for x in ()),
        population.member,
        members.choose(config),
        dataclasses.replace(config, keep=keep),
        agent="ppo",
        env="catch",
    )


ROW = dict.fromkeys(("episode_return", "steps_per_second", "compile_seconds"), 1.0)


def test_a_run_that_fails_costs_no_other(tmp_path):
    """Its folder ends as if it were alone; that of the other is written to the end."""
    error = FloatingPointError("update 2: loss/total not finite")

    class State(NamedTuple):
        updates: jax.Array

    def several(updates):
        return population.Population(State(jnp.array([updates] * 2)), {})

    def start(stopped):
        for i, other in (1, ROW | {"steps": 16}), (2, error), (3, error):
            row = ROW | {"updates": i, "steps": 16 * i, "seconds": 1.0}
            yield several(i), [row, other]
        yield several(4), [None, error]  # between two reports
        raise FloatingPointError("run 1")

    config = command.Train(ppo.Config(), None, seeds=2, total_steps=48)
    checkpoint = dataclasses.replace(config.keep.checkpoint, steps=16)
    keep = dataclasses.replace(config.keep, run=tmp_path, checkpoint=checkpoint)
    config = dataclasses.replace(config, keep=keep)
    with pytest.raises(FloatingPointError) as raised:
        members.train(
            start,
            population.member,
            members.choose(config),
            config,
            agent="ppo",
            env="catch",
        )
    assert str(raised.value) == f"{tmp_path / 'seed-1'}: {error}"
    good, failed = (tmp_path / f"seed-{i}" for i in (0, 1))
    assert len([*metrics.read(good / "metrics.jsonl")]) == 3
    assert len([*metrics.read(failed / "metrics.jsonl")]) == 1
    states = [json.loads((x / "state.json").read_text()) for x in (good, failed)]
    assert [x["state"] for x in states] == ["finished", "failed"]
    assert "error" not in states[0] and states[1]["error"] == str(error)
    names = [{x.name for x in (y / "checkpoints").iterdir()} for y in (good, failed)]
    assert {"3", "4"} <= names[0] and names[1] == {"1"}

    # Resumed, what has failed stays as it is.
    def resumed(stopped, restore):
        fresh, layout = State(jnp.array(0)), State(parallel.SHARED)
        states = restore([fresh, fresh], layout)
        assert [int(x.updates) for x in states] == [4, 0]
        row = ROW | {"updates": 5, "steps": 80, "seconds": 1.0}
        yield several(5), [row, row]

    keep = dataclasses.replace(keep, run=None, resume=tmp_path)
    config = dataclasses.replace(config, keep=keep, total_steps=80)
    with pytest.raises(FloatingPointError) as raised:
        members.train(
            resumed,
            population.member,
            members.choose(config),
            config,
            agent="ppo",
            env="catch",
        )
    assert str(raised.value) == f"{failed}: {error}"
    rows = [[*metrics.read(x / "metrics.jsonl")] for x in (good, failed)]
    assert [[x["steps"] for x in y] for y in rows] == [[16, 32, 48, 80], [16]]
    assert json.loads((failed / "state.json").read_text())["state"] == "failed"
    shutil.rmtree(good / "checkpoints")
    with pytest.raises(
        UserError, match="no whole checkpoint of the same update: resum"
    ):
        members._common(tmp_path, members.choose(config))


def test_a_run_in_the_way_costs_no_other(tmp_path):
    (tmp_path / "seed-2").mkdir()
    (tmp_path / "seed-2" / "metrics.jsonl").touch()
    with pytest.raises(UserError, match="seed-2"):
        keep_nothing(tmp_path, seeds=3)
    assert [x.name for x in tmp_path.iterdir()] == ["seed-2"]


def test_a_folder_that_is_a_run_does_not_hold_others(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "curve.png").write_text("of the run")
    with pytest.raises(UserError, match="is a run itself; choose another folder"):
        keep_nothing(tmp_path, seeds=2, overwrite=True)
    assert {x.name for x in tmp_path.iterdir()} == {"config.json", "curve.png"}


def test_every_seed_with_every_value():
    config = command.Train(
        ppo.Config(),
        None,
        seed=2,
        seeds=2,
        sweep=("clip=0.1,0.3", "agent.learning-rate=1"),
    )
    chosen = members.choose(config)
    assert [x.seed for x in chosen] == [2, 3, 2, 3]
    assert chosen[2].hyperparameters == {"clip": 0.3, "learning_rate": 1.0}
    assert chosen[2].name == "clip-0.3-learning-rate-1-seed-2"
    assert chosen[2].config.agent.clip == 0.3 and not chosen[2].config.together


@pytest.mark.parametrize(
    ("fields", "line"),
    [
        ({"sweep": ("clip=a,b",)}, "'a,b' must be numbers, separated by commas"),
        (
            {"sweep": ("epochs=1,2",)},
            "must be FIELD=VALUE,VALUE with one of the agent's",
        ),
        ({"sweep": ("clip=-1",)}, "clip is -1"),
        ({"sweep": ("clip=1", "agent.clip=2")}, "sweep has clip twice: give all of"),
        ({"sweep": ("clip=1,2,1",)}, "sweep gives 2 runs the folder clip-1-seed-0"),
        ({"seeds": 0}, "seeds is 0; it must be at least 1"),
    ],
)
def test_bad_input_is_one_line(fields, line):
    with pytest.raises(UserError, match=line):
        members.choose(command.Train(ppo.Config(), None, **fields))
