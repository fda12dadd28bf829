"""Sebulba: alignment, cores, lag, repeatability, faults."""

import functools
import gc
import re
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from podracer import networks, parallel
from podracer.agent import ActorOutput, Agent, LearnerState
from podracer.agents import impala
from podracer.checkpoints.checkpoint import Checkpoints
from podracer.errors import UserError
from podracer.metrics import merge
from sebulba import actor, cores, report, starting, training, transport
from tests.agents import counting, reinforce
from tests.environments import HostCounter


@functools.cache
def make_agent(**config):
    environment = HostCounter()
    network = networks.actor_critic(
        environment.observation_spec(),
        environment.action_spec(),
        networks.Config(hidden_sizes=(8,)),
    )
    return impala.make_agent(impala.Config(**config), network)


def train(agent=None, environment=HostCounter, *, devices=4, split=(), **options):
    """Trains; environments by thread number if `environment` wants it."""
    defaults = {
        "unroll_length": 3,
        "total_steps": 12 * 20,
        "cores": cores.split(jax.devices()[:devices], *split),
    }
    return training.train(
        agent or make_agent(), lambda number: environment(), **defaults | options
    )


def last(iterator):
    for item in iterator:
        pass
    return item


def actor_threads():
    return [t for t in threading.enumerate() if t.name.startswith("actor ")]


@functools.cache
def watcher() -> Agent:
    """An agent that learns nothing: its state is the sum of what trajectories show.

    It acts 1 where the count is even, and its memory counts steps.
    """

    def actor_step(keys, params, actor_state, timestep):
        action = (timestep.observation[:, 0] % 2 == 0).astype(jnp.int32)
        return actor_state + 1, ActorOutput(action, timestep.observation)

    def learner_step(key, state, trajectory):
        timesteps, outputs, actor_state = trajectory
        wrong_rows = jnp.sum(timesteps.observation[:-1] != outputs.extras)
        after, before = (
            timesteps.observation[1:, :, 0],
            timesteps.observation[:-1, :, 0],
        )
        follows = jnp.where(timesteps.first()[1:], after == 0, after == before + 1)
        metrics = {
            "wrong_rows": wrong_rows.astype(jnp.float32),
            "broken": jnp.sum(~follows).astype(jnp.float32),
            "memory": actor_state[0].astype(jnp.float32),
        }
        return LearnerState(state.shared + 1, ()), metrics

    return Agent(
        initial_learner_state=lambda key: LearnerState(jnp.int32(0), ()),
        learner_step=learner_step,
        actor_params=lambda state: state.shared,
        initial_actor_state=lambda batch_size: jnp.zeros(batch_size, jnp.int32),
        actor_step=actor_step,
        greedy_actor_step=actor_step,
    )


def test_rows_follow_each_other_within_and_across_trajectories():
    rows = train(
        watcher(), threads_per_core=1, max_lag=0, trajectories_per_report=1, devices=2
    )
    for number, (_, metrics) in enumerate(rows):
        assert metrics["wrong_rows"] == metrics["broken"] == 0
        assert metrics["memory"] == 3 * number  # the actor's state before row 0


@pytest.mark.parametrize(
    ("devices", "split", "batch_size"),
    [(1, (), 4), (2, (), 4), (4, (), 6), (8, (), 12), (8, (3, 2), 4), (8, (1, 5), 5)],
)
def test_any_split_of_any_cores(devices, split, batch_size):
    before = threading.active_count()
    state, metrics = last(
        train(
            reinforce(observations=1, actions=2),
            lambda: HostCounter(batch_size),
            devices=devices,
            split=split,
            total_steps=3 * batch_size * 10,
        )
    )
    assert metrics["updates"] == 10 == int(state.updates)
    assert int(state.learner.shared["updates"]) == 10
    for leaf in jax.tree.leaves(state.learner.shared):
        copies = {np.asarray(x.data).tobytes() for x in leaf.addressable_shards}
        assert len(copies) == 1
    for thread in actor_threads():  # on a slow machine one may still compile
        thread.join(60)
    assert not actor_threads() and threading.active_count() <= before + 1


