"""Independent arithmetic in float64: networks in numpy, slopes by differences, Adam."""

import dm_env
import jax
import numpy as np

from podracer.agent import ActorOutput, Trajectory

FIRST, MID, LAST = (int(x) for x in dm_env.StepType)
# Of four environments: one goes on, the others end at the start, in the middle, at the end.
STEP_TYPES = np.array(
    [[MID] * 4, [MID, LAST, MID, MID], [MID, FIRST, LAST, MID], [MID, MID, FIRST, LAST]]
)
DISCOUNTS = {1: 0.0, 2: 1.0, 3: 0.0}  # environment 2 is truncated


def trajectory_of(seed, action_size=1, observation_size=3):
    """Random numbers, with ends of episodes as in `STEP_TYPES`."""
    random, shape = np.random.default_rng(seed), STEP_TYPES.shape
    discount = np.ones(shape, np.float32)
    for b, value in DISCOUNTS.items():
        discount[STEP_TYPES[:, b] == LAST, b] = value
    timesteps = dm_env.TimeStep(
        np.int32(STEP_TYPES),
        np.float32(random.normal(size=shape)),
        discount,
        np.float32(random.normal(size=(*shape, observation_size))),
    )
    action = np.float32(random.uniform(-1, 1, (shape[0] - 1, shape[1], action_size)))
    return Trajectory(timesteps, ActorOutput(action, ()), ())


def wide(tree):
    """The tree in float64."""
    return jax.tree.map(np.float64, tree)


def mlp(params, x, head):
    """The outputs [..., F] of one torso of ReLUs and a linear head, for inputs [..., N]."""
    layers = params["params"]["shared"]["MLP_0"]
    for number in range(len(layers)):
        layer = layers[f"Dense_{number}"]
        x = np.maximum(x @ layer["kernel"] + layer["bias"], 0.0)
    return affine(params["params"][head], x)


def affine(layer, x):
    return x @ layer["kernel"] + layer["bias"]


def slope(loss, params, step=1e-6):
    """The gradient of `loss(params)` by central differences."""
    leaves, structure = jax.tree.flatten(wide(params))

    def at(number, place, change):
        moved = [np.array(x) for x in leaves]
        moved[number][place] += change
        return loss(structure.unflatten(moved))

    slopes = [np.zeros_like(x) for x in leaves]
    for number, leaf in enumerate(leaves):
        for place in np.ndindex(np.shape(leaf)):
            rise = at(number, place, step) - at(number, place, -step)
            slopes[number][place] = rise / (2.0 * step)
    return structure.unflatten(slopes)


class Adam:
    """Kingma & Ba 2015, algorithm 1, on one tree."""

    def __init__(self, learning_rate):
        self.learning_rate, self.count, self.moments = learning_rate, 0, None

    def step(self, params, gradient):
        leaves, structure = jax.tree.flatten(gradient)
        if self.moments is None:
            self.moments = [(0.0, 0.0)] * len(leaves)
        self.count += 1
        after = []
        for n, (x, g) in enumerate(zip(jax.tree.leaves(params), leaves, strict=True)):
            first, second = self.moments[n]
            first, second = 0.9 * first + 0.1 * g, 0.999 * second + 0.001 * g * g
            self.moments[n] = first, second
            root = np.sqrt(second / (1.0 - 0.999**self.count)) + 1e-8
            mean = first / (1.0 - 0.9**self.count)
            after.append(x - self.learning_rate * mean / root)
        return structure.unflatten(after)


def values64(params, observation, action):
    x = np.concatenate([observation, action], -1)
    return np.stack([mlp(one, x, "value_head")[..., 0] for one in params])


def transitions64(timesteps):
    """(reward, discount, mask) [T, B], one transition at a time."""
    step_type, reward, discount, _ = timesteps
    rows = np.zeros((3, len(reward) - 1, reward.shape[1]))
    for t, b in np.ndindex(rows.shape[1:]):
        if step_type[t, b] != LAST and step_type[t + 1, b] != FIRST:
            rows[:, t, b] = reward[t + 1, b], discount[t + 1, b], 1.0
    return rows


def close(got, expected, **options):
    options = {"rtol": 1e-3, "atol": 2e-4} | options
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, **options), got, expected
    )
