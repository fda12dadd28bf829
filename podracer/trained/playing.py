"""What `anakin` and `sebulba` do with a trained agent: evaluate it, and film it."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from podracer import command
from podracer.agents import AGENTS
from podracer.errors import UserError
from podracer.runs import evaluation, run
from podracer.trained import loading, video
from podracer.trained.filming import Film
from podracer.trained.loading import Trained

AGAIN = "the run's own; needed where the name brings code, unless --trust"


def evaluate(
    argv: Sequence[str],
    program: str,
    default: evaluation.Config,
    play: Callable[[Trained, Any], evaluation.Evaluation],
    brings_code: Callable[[str], bool],
) -> None:
    """Plays a run's agent, prints its mean return and keeps that in the run's folder.

    Args:
      argv: flags.
      program: "anakin" or "sebulba".
      default: what flags start from.
      play: (agent, configuration) -> the episodes that it played.
      brings_code: (name of an environment) -> whether it imports a user's code.
    """
    config, agent = _chosen(argv, program, "evaluate", default, brings_code)
    played = play(agent, config)
    print(f"{agent.run.env}: {evaluation.write(played, config, agent.updates)}")


def render(
    argv: Sequence[str],
    program: str,
    film: Callable[[Trained, video.Config], Film],
    brings_code: Callable[[str], bool],
) -> None:
    """Plays episodes with a run's agent and writes them as a video; see `evaluate`."""
    config, agent = _chosen(argv, program, "render", video.Config(), brings_code)
    try:
        played = film(agent, config)
    except UserError:
        raise
    except ValueError as error:  # the environment has no pictures
        raise UserError(f"{agent.run.env}: {error}") from error
    except jax.errors.JaxRuntimeError as error:  # what draws on the host has failed
        lines = [x for x in str(error).splitlines() if "Error: " in x]
        raise UserError(
            f"{agent.run.env}: cannot draw: {lines[-1] if lines else error}; without a "
            "screen MuJoCo's take MUJOCO_GL=egl or MUJOCO_GL=osmesa"
        ) from error
    print(video.write(played, config.out, config.fps))


def _chosen(
    argv: Sequence[str],
    program: str,
    verb: str,
    default: Any,
    brings_code: Callable[[str], bool],
) -> tuple[Any, Trained]:
    """The configuration, and the agent of the run that it names."""
    command.keep_programs()
    flags = command.read(argv, dict.fromkeys(run.NAMED, ()), switches=("trust",))
    shown = [command.Choice(name, flags[name], (), AGAIN) for name in run.NAMED]
    shown.append(command.Choice("trust", flags["trust"], (), run.TRUST))
    config = command.parse(default, argv, f"{program} {verb}", shown)
    if config.run is None:
        raise UserError(f"which run? {program} {verb} RUN")
    stored = run.read_run(config.run)
    run.check_program(stored, program)
    run.check_same_names(stored, flags)
    run.check_trusted(stored, flags, AGENTS, brings_code)
    return config, loading.restore(config.run, config.checkpoint, trust=True)


def play_options(config: evaluation.Config | video.Config) -> dict[str, Any]:
    """The options that `evaluate` and `film` of both architectures have in common."""
    return {
        "seed": config.seed,
        "greedy": not config.sampled,
        "max_steps": config.max_steps,
    }
