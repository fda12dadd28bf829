"""The environments of `envs_jax`: a picture of all, and a table with two mean returns each.

    python -m benchmarks.gallery [--out docs/pictures]

Writes `environments.png` and prints the table of docs/built-in.md. Random play's return is the
mean of the episodes that finish within the steps, which favours short ones where few finish.
The trained agents' are from the records of `python -m benchmarks.learning --only built-in`, and of
the group that has the environment's name; `--page docs/built-in.md` updates only these.
"""

import dataclasses
import inspect
import re
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro
from dm_env import specs

import envs_jax
from benchmarks import records
from benchmarks.random_play import random_action
from podracer.errors import UserError
from podracer.files import atomic
from podracer.metrics import episodes, human
from podracer.runs.plot import Picture

COLUMNS = 5  # pictures in a row


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
    page: Path | None = None
    """page whose table gets the trained agents' returns from the records; plays nothing"""

    def __post_init__(self):
        if not self.names:
            raise UserError("names is empty; name at least one environment")


def play(environment: Any, config: Config) -> tuple[float, np.ndarray]:
    """The mean return of random play (NaN without a whole episode), and a picture."""
    machine, spec = envs_jax.batched(environment), environment.action_spec()
    shape = config.batch_size, *spec.shape

    def step(carry, key):
        state, counted = carry
        keys = jax.random.split(key, config.batch_size + 1)
        action = random_action(keys[0], shape, spec.dtype, spec.minimum, spec.maximum)
        state, timestep = machine.step(keys[1:], state, action)
        return (state, episodes.step(counted, timestep)), ()

    def run(key):
        start, unroll = jax.random.split(key)
        state, _ = machine.initial_state(jax.random.split(start, config.batch_size))
        counted = episodes.initial_state(config.batch_size)
        keys = jax.random.split(unroll, config.steps)
        (state, counted), _ = jax.lax.scan(step, (state, counted), keys)
        one = jax.tree.map(lambda x: x[0], state)
        _, sums = episodes.collect(counted)
        return episodes.named(sums), environment.render(one.inner)

    sums, picture = jax.device_get(jax.jit(run)(jax.random.key(0)))
    return episodes.means(sums)["episode_return"], picture


def describe(spec: Any) -> str:
    """An observation's or action's spec in a few words."""
    if isinstance(spec, specs.DiscreteArray):
        return f"one of {spec.num_values}"
    if isinstance(spec, specs.Array):
        return f"{spec.dtype} {spec.shape}"
    return "tree of arrays"


def row(name: str, environment: Any, mean: float) -> str:
    """A row of the table."""
    summary = inspect.getdoc(envs_jax.ENVIRONMENTS[name]).splitlines()[0]
    observation = describe(environment.observation_spec())
    action = describe(environment.action_spec())
    cells = f"`{name}`", summary, observation, action, human(mean), trained(name)
    return f"| {' | '.join(cells)} |"


def trained(name: str) -> str:
    """The best agent on record for an environment: mean return over 3 seeds, and steps."""
    groups = records.kept().values()
    lines = [
        line
        for group in groups
        for line in group
        if line["env"] == name and len(line["runs"]) == 3
        if "--env." not in line["command"]  # another task
    ]
    if not lines:
        return "-"
    best = max(lines, key=lambda line: records.returns(line).mean())
    steps = human(best["runs"][0]["steps"])
    return f"{human(records.returns(best).mean())} ({best['agent']}, {steps})"


def filled(page: str) -> str:
    """A page whose table ends with what is on record now."""
    row = re.compile(r"^(\| `([a-z][a-z-]*)` .*\|)[^|]*\|$", re.MULTILINE)
    return row.sub(lambda match: f"{match[1]} {trained(match[2])} |", page)


def gallery(pictures: dict[str, np.ndarray]) -> Picture:
    """All of them, by name, in rows."""
    rows = -(-len(pictures) // COLUMNS)
    whole = Picture(figsize=(8, 1.9 * rows), dpi=100, layout="constrained")
    for number, (name, picture) in enumerate(pictures.items(), start=1):
        axes = whole.add_subplot(rows, COLUMNS, number)
        axes.imshow(picture, interpolation="nearest")
        axes.set_title(name, fontsize=8)
        axes.axis("off")
    return whole


def main(config: Config) -> None:
    """Draws, and prints the table."""
    if config.page:
        text = filled(config.page.read_text())
        with atomic(config.page) as path:
            path.write_text(text)
        return
    columns = "`--env`", "", "observation", "action", "random play", "trained"
    print(f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|".replace("|  |", "| |"))
    pictures = {}
    for name in config.names:
        environment = envs_jax.make(name)
        mean, pictures[name] = play(environment, config)
        print(row(name, environment, mean), flush=True)
    config.out.mkdir(parents=True, exist_ok=True)
    with atomic(config.out / "environments.png") as path:
        gallery(pictures).savefig(path, format="png")


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