def test_any_number_of_learners_computes_the_same():
    def params(learners):
        state, _ = last(
            train(
                devices=1 + learners,
                split=(1, learners),
                threads_per_core=1,
                max_lag=0,
            )
        )
        return jax.tree.map(np.asarray, state.learner.shared.params)

    one, four = params(1), params(4)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-5), one, four)


def test_flags_of_an_agent_are_averaged_over_cores_and_updates():
    def learner_step(key, state, trajectory):
        return state, {"odd": jax.lax.axis_index(parallel.CORE) % 2 == 1}

    agent = watcher()._replace(learner_step=learner_step)
    _, row = last(train(agent, devices=3, split=(1, 2)))
    assert row["odd"] == 0.5


def test_lock_step_repeats_bit_for_bit():
    def bits():
        rows = [
            {k: v for k, v in m.items() if "second" not in k and "waiting" not in k}
            for _, m in train(threads_per_core=1, max_lag=0, devices=2)
        ]
        return str(rows)

    assert bits() == bits()


def test_acting_and_learning_are_each_traced_once():
    agent, calls = counting(make_agent())
    last(train(agent, threads_per_core=1, devices=2))
    assert calls == {"actor_step": 1, "learner_step": 1}


@pytest.mark.parametrize("max_lag", [0, 1, 3])
def test_a_lag_is_kept_by_waiting(max_lag):
    rows = [m for _, m in train(max_lag=max_lag, split=(2, 2), threads_per_core=2)]
    assert max(m["lag_max"] for m in rows) <= max_lag
    assert rows[-1]["dropped"] == 0


def test_a_lag_is_kept_by_dropping_and_the_drops_are_counted():
    rows = [
        m for _, m in train(max_lag=1, late="drop", split=(2, 2), threads_per_core=3)
    ]
    assert max(m["lag_max"] for m in rows) <= 1
    assert rows[-1]["dropped"] > 0
    assert rows[-1]["updates"] == 20
    # What was dropped is not learned from, but it was played: 12 steps of 5 an episode.
    played = 12 * (rows[-1]["updates"] + rows[-1]["dropped"])
    assert sum(m["episodes"] for m in rows) > played / 6 - 3 * 4


def test_the_callers_time_is_not_the_runs():
    run = train(devices=2)
    next(run)
    started, seconds, held = time.perf_counter(), 0.0, 0.0
    for _, row in run:
        seconds += row["seconds"]
        time.sleep(0.05)
        held += 0.05
    assert seconds < time.perf_counter() - started - held


def test_a_row_that_is_all_compilation_has_no_rates_and_no_time():
    """Of a short run the first trajectory is a row; a rate of 0 would be no speed."""
    first, *others = [m for _, m in train(devices=2, trajectories_per_report=1)]
    rates = [name for name in first if "per_second" in name or "waiting" in name]
    assert len(rates) == 5 and first["seconds"] == 0
    assert all(np.isnan(first[name]) for name in rates)
    assert all(row["steps_per_second"] > 0 for row in others)
    two = merge([first, others[0]])
    assert {name: two[name] for name in rates} == pytest.approx(
        {name: others[0][name] for name in rates}
    )
    chosen = cores.split(jax.devices()[:2])
    assert "nan" not in report.advice([first, *others], chosen, 2, None)
    assert "too short" in report.advice([first], chosen, 2, None)


def test_the_advice_is_another_setting():
    row = {"seconds": 1.0, "learner_waiting": 0.0, "actors_waiting": 0.9}
    advice = functools.partial(report.advice, [row], cores.split(jax.devices()[:2]))
    larger = "try a larger --batch-size"
    assert advice(2, None).endswith(f"{larger}, or --threads-per-core 1")
    assert advice(1, None).endswith(larger)
    assert advice(1, 1).endswith(larger)


