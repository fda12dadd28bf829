"""`envs_jax.make`: names, options, time limits."""

import pytest

import envs_jax
from envs_jax import CartPole, Catch, Pendulum, TimeLimit


def test_make_applies_the_time_limit():
    assert envs_jax.make("cartpole") == TimeLimit(CartPole(), 500)
    assert envs_jax.make("pendulum") == TimeLimit(Pendulum(), 200)
    assert envs_jax.make("catch", columns=7) == Catch(columns=7)


@pytest.mark.parametrize(
    "name, options, message",
    [
        ("cacth", {}, "no environment is named 'cacth'; nearest: catch; known: acrob"),
        (
            "catch",
            {"row": 3},
            "no option of catch is named 'row'; nearest: rows; known",
        ),
    ],
)
def test_make_names_what_it_does_not_know(name, options, message):
    with pytest.raises(ValueError, match=message):
        envs_jax.make(name, **options)
