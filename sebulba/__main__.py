"""The command: `sebulba train --agent impala --env Pong-v5`."""

import sys

from podracer import command

COMMANDS = command.of_module(
    "sebulba.command.subcommands",
    {
        "train": "Train an agent in environments on the host; leaves a run folder.",
        "plan": "Compile for TPUs or GPUs what `train` would run, without one; prints a report.",
        "evaluate": "Evaluate a run's agent: returns of whole episodes, in one or several settings.",
        "render": "Play episodes with a run's agent and write them as a video.",
        "serve": "Serve environments to other machines, which train with --env grpc://HOST:PORT.",
        "tune": "Search for an agent's hyperparameters; leaves a folder of runs.",
    },
)


def main() -> None:
    """`sebulba COMMAND ...`; bad input is one line and exit code 2."""
    with command.exits("sebulba"):
        command.dispatch(COMMANDS, sys.argv[1:], "sebulba")


if __name__ == "__main__":
    main()