@pytest.mark.parametrize(
    "max_lag, late, updates, ahead",
    [
        (None, "wait", 1, None),
        (0, "wait", 1, 0),
        (3, "wait", 4, 0),
        (4, "wait", 4, 1),
        (0, "drop", 1, None),
    ],
)
def test_no_thread_is_advised_where_acting_and_learning_take_turns(
    max_lag, late, updates, ahead
):
    assert starting.most_ahead(max_lag, late, updates) == ahead
    row = {"seconds": 1.0, "learner_waiting": 0.9, "actors_waiting": 0.0}
    advice = report.advice([row], cores.split(jax.devices()[:2]), 1, ahead)
    assert ("take turns" in advice) == (ahead == 0)
    assert ("threads-per-core" in advice) == (ahead != 0)


@pytest.mark.parametrize("fails", ["environment", "agent"])
def test_what_fails_before_the_start_closes_the_environments(fails):
    made = []

    class Unclosable(HostCounter):
        def close(self):
            super().close()
            raise RuntimeError("cannot be closed")

    def environment():
        if made and fails == "environment":
            raise RuntimeError("no second licence")
        made.append(Unclosable())
        return made[-1]

    def no_state(key):
        raise RuntimeError("no state")

    agent = make_agent()._replace(initial_learner_state=no_state)
    with pytest.raises(RuntimeError, match="no second licence|no state"):
        train(agent, environment, devices=2)
    assert made and all(x.closed for x in made)


@pytest.mark.parametrize("begun", [False, True])
def test_a_loop_that_is_dropped_closes_the_environments_once(begun):
    closes = []

    class Noting(HostCounter):
        def close(self):
            closes.append(self)

    reports = train(environment=Noting, devices=2)
    if begun:
        next(reports)
    reports.close()
    del reports
    gc.collect()
    assert len(closes) == len({*map(id, closes)}) == 2


def test_batches_of_several_sizes_are_refused():
    sizes = iter([4, 4, 12])
    made = []

    def environment():
        made.append(HostCounter(next(sizes)))
        return made[-1]

    line = r"batch_size is 4 in make_environment\(0\) and 12 in make_environment\(2\)"
    with pytest.raises(UserError, match=line):
        train(environment=environment, devices=2, threads_per_core=3)
    assert all(x.closed for x in made)


def test_an_actor_state_that_changes_in_a_step_is_one_line():
    def actor_step(keys, params, actor_state, timestep):
        return jnp.mean(actor_state), ActorOutput(timestep.step_type, ())

    line = (
        r"^actor_step: the actor state is int32 \(4,\) before a step and float32 \(\)"
    )
    with pytest.raises(UserError, match=line):
        [*train(watcher()._replace(actor_step=actor_step), devices=2)]


def test_an_actor_state_without_a_row_for_each_environment_is_one_line():
    made = []

    def environment():
        made.append(HostCounter())
        return made[-1]

    agent = make_agent()._replace(initial_actor_state=lambda batch_size: 0.0)
    line = (
        r"^initial_actor_state\(4\) has shape \(\); it must have 4 rows, one for each"
    )
    with pytest.raises(UserError, match=line):
        train(agent, environment, devices=2)
    assert made and all(x.closed for x in made)


def test_a_trajectory_split_into_updates():
    state, metrics = last(
        train(updates_per_trajectory=2, devices=2, total_steps=12 * 10)
    )
    assert metrics["updates"] == 20 == int(state.updates)
    assert metrics["steps"] == 120


