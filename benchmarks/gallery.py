"""The environments of `envs_jax`: a picture of all, and a table with random play's return.

    python -m benchmarks.gallery [--out docs/pictures]

Writes `environments.png` and prints the table of docs/built-in.md. The return is the mean of
the episodes that finish within the steps, which favours short ones where few finish.
"""

import dataclasses
import inspect
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from dm_env import specs
from PIL import Image, ImageDraw, ImageFont

import envs_jax
from benchmarks.random_play import random_action
from podracer.errors import UserError
from podracer.files import atomic
from podracer.metrics import human

TILE, CAPTION, GAP, COLUMNS = 150, 22, 10, 5  # pixels; pictures in a row
FOREGROUND = (40, 40, 46)


@dataclasses.dataclass(frozen=True)
class Config:
    """What to play."""

    names: tuple[str, ...] = tuple(envs_jax.ENVIRONMENTS)
    """environments of `envs_jax`"""
    batch_size: int = 64
    """copies of each"""
    steps: int = 4_000
    """environment steps in each copy"""
    out: Path = Path("docs/pictures")
    """folder of the picture"""

    def __post_init__(self):
        if not self.names:
            raise UserError("names is empty; name at least one environment")


def play(environment: Any, config: Config) -> tuple[float, int, np.ndarray]:
    """The mean return of random play, the number of episodes, and a picture of one state."""
    bare, machine = environment, envs_jax.auto_reset(environment)
    spec = bare.action_spec()

    def step(carry, key):
        state, total = carry
        keys = jax.random.split(key, (2, config.batch_size))
        action = jax.vmap(
            lambda key: random_action(
                key, spec.shape, spec.dtype, spec.minimum, spec.maximum
            )
        )(keys[0])
        state, timestep = jax.vmap(machine.step)(keys[1], state, action)
        total = jnp.where(timestep.first(), 0.0, total + timestep.reward)
        last = timestep.last()
        return (state, total), (jnp.sum(jnp.where(last, total, 0.0)), jnp.sum(last))

    def run(key):
        start, unroll = jax.random.split(key)
        state, _ = jax.vmap(machine.initial_state)(
            jax.random.split(start, config.batch_size)
        )
        keys = jax.random.split(unroll, config.steps)
        (state, _), (returns, episodes) = jax.lax.scan(
            step, (state, jnp.zeros(config.batch_size)), keys
        )
        one = jax.tree.map(lambda x: x[0], state)
        picture = machine.environment.render(one.inner)
        return returns.sum(), episodes.sum(), picture

    total, episodes, picture = jax.jit(run)(jax.random.key(0))
    mean = float(total) / int(episodes) if episodes else float("nan")
    return mean, int(episodes), np.asarray(picture)


def describe(spec: Any) -> str:
    """An observation's or action's spec in a few words."""
    if isinstance(spec, specs.DiscreteArray):
        return f"one of {spec.num_values}"
    if isinstance(spec, specs.Array):
        return f"{spec.dtype} {spec.shape}"
    return "tree of arrays"


def row(name: str, environment: Any, mean: float, episodes: int) -> str:
    """A row of the table."""
    summary = inspect.getdoc(envs_jax.ENVIRONMENTS[name]).splitlines()[0]
    observation = describe(environment.observation_spec())
    action = describe(environment.action_spec())
    found = f"{human(mean)}" if episodes else "no episode ended"
    return f"| `{name}` | {summary} | {observation} | {action} | {found} |"


def tile(picture: np.ndarray, name: str) -> Image.Image:
    """A picture above its name; its sides keep their ratio."""
    seen = Image.fromarray(np.broadcast_to(picture, (*picture.shape[:2], 3)))
    scale = TILE / max(seen.size)
    seen = seen.resize(
        [max(1, round(side * scale)) for side in seen.size], Image.Resampling.NEAREST
    )
    whole = Image.new("RGB", (TILE, TILE + CAPTION), "white")
    whole.paste(seen, ((TILE - seen.width) // 2, (TILE - seen.height) // 2))
    font = ImageFont.load_default(11)
    ImageDraw.Draw(whole).text((0, TILE + 5), name, FOREGROUND, font)
    return whole


def gallery(tiles: list[Image.Image]) -> Image.Image:
    """All of them, in rows."""
    rows, width, height = -(-len(tiles) // COLUMNS), TILE + GAP, TILE + CAPTION + GAP
    size = min(len(tiles), COLUMNS) * width - GAP, rows * height - GAP
    whole = Image.new("RGB", size, "white")
    for number, each in enumerate(tiles):
        whole.paste(each, (number % COLUMNS * width, number // COLUMNS * height))
    return whole


def main(config: Config) -> None:
    """Draws, and prints the table."""
    print("| `--env` | | observation | action | random play |\n|---|---|---|---|---|")
    tiles = []
    for name in config.names:
        environment = envs_jax.make(name)
        mean, episodes, picture = play(environment, config)
        print(row(name, environment, mean, episodes), flush=True)
        tiles.append(tile(picture, name))
    config.out.mkdir(parents=True, exist_ok=True)
    with atomic(config.out / "environments.png") as path:
        gallery(tiles).save(path, "png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
