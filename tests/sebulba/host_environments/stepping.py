"""Stepping host environments in tests, and the rules that timesteps must keep."""

import dm_env
import jax
import numpy as np

from sebulba import host_environments

FIRST, MID, LAST = dm_env.StepType


def make(name, batch_size=4, seed=0, threads=1, **options):
    base = host_environments.default_options(name)
    return host_environments.make(
        name, batch_size, seed, threads, type(base)(**options)
    )


def uniform(random, spec, shape):
    if np.issubdtype(spec.dtype, np.integer):
        return random.integers(spec.minimum, spec.maximum, shape, spec.dtype, True)
    return random.uniform(spec.minimum, spec.maximum, shape).astype(spec.dtype)


def zeros(random, spec, shape):
    return np.zeros(shape, spec.dtype)


def interact(environment, steps, draw=uniform):
    """Timesteps [steps + 1, B, ...], the observations in a list, under drawn actions."""
    random, spec = np.random.default_rng(0), environment.action_spec()
    rows = [environment.reset()]
    for _ in range(steps):
        action = draw(random, spec, (environment.batch_size, *spec.shape))
        rows.append(environment.step(action))
    environment.close()
    return dm_env.TimeStep(
        *(np.stack(x) for x in list(zip(*rows, strict=True))[:3]),
        [row.observation for row in rows],
    )


def check_protocol(timesteps):
    step_type, reward, discount = timesteps[:3]
    assert step_type.dtype == np.int32
    assert reward.dtype == discount.dtype == np.float32
    assert (step_type[0] == FIRST).all()
    np.testing.assert_array_equal(step_type[1:] == FIRST, step_type[:-1] == LAST)
    assert (reward[step_type == FIRST] == 0).all()
    assert (discount[step_type != LAST] == 1).all()


def check_observations(spec, observations):
    def check(part, *batches):
        values = np.stack(batches)
        assert values.dtype == part.dtype != np.float64
        assert values.shape[2:] == part.shape
        assert ((part.minimum <= values) & (values <= part.maximum)).all()

    jax.tree.map(check, spec, *observations)
