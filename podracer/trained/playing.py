"""What `evaluate` and `render` have in common, and `render` itself."""

from collections.abc import Callable, Sequence
from typing import Any

import jax

from podracer import command
from podracer.agents import AGENTS
from podracer.errors import UserError
from podracer.runs import run
from podracer.runs.run import StoredRun
from podracer.trained import loading, video
from podracer.trained.filming import Film
from podracer.trained.loading import Trained

AGAIN = "the run's own; needed where the name brings code, unless --trust"


def render(
    argv: Sequence[str],
    program: str,
    film: Callable[[Trained, video.Config], Film],
    environments: command.Environments,
) -> None:
    """Plays episodes with a run's agent and writes them as a video.

    Args:
      argv: flags.
      program: "anakin" or "sebulba".
      film: (agent, configuration) -> what it played.
      environments: those of the program.
    """
    config, _ = chosen(argv, program, "render", video.Config(), environments)
    agent = loading.restore(config.run, config.checkpoint, trust=True)
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


def chosen(
    argv: Sequence[str],
    program: str,
    verb: str,
    default: Any,
    environments: command.Environments,
    names: Sequence[str] = (),
    env_help: str = AGAIN,
) -> tuple[Any, StoredRun]:
    """The configuration, and the run that it names.

    Args:
      argv: flags.
      program: "anakin" or "sebulba".
      verb: the command.
      default: what flags start from.
      environments: those of the program.
      names: of environments to play in; none: the run's.
      env_help: what `--help` says of `--env`.

    Raises:
      UserError: there is no such run, it is of the other architecture and no environment of
        this one is named, or it names code that the command line does not.
    """
    command.keep_programs()
    flags = command.read(argv, dict.fromkeys(run.NAMED, ()), switches=("trust",))
    helps = dict.fromkeys(run.NAMED, AGAIN) | {"env": env_help}
    shown = [command.Choice(x, flags[x], (), helps[x]) for x in run.NAMED]
    shown.append(command.Choice("trust", flags["trust"], (), run.TRUST))
    config = command.parse(default, argv, f"{program} {verb}", shown)
    if config.run is None:
        raise UserError(f"which run? Name it first: {program} {verb} RUN")
    stored = run.read_run(config.run)
    run.check_program(stored, None if names else program)
    run.check_same_names(stored, flags)
    if names:
        # One that is not named here is not imported either.
        flags["env"] = names[0]
    run.check_trusted(stored, flags, AGENTS, environments.brings_code)
    return config, stored


def play_options(config: Any) -> dict[str, Any]:
    """The options that `evaluate` and `film` of both architectures have in common."""
    return {
        "seed": config.seed,
        "greedy": not config.sampled,
        "max_steps": config.max_steps,
    }
