"""What masks and mixed observations are worth, on two small games; a table and its text.

    python -m benchmarks.observations [--report docs/results/observations.md]

*Locks*: of 32 keys two fit, other ones in each step, and the higher of them opens the door. A
key that does not fit costs 1. With masks only the two can be tried; without, the same
observation is there, but agents must learn what it says.

*Signs*: an image has its left or its right half lit, a vector names one of two rules; the
action that pays is the half or the other one. Neither of the two tells anything alone.
"""

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import tyro
from dm_env import specs

import anakin
from envs_jax.environment import restart, transition
from podracer import networks
from podracer.agents import from_flags

KEYS, COLUMNS, SIDE, LENGTH = 32, 2, 6, 8
HEAD = """# Masks and mixed observations

Returns per episode of {length} steps, at most {length}: the mean over {seeds} seeds of the last report of a
run, and the lowest and highest of them, after {total_steps:,} environment steps. This page is written by
`python -m benchmarks.observations --report docs/results/observations.md`, whose text says what the games
are. MuZero, with masks, reached 4.2 in as many steps, little more than a random player.
"""


@dataclasses.dataclass(frozen=True)
class Locks:
    """Two of `KEYS` keys fit; `field` is what the observation calls them."""

    field: str = "action_mask"

    def initial_state(self, key):
        fit = self._draw(key)
        return (jnp.int32(0), fit), restart({self.field: fit})

    def step(self, key, state, action):
        count, fit = state
        best = KEYS - 1 - jnp.argmax(fit[::-1])
        reward = jnp.where(fit[action], jnp.float32(action == best), -1.0)
        fit, count = self._draw(key), count + 1
        return (count, fit), transition(reward, {self.field: fit}, count >= LENGTH)

    def _draw(self, key):
        return jnp.zeros(KEYS, bool).at[jax.random.permutation(key, KEYS)[:2]].set(True)

    def observation_spec(self) -> Any:
        return {self.field: specs.BoundedArray((KEYS,), bool, False, True)}

    def action_spec(self) -> Any:
        return specs.DiscreteArray(KEYS)


@dataclasses.dataclass(frozen=True)
class Signs:
    """A lit half of an image, and the rule that a vector names."""

    def initial_state(self, key):
        state, observation = self._draw(key)
        return (jnp.int32(0), state), restart(observation)

    def step(self, key, state, action):
        count, (column, shift) = state
        reward = jnp.float32(action == (column + shift) % COLUMNS)
        (shown, observation), count = self._draw(key), count + 1
        return (count, shown), transition(reward, observation, count >= LENGTH)

    def _draw(self, key):
        column, shift = jax.random.randint(key, (2,), 0, COLUMNS)
        lit = jnp.arange(SIDE) // (SIDE // COLUMNS) == column
        pixels = jnp.broadcast_to(255 * lit[:, None], (SIDE, SIDE, 1)).astype(jnp.uint8)
        return (column, shift), {
            "pixels": pixels,
            "state": jax.nn.one_hot(shift, COLUMNS),
        }

    def observation_spec(self) -> Any:
        return {
            "pixels": specs.BoundedArray((SIDE, SIDE, 1), np.uint8, 0, 255),
            "state": specs.BoundedArray((COLUMNS,), np.float32, 0.0, 1.0),
        }

    def action_spec(self) -> Any:
        return specs.DiscreteArray(COLUMNS)


@dataclasses.dataclass(frozen=True)
class Config:
    """What to run."""

    agents: tuple[str, ...] = ("impala", "ppo", "pqn", "batch_ppo")
    total_steps: int = 400_000
    """of each run"""
    seeds: int = 3
    only: str = ""
    """part of the games' names"""
    report: Path | None = None
    """page to write"""


class Game(NamedTuple):
    """A game, what an agent sees of it, and what a random player gets."""

    name: str
    environment: Any
    sees: tuple[str, ...]
    random: float


GAMES = (
    Game("Locks, masked", Locks(), (), LENGTH * 0.5),
    Game("Locks, penalty", Locks("fit"), (), LENGTH * (1 / KEYS - 30 / KEYS)),
    Game("Signs, both", Signs(), (), LENGTH / COLUMNS),
    Game("Signs, pixels alone", Signs(), ("pixels",), LENGTH / COLUMNS),
    Game("Signs, state alone", Signs(), ("state",), LENGTH / COLUMNS),
)


def final_return(name: str, game: Game, config: Config, seed: int) -> float:
    """The mean return per episode in the last report of a run."""
    chosen = from_flags.choose(
        name,
        "small" if name != "batch_ppo" else None,
        None,
        unroll_length=LENGTH,
        batch_size=64,
    )
    network = chosen.preset.network
    if isinstance(network, networks.Config):
        network = dataclasses.replace(
            network, policy_sees=game.sees, value_sees=game.sees
        )
    elif game.sees:
        return np.nan  # a model sees everything
    agent_config = chosen.preset.config
    if name == "batch_ppo":
        agent_config = dataclasses.replace(
            agent_config, episodes_per_update=64, max_episode_length=LENGTH
        )
    environment = game.environment
    agent = from_flags.make_agent(
        from_flags.Parts(
            chosen.algorithm,
            from_flags.for_run(agent_config, config.total_steps),
            network,
            environment.observation_spec(),
            environment.action_spec(),
        )
    )
    *_, (_, row) = anakin.train(
        agent,
        environment,
        batch_size=64,
        unroll_length=2 * LENGTH,
        total_steps=config.total_steps,
        seed=seed,
    )
    return row["episode_return"]


def lines(config: Config) -> Iterator[str]:
    """The rows of the table."""
    yield "| game | at random | " + " | ".join(config.agents) + " |\n"
    yield "|---|---|" + "---|" * len(config.agents) + "\n"
    for game in (x for x in GAMES if config.only in x.name):
        cells = []
        for name in config.agents:
            got = [final_return(name, game, config, x) for x in range(config.seeds)]
            low, high = min(got), max(got)
            cells.append(f"{np.mean(got):.2f} ({low:.2f} to {high:.2f})")
        shown = (x if "nan" not in x else "" for x in cells)
        yield f"| {game.name} | {game.random:.2f} | {' | '.join(shown)} |\n"


def main(config: Config) -> None:
    """Run all, show each row, and write the page."""
    text = HEAD.format(length=LENGTH, **vars(config)) + "\n"
    for line in lines(config):
        print(line, end="", flush=True)
        text += line
    if config.report:
        config.report.write_text(text)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