def test_episodes_are_counted_once():
    rows = [
        m
        for _, m in train(
            watcher(), threads_per_core=1, max_lag=0, devices=2, total_steps=12 * 30
        )
    ]
    # Ends are counted where the next step is taken: 90 steps, the last not yet.
    finished = [(i + 89) // 6 for i in (1, 2, 3, 4)]
    assert sum(m["episodes"] for m in rows) == sum(finished)
    full = [m["episode_length"] for m in rows[10:]]
    assert set(full) <= {5.0} | {x for x in full if np.isnan(x)}


class Unfinished(HostCounter):
    """An environment that lacks one method."""

    lost_episodes = property()  # which raises AttributeError


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ({"unroll_length": 0}, "unroll_length is 0; it must be at least 1"),
        ({"threads_per_core": 0}, "threads_per_core is 0"),
        ({"seed": 2**32}, f"seed is {2**32}; it must be from 0 to {2**32 - 1}"),
        ({"updates_per_trajectory": 3}, "batch_size is 4, which does not split into 9"),
        ({"devices": 8}, "batch_size is 4, which does not split into 6"),
        ({"late": "x"}, "late is 'x'; it must be 'wait' or 'drop'"),
        ({"cores": 2}, "cores is 2; it must be a Cores, as from"),
        (
            {"environment": lambda: None},
            r"make_environment\(0\) gives None without batch_size, .*, close; it must",
        ),
        (
            {"environment": Unfinished},
            "gives <.*Unfinished.* without lost_episodes; it must",
        ),
    ],
)
def test_bad_input_is_one_line(options, line):
    with pytest.raises(UserError, match=line) as error:
        train(**{"devices": 4} | options)
    assert "\n" not in str(error.value)
    assert not actor_threads()


@pytest.mark.core
def test_an_environment_that_raises_ends_the_run_with_its_traceback():
    started = time.perf_counter()
    made = []

    def environment():
        made.append(HostCounter(fail_at=40))
        return made[-1]

    with pytest.raises(RuntimeError, match="the simulator broke") as error:
        last(train(environment=environment, devices=2, total_steps=10**9))
    assert any("environments.py" in str(entry.path) for entry in error.traceback)
    assert time.perf_counter() - started < 300
    assert not actor_threads() and all(e.closed for e in made)


@pytest.mark.parametrize("step", [0, 7])
def test_an_environment_that_breaks_the_protocol_ends_the_run(step):
    class Liar(HostCounter):
        def _timestep(self, step_type):
            timestep = super()._timestep(step_type)
            return timestep._replace(
                discount=timestep.discount - 2 * (self._steps == step)
            )

    with pytest.raises(UserError, match=r"^Liar: discount is -[12]\.0; it must be"):
        last(train(environment=Liar, devices=2))


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_what_an_environment_raises_is_never_taken_for_the_user(error):
    def environment():
        return HostCounter(fail_at=40, error=error)

    with pytest.raises(RuntimeError, match=error.__name__) as raised:
        last(train(environment=environment, devices=2, total_steps=10**9))
    assert any("environments.py" in str(entry.path) for entry in raised.traceback)
    assert not actor_threads()


class Declares(HostCounter):
    """A counter that declares other actions."""

    def __init__(self, spec):
        super().__init__()
        self._spec = spec

    def action_spec(self):
        return self._spec

    def step(self, action):
        assert action.dtype == self._spec.dtype
        return super().step(action)


def test_actions_have_the_dtype_of_their_spec():
    spec = specs.DiscreteArray(2, np.uint8)
    _, row = last(train(environment=lambda: Declares(spec), devices=2))
    assert row["steps"] == 12 * 20


@pytest.mark.parametrize(
    ("spec", "line"),
    [
        (specs.BoundedArray((3,), np.float32, 0, 1), "shape (); declared is (3,)"),
        (specs.DiscreteArray(1), "1, outside the declared 0 to 0"),
    ],
)
def test_actions_of_another_spec_end_the_run(spec, line):
    with pytest.raises(UserError, match=re.escape(line)) as error:
        last(train(environment=lambda: Declares(spec), devices=2))
    assert str(error.value).startswith("Declares: action")
    assert str(error.value).endswith("; correct the agent")


