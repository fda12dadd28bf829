"""The pictures of README and tour: architectures, a trajectory, an agent while it learns.

    python -m benchmarks.pictures [--out docs/pictures]

`anakin.png`, `sebulba.png` and `trajectory.png` are drawings. `learning.gif` shows, side by side,
an episode of a policy before its training, on the way and at the end. Their words can be read
where a picture is as wide as a phone.
"""

import dataclasses
import itertools
from collections.abc import Callable
from pathlib import Path

import jax
import numpy as np
import tyro
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, FancyBboxPatch

import anakin
import envs_jax
from podracer import networks, parallel
from podracer.agents import ppo
from podracer.files import atomic
from podracer.metrics import human
from podracer.runs.plot import COLORS, Picture
from podracer.trained.video import WRITERS, Shot, make_shots

ENVIRONMENT, ACTOR, LEARNER = COLORS[2], COLORS[0], COLORS[1]
GAP = ((0, 0), (4, 4), (0, 0))  # pixels around a film, white
LETTERS = 28  # pixels, of a film of 320


@dataclasses.dataclass(frozen=True)
class Config:
    """What to draw."""

    env: str = "minatar-breakout"
    """environment of the animation, with pictures"""
    steps: int = 2_000_000
    """environment steps of its training"""
    shown: tuple[float, ...] = (0.0, 0.1, 1.0)
    """shares of the training after which an episode is shown"""
    frames: int = 200
    """most frames of the animation; a shorter episode stays at its last one"""
    fps: float = 15.0
    """frames per second"""
    out: Path = Path("docs/pictures")
    """folder"""


def box(axes: Axes, place: tuple, size: tuple, text: str, color: str) -> None:
    """A named part, with its lower left corner at `place`."""
    style = "round,pad=0,rounding_size=0.12"
    axes.add_patch(
        FancyBboxPatch(
            place, *size, boxstyle=style, facecolor=color, edgecolor="none", zorder=2
        )
    )
    middle = [a + b / 2 for a, b in zip(place, size)]
    axes.text(*middle, text, ha="center", va="center", color="white", zorder=3)


def frame(
    axes: Axes, place: tuple, size: tuple, text: str = "", color: str = "#f3f3f5"
) -> None:
    """What encloses parts, with a title at its upper edge."""
    style = "round,pad=0,rounding_size=0.15"
    axes.add_patch(
        FancyBboxPatch(
            place, *size, boxstyle=style, facecolor=color, edgecolor="#9a9aa2"
        )
    )
    x, y = place[0] + size[0] / 2, place[1] + size[1] - 0.1
    axes.text(x, y, text, ha="center", va="top", fontsize=9, color="#33333a")


def arrow(axes: Axes, start: tuple, end: tuple, text: str = "", bend: float = 0.0):
    """From one place to another, with a label beside its middle."""
    axes.add_patch(
        FancyArrowPatch(
            start,
            end,
            connectionstyle=f"arc3,rad={bend}",
            arrowstyle="-|>",
            mutation_scale=12,
            color="#33333a",
            zorder=4,
        )
    )
    x, y = (start[0] + end[0]) / 2, (start[1] + end[1]) / 2
    axes.text(
        x,
        y + 0.12 - 0.8 * bend,
        text,
        ha="center",
        fontsize=9,
        color="#33333a",
        zorder=4,
    )


def draw_anakin(axes: Axes) -> None:
    """One program on every core."""
    axes.set_title("Anakin: everything is one XLA program", fontsize=11)
    for number, x in enumerate((0.2, 3.3)):
        frame(axes, (x, 0.6), (2.5, 4.6), f"core {number}")
        box(axes, (x + 0.4, 3.7), (1.7, 0.8), "environments", ENVIRONMENT)
        box(axes, (x + 0.4, 2.45), (1.7, 0.8), "actor", ACTOR)
        box(axes, (x + 0.4, 1.2), (1.7, 0.8), "learner", LEARNER)
        arrow(axes, (x + 0.9, 3.7), (x + 0.9, 3.25))
        arrow(axes, (x + 1.6, 3.25), (x + 1.6, 3.7))
        arrow(axes, (x + 1.25, 2.45), (x + 1.25, 2.0))
    axes.text(6.0, 2.9, "...", fontsize=16)
    arrow(axes, (2.7, 1.6), (3.3, 1.6))
    arrow(axes, (3.3, 1.6), (2.7, 1.6))
    axes.text(
        3.0, 0.15, "gradients are averaged over all cores", ha="center", fontsize=9
    )


