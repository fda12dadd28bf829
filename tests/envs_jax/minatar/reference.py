"""The same random numbers for MinAtar and for our games; run it to record MinAtar's steps.

    pip install --no-deps --target /tmp/minatar MinAtar==1.0.15
    PYTHONPATH=/tmp/minatar:. .venv/bin/python tests/envs_jax/minatar/reference.py

They are recorded because MinAtar is under the GPL and needs pandas, scipy and seaborn.
"""

import copy
import pathlib
from collections.abc import Iterator

import numpy as np

from envs_jax import minatar
from envs_jax.minatar import asterix, seaquest

RECORDED = pathlib.Path(__file__).with_name("recorded.npz")
STEPS = 2_600  # more than Freeway's 2,501
GAMES = {
    "asterix": minatar.Asterix,
    "breakout": minatar.Breakout,
    "freeway": minatar.Freeway,
    "seaquest": minatar.Seaquest,
    "space_invaders": minatar.SpaceInvaders,
}
RAMPING = {"asterix", "seaquest", "space_invaders"}


def runs(name: str) -> list[tuple[bool, bool]]:
    """(ramping, mortal) of each run: without `mortal`, play continues after the end.

    Such runs see more of a game. Breakout is always mortal: its ball cannot fly on.
    """
    return [(True, True), (True, False), (False, False)][: 2 + (name in RAMPING)]


def draws(name: str, run: int) -> minatar.Draws:
    """The random draws of all steps, [STEPS, ...]; the same with every version of numpy."""
    random = np.random.RandomState(1_000 * sorted(GAMES).index(name) + run)

    def below(size, *shape):
        return random.randint(size, size=(STEPS, *shape)).astype(np.int32)

    sticky = random.rand(STEPS) < (0.1 if run == 0 else 0.01)
    chance = {
        "asterix": lambda: asterix.Chance(below(2), below(3), below(840)),
        "breakout": lambda: below(2) == 1,
        "freeway": lambda: (1 + below(5, 8), 2 * below(2, 8) - 1),
        "seaquest": lambda: seaquest.Chance(*map(below, (2, 3, 8, 2, 8))),
        "space_invaders": lambda: (),
    }[name]()
    return minatar.Draws(sticky, chance)


class Fed:
    """Replaces MinAtar's RandomState and returns prepared numbers."""

    def __init__(self):
        self.numbers: Iterator = iter(())

    def __deepcopy__(self, memo):
        return self  # policies copy a game to look ahead

    def rand(self, *shape):
        return next(self.numbers)

    def randint(self, low, high=None, size=None):
        number = next(self.numbers)
        return number(low) if callable(number) else number


def numbers(name: str, game, chance) -> Iterator:
    """The numbers of one step, in the order in which MinAtar draws them."""

    def truth(true):
        return 0.0 if true else 0.9  # MinAtar compares it with 1/2 or 1/3

    if name == "asterix":
        yield from (truth(chance.right), truth(chance.kind == 0))
        yield lambda count: chance.lane * count // 840
    elif name == "breakout":
        yield int(chance)
    elif name == "freeway":
        yield chance[0].copy()
        yield np.where(chance[1] > 0, 0.9, 0.1)
    elif name == "seaquest":
        if game.e_spawn_timer == 0:
            yield from (truth(chance.right), truth(chance.kind == 0), 1 + chance.row)
        yield from (truth(chance.diver_right), 1 + chance.diver_row)


def policy(name: str, game, mortal: bool, random) -> Iterator[int]:
    """Uniform if `mortal`, else one that explores much of the game."""
    while mortal:
        yield random.randint(6)
    while name == "breakout":  # follow the ball until the wall is cleared
        follow = (0, 3, 1)[int(np.sign(game.ball_x - game.pos))]
        safe = [a for a in (0, 1, 3) if not copy.deepcopy(game).act(a)[1]]
        yield follow if game.ball_y < 8 else random.choice(safe or [0])
    while name == "freeway":
        yield random.choice([2, 4], p=[0.9, 0.1])
    while name == "seaquest":  # collect divers and surface repeatedly
        target = (0, 0) if game.diver_count and random.rand() < 0.5 else (5, 4)
        for diver in game.divers[:1]:
            target = target if game.diver_count > 5 else diver[:2]
        for _ in range(random.randint(5, 12)):
            x, y = np.sign(np.subtract(target, (game.sub_x, game.sub_y)))
            steer = [(0, 3, 1)[x], (0, 4, 2)[y]]
            yield random.choice([*steer, *steer, 5])
    while name == "space_invaders":  # below an alien, or ahead of one
        columns = np.flatnonzero(game.alien_map.any(0)) - game.pos
        aside = int(np.sign(columns[np.abs(columns).argmin()] + random.randint(-1, 2)))
        yield (0, 3, 1)[aside] if random.rand() < 0.5 else 5
    while True:
        action = random.choice(6, p=(0.1, 0.2, 0.1, 0.2, 0.1, 0.3))
        yield from [action] * random.randint(1, 8)


def record(name: str, run: int) -> dict[str, np.ndarray]:
    """MinAtar's actions, planes, rewards and ends of episodes, [STEPS, ...] each."""
    from minatar import Environment

    ramping, mortal = runs(name)[run]
    environment = Environment(name, difficulty_ramping=ramping)
    game = environment.env
    environment.random = game.random = fed = Fed()
    actions = policy(name, game, mortal, np.random.RandomState(run))
    random, over, rows = draws(name, run), True, []
    leaves = random.chance if isinstance(random.chance, tuple) else (random.chance,)
    for t in range(STEPS):
        chance = [leaf[t] for leaf in leaves]
        kind = type(random.chance)
        chance = kind(*chance) if hasattr(kind, "_fields") else tuple(chance)
        chance = chance[0] if name == "breakout" else chance
        action, reward = next(actions), 0
        if over:
            fed.numbers = numbers(name, game, chance)
            environment.reset()
            environment.last_action = 0  # ours resets it in every episode
            over = False
        else:
            sticky = 0.0 if random.sticky[t] else 0.9
            fed.numbers = iter([sticky, *numbers(name, game, chance)])
            reward, over = environment.act(action)
        rows.append((action, environment.state(), reward, over))
        if not mortal and name != "breakout":
            game.terminal = over = False
    print(name, ramping, mortal, *(sum(r[i] for r in rows) for i in (2, 3)))
    return dict(zip(("action", "planes", "reward", "over"), map(np.array, zip(*rows))))


def pack(planes: np.ndarray) -> np.ndarray:
    """[runs, STEPS, 10, 10, C] as bits that mark changes, which compress well."""
    bits = planes.reshape(*planes.shape[:2], -1).astype(bool)
    before = np.concatenate([np.zeros_like(bits[:, :1]), bits[:, :-1]], axis=1)
    return np.packbits(bits ^ before, axis=-1)


def unpack(packed: np.ndarray, channels: int) -> np.ndarray:
    changes = np.unpackbits(packed, axis=-1, count=100 * channels)
    planes = np.bitwise_xor.accumulate(changes, axis=1)
    return planes.reshape(*packed.shape[:2], 10, 10, channels)


def main():
    arrays = {}
    for name in GAMES:
        recorded = [record(name, run) for run in range(len(runs(name)))]
        for field in recorded[0]:
            values = np.stack([each[field] for each in recorded])
            values = pack(values) if field == "planes" else values.astype(np.int8)
            arrays[f"{name}.{field}"] = values
    np.savez_compressed(RECORDED, **arrays)
    print(RECORDED, RECORDED.stat().st_size)


if __name__ == "__main__":
    main()