def test_a_snapshot_of_64_bits_ends_the_run():
    """A checkpoint would keep 32 of them, and the run would resume as another one."""

    class Saves(HostCounter):
        def snapshot(self):
            return {"count": self._count}

    line = (
        r"^Saves: snapshot\['count'\] is int64; it must be an array of at most 32 bits"
    )
    with pytest.raises(UserError, match=line):
        last(train(environment=Saves, threads_per_core=1, max_lag=0, devices=2))


def test_an_interrupt_in_the_callers_loop_ends_all_threads():
    rows = train(devices=2, total_steps=10**9, trajectories_per_report=1)
    with pytest.raises(KeyboardInterrupt):
        for _ in rows:
            assert actor_threads()
            raise KeyboardInterrupt
    started = time.perf_counter()
    rows.close()
    assert time.perf_counter() - started < 300  # a second, where nothing else runs
    assert not actor_threads()


def test_an_environment_with_time_limits_of_its_own_is_waited_for(monkeypatch):
    """A server may be away for --env.reconnect-seconds, however long that is."""
    monkeypatch.setattr(transport, "PATIENCE", 0.0)

    def environment():
        made = HostCounter()
        made.patience = 400.0
        return made

    _, row = last(train(environment=environment, devices=2, total_steps=12))
    assert row["steps"] == 12


def test_a_hanging_environment_does_not_hold_the_end_up(capsys, monkeypatch):
    monkeypatch.setattr(actor, "STOP_SECONDS", 0.5)
    hang = threading.Event()
    rows = train(
        environment=lambda: HostCounter(hang=hang),
        devices=2,
        total_steps=10**9,
        trajectories_per_report=1,
    )
    next(rows)
    time.sleep(0.5)
    assert all(thread.may_hang for thread in actor_threads())
    started = time.perf_counter()
    rows.close()
    assert time.perf_counter() - started < 300
    assert "actor 0" in capsys.readouterr().err
    hang.set()
    for thread in actor_threads():
        thread.join(5)
    assert not actor_threads()


@pytest.mark.slow
def test_10_000_updates_take_no_more_memory_or_threads():
    import resource

    rows = train(
        watcher(), devices=2, total_steps=12 * 10_000, trajectories_per_report=1_000
    )
    peaks = []
    for _ in rows:
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)  # MB
        assert len(actor_threads()) == 2
    assert peaks[-1] - peaks[1] < 30


def test_a_run_that_is_no_longer_finite_stops_with_the_update_and_the_term():
    agent = make_agent(learning_rate=1e30, decay_learning_rate=False)
    with pytest.raises(FloatingPointError, match=r"update \d+: .*loss/.* not finite"):
        last(train(agent, devices=2, trajectories_per_report=1, total_steps=10**6))
    assert not actor_threads()


def test_a_run_that_was_stopped_goes_on_from_its_checkpoint(tmp_path):
    """The learner as it was; environments begin anew, and reports keep their places."""
    asked = iter([False] * 8 + [True] * 99)
    options = {"max_lag": 0, "trajectories_per_report": 5, "split": (1, 2)}
    options |= {"threads_per_core": 1, "devices": 3}
    whole = [row for _, row in train(watcher(), **options)]
    rows = []
    with Checkpoints(tmp_path / "all") as checkpoints:
        for state, row in train(watcher(), stopped=lambda: next(asked), **options):
            rows.append(row)
        checkpoints.save(state, row)
    done = int(state.updates)
    assert 0 < done < len(whole) * 5 and (rows[-1] is None) == (done % 5 > 0)
    restore = Checkpoints(tmp_path / "all").restore
    for after, row in train(watcher(), restore=restore, **options):
        rows.append(row)
    rows = [row for row in rows if row]
    for name in ("steps", "updates"):
        assert [row[name] for row in rows] == [row[name] for row in whole]
    assert int(after.learner.shared) == whole[-1]["updates"] == int(after.updates)
    assert not actor_threads()
