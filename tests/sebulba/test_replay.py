"""Replay on learner cores: each part of a trajectory is inserted, by the core that learns."""

import functools
import itertools

import jax
import numpy as np

from podracer import networks
from podracer.agents import algorithm, from_flags, impala
from podracer.checkpoints.checkpoint import Checkpoints
from podracer.transformations import Interface
from podracer.transformations.replay import Config
from sebulba import cores, host_environments, training
from tests.interruptions import without_times

BATCH, LENGTH, LAST = 8, 3, 6


def make_environment(thread):
    options = host_environments.default_options("jax:catch")
    return host_environments.make("jax:catch", BATCH, thread, 1, options)


@functools.cache
def make_agent():
    example = make_environment(0)
    return from_flags.make_agent(
        from_flags.Parts(
            algorithm.of(impala),
            impala.Config(),
            networks.Config(hidden_sizes=(8,)),
            example.observation_spec(),
            example.action_spec(),
            Interface(),
            replay=Config(24, minimum_fill=12),
            unroll_length=LENGTH,
        )
    )


def trained(folder, *stops):
    """Rows and the last state, in lock-step, of a run that is stopped and resumed.

    Two updates a trajectory, on two learner cores: each inserts two trajectories.
    """
    told = []
    for stop in (*stops, LAST):
        learned = itertools.count(1)
        with Checkpoints(folder) as checkpoints:
            for state, row in training.train(
                make_agent(),
                make_environment,
                unroll_length=LENGTH,
                total_steps=BATCH * LENGTH * LAST,
                cores=cores.split(jax.devices()[:3], 1, 2),
                threads_per_core=1,
                updates_per_trajectory=2,
                max_lag=0,
                trajectories_per_report=2,
                restore=checkpoints.restore if folder.exists() else None,
                stopped=lambda: next(learned) >= stop,  # noqa: B023 called in the loop
            ):
                told += [without_times(row)] if row else []
            checkpoints.save(state, row)
    return told, state


def test_parts_are_inserted_learned_from_and_resumed_bit_for_bit(tmp_path):
    told, state = trained(tmp_path / "whole")
    # After 4, 8, 12, ... trajectories on all cores: the third update is the first.
    assert [row["trained"] for row in told] == [0.5, 1.0, 1.0]
    assert [row["updates"] for row in told] == [4, 8, 12]
    assert int(state.learner.shared.updates) == 10
    ring = state.learner.local.ring
    assert ring.filled.tolist() == [12, 12] and ring.next.tolist() == [0, 0]
    kept = np.asarray(ring.trajectories.timesteps.observation)
    assert kept.shape[:3] == (2, LENGTH + 1, 12) and not (kept[0] == kept[1]).all()
    # Parts of one trajectory are neighbours in time of those of the next.
    rows = np.moveaxis(kept, 2, 1)  # [cores, slots, T + 1, ...]
    np.testing.assert_array_equal(rows[:, :8, -1], rows[:, 4:, 0])
    for leaf in jax.tree.leaves(state.learner.shared):
        first, second = (np.asarray(x.data) for x in leaf.addressable_shards)
        np.testing.assert_array_equal(first, second)

    others, other = trained(tmp_path / "parts", 3)
    assert str(others) == str(told)
    for x, y in zip(*map(jax.tree.leaves, (other, state)), strict=True):
        if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
            x, y = map(jax.random.key_data, (x, y))
        np.testing.assert_array_equal(x, y)
