"""Who acts and who learns."""

import jax
import pytest

from podracer.errors import UserError
from sebulba import cores


@pytest.mark.parametrize(
    ("count", "actors", "learners", "expected"),
    [
        (1, None, None, (1, 1)),
        (1, 1, 1, (1, 1)),
        (2, None, None, (1, 1)),
        (3, None, None, (1, 2)),
        (4, None, None, (1, 3)),
        (8, None, None, (2, 6)),  # the paper's split
        (8, 3, None, (3, 5)),
        (8, None, 4, (4, 4)),
        (8, 1, 2, (1, 2)),
    ],
)
def test_splits(count, actors, learners, expected):
    got = cores.split(jax.devices()[:count], actors, learners)
    assert (len(got.actors), len(got.learners)) == expected
    disjoint = not set(got.actors) & set(got.learners)
    assert disjoint == (count > 1)


def test_the_first_of_the_cores_are_used():
    got = cores.split(jax.devices(), cores=4)
    assert (*got.actors, *got.learners) == tuple(jax.devices()[:4])
    assert cores.split(jax.devices(), cores=1) == cores.split(jax.devices()[:1])
    for count in (0, 9):
        with pytest.raises(UserError, match=f"^cores is {count}; .* from 1 to 8$"):
            cores.split(jax.devices(), cores=count)


@pytest.mark.parametrize(
    ("actors", "learners", "line"),
    [
        (8, None, "actor_cores is 8 and learner_cores 1, but this host has 8"),
        (4, 5, "choose at most 8 in all"),
        (0, None, "actor_cores is 0"),
        (None, 8, "actor_cores is 1 and learner_cores 8"),
    ],
)
def test_impossible_splits(actors, learners, line):
    with pytest.raises(UserError, match=line) as error:
        cores.split(jax.devices(), actors, learners)
    assert "\n" not in str(error.value)


def test_a_shared_core_is_said():
    assert str(cores.split(jax.devices()[:1])) == "one cpu core, which acts and learns"
    assert str(cores.split(jax.devices())) == "cpu cores: 2 to act, 6 to learn"
