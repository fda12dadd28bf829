"""The command: `anakin train --agent impala --env catch`."""

import sys

from podracer import command

COMMANDS = command.of_module(
    "anakin.command.subcommands",
    {
        "train": "Train an agent in a JAX environment; leaves a run folder.",
        "plan": "Compile for TPUs or GPUs what `train` would run, without one; prints a report.",
        "evaluate": "Evaluate a run's agent: returns of whole episodes, in one or several settings.",
        "render": "Play episodes with a run's agent and write them as a video.",
        "meta-train": "Learn an update rule on many tasks; leaves a run folder with the rule's file.",
        "tune": "Search for an agent's hyperparameters; leaves a folder of runs.",
    },
)


def main() -> None:
    """`anakin COMMAND ...`; bad input is one line and exit code 2."""
    with command.exits("anakin"):
        command.dispatch(COMMANDS, sys.argv[1:], "anakin")


if __name__ == "__main__":
    main()
