"""What both commands do with a trained agent: say what it is worth, and show it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from podracer import command, evaluation, run, trained, video
from podracer.errors import UserError
from podracer.trained import Trained


def evaluate(
    argv: Sequence[str],
    program: str,
    default: evaluation.Config,
    play: Callable[[Trained, Any], evaluation.Evaluation],
) -> None:
    """Plays a run's agent, prints what it is worth, and keeps that in its folder."""
    config, agent = _chosen(argv, program, default)
    found = play(agent, config)
    print(f"{agent.run.env}: {evaluation.keep(found, config, agent.updates)}")


def render(
    argv: Sequence[str],
    program: str,
    film: Callable[[Trained, video.Config], list[np.ndarray]],
) -> None:
    """Plays an episode with a run's agent and writes it as a video."""
    config, agent = _chosen(argv, program, video.Config())
    try:
        pictures = film(agent, config)
    except ValueError as error:  # there are none
        raise UserError(f"{agent.run.env}: {error}") from error
    print(video.write(pictures, config.out, config.fps))


def _chosen(argv: Sequence[str], program: str, default: Any) -> tuple[Any, Trained]:
    config = command.parse(default, argv, program)
    if config.run is None:
        raise UserError(f"which run? {program} RUN")
    run.check_program(run.stored(config.run), program.partition(" ")[0])
    return config, trained.restore(config.run, config.checkpoint)


def how(config: evaluation.Config | video.Config) -> dict[str, Any]:
    """What `evaluate` and `film` of both architectures are asked alike."""
    return {
        "seed": config.seed,
        "greedy": not config.sampled,
        "max_steps": config.max_steps,
    }