def draw_sebulba(axes: Axes) -> None:
    """Simulators on the host, actors and learners on cores of their own."""
    axes.set_title("Sebulba: the environments stay on the host", fontsize=11)
    frame(axes, (0.0, 0.6), (1.8, 4.6), "host (CPU)")
    frame(axes, (2.7, 0.6), (1.7, 4.6), "actor cores")
    frame(axes, (5.2, 0.6), (1.7, 4.6), "learner cores")
    for y in (3.4, 1.6):
        box(axes, (0.15, y), (1.5, 0.9), "batch of\nsimulators", ENVIRONMENT)
        box(axes, (2.95, y), (1.2, 0.9), "actor", ACTOR)
        box(axes, (5.45, y), (1.2, 0.9), "learner", LEARNER)
        arrow(axes, (1.65, y + 0.65), (2.95, y + 0.65), "observations")
        arrow(axes, (2.95, y + 0.2), (1.65, y + 0.2), "actions")
        arrow(axes, (4.15, y + 0.65), (5.45, y + 0.65), "trajectories")
    arrow(axes, (6.05, 2.5), (6.05, 3.4))
    arrow(axes, (6.05, 3.4), (6.05, 2.5))
    arrow(axes, (6.05, 1.6), (3.55, 1.6), bend=-0.35)
    axes.text(4.8, 0.75, "parameters", ha="center", fontsize=9)
    axes.text(
        3.45, 0.15, "a thread drives each batch of simulators", ha="center", fontsize=9
    )


def architecture(draw: Callable[[Axes], None]) -> Picture:
    """One of both."""
    picture = Picture(figsize=(5.2, 4.3), dpi=150, layout="constrained")
    axes = picture.subplots()
    axes.set(xlim=(-0.1, 7.0), ylim=(0, 5.4), aspect="equal")
    axes.axis("off")
    draw(axes)
    return picture


def trajectory() -> Picture:
    """Four steps, in which an episode ends; the next trajectory begins with the last one."""
    picture = Picture(figsize=(8, 2.6), dpi=110, layout="constrained")
    axes = picture.subplots()
    axes.set(xlim=(-0.1, 10.6), ylim=(0.1, 3.4), aspect="equal")
    axes.axis("off")
    frame(axes, (0.0, 0.4), (9.3, 2.9), "trajectory")
    for t, kind in enumerate(("MID", "MID", "LAST", "FIRST", "MID")):
        x = 0.2 + 1.9 * t
        box(axes, (x, 0.6), (1.3, 0.75), f"timestep {t}\n{kind}", ENVIRONMENT)
        if t == 4:
            break
        box(axes, (x + 0.55, 2.0), (1.3, 0.6), f"output {t}", ACTOR)
        arrow(axes, (x + 0.65, 1.35), (x + 0.95, 2.0))
        if kind == "LAST":
            axes.text(x + 1.6, 1.45, "void", ha="center", fontsize=9, color="#33333a")
        else:
            arrow(axes, (x + 1.45, 2.0), (x + 2.2, 1.35))
    frame(axes, (7.6, 0.2), (2.9, 1.5), color="none")
    axes.text(9.85, 0.98, "next\ntrajectory ...", ha="center", va="center", fontsize=9)
    return picture


def episodes(config: Config) -> list[tuple[float, list[Shot]]]:
    """[(environment steps, pictures of an episode)], one for each of `config.shown`."""
    environment = envs_jax.make(config.env)
    preset = ppo.PRESETS["minatar"]
    settings = dataclasses.replace(preset.config, total_steps=config.steps)
    specs = environment.observation_spec(), environment.action_spec()
    agent = ppo.make_agent(settings, networks.actor_critic(*specs))
    training = anakin.train(
        agent,
        environment,
        batch_size=preset.batch_size,
        unroll_length=preset.unroll_length,
        total_steps=config.steps,
    )
    found, wanted = [], sorted(config.shown)
    start = jax.jit(agent.initial_learner_state)(jax.random.key(0))
    learned = ((s.learner, metrics["steps"]) for s, metrics in training if metrics)
    for learner, steps in itertools.chain([(start, 0.0)], learned):
        while wanted and steps >= wanted[0] * config.steps:
            wanted.pop(0)
            params = jax.device_get(agent.actor_params(learner))
            film = anakin.film(agent, params, environment, max_steps=config.frames)
            shots = make_shots(film, f"{human(steps)} steps\n", LETTERS)
            found.append((steps, list(shots)))
    return found


def side_by_side(films: list[list[Shot]]) -> list[Shot]:
    """One picture of all for each frame; a shorter film stays at its last frame."""
    length = max(map(len, films))
    together = []
    for number in range(length):
        now = [film[min(number, len(film) - 1)].picture for film in films]
        apart = [np.pad(x, GAP, constant_values=255) for x in now]
        together.append(Shot(np.concatenate(apart, 1), held=number == length - 1))
    return together


def main(config: Config) -> None:
    """Draws all."""
    config.out.mkdir(parents=True, exist_ok=True)
    for name, draw in (("anakin", draw_anakin), ("sebulba", draw_sebulba)):
        architecture(draw).savefig(config.out / f"{name}.png")
    trajectory().savefig(config.out / "trajectory.png")
    found = episodes(config)
    together = side_by_side([film for _, film in found])
    with atomic(config.out / "learning.gif") as path:
        WRITERS[".gif"](together, path, config.fps)
    print(f"{config.env}: episodes after", *(f"{human(x)} steps" for x, _ in found))


if __name__ == "__main__":
    parallel.use_cpu_cores()
    main(tyro.cli(Config, description=__doc__))
