"""The flags `--tpu` and `--gpu`, and the process that compiles for what they name."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from podracer import command
from podracer.errors import UserError
from podracer.plan import gpu, slices, tpu

HELP = {
    "tpu": "the TPU slice to compile for: v5e:2x4, v3:32x32, Colab's v5e:1x1, ...",
    "gpu": "or the GPUs: h100:8 (eight in one host), a100, l4, Colab's t4",
}
CHILD = "PODRACER_COMPILES"  # in the environment of that process
MINUTES = 30  # limit of compilation


def choices(argv: Sequence[str]) -> dict[str, Callable[[str | None], command.Choice]]:
    """The flags `--tpu` and `--gpu`: (value) -> what `--help` shows.

    Raises UserError where neither or both stand there.
    """
    values = command.read(argv, dict.fromkeys(HELP, ()))
    if not {"-h", "--help"} & {*argv}:
        if all(values.values()):
            raise UserError("--tpu and --gpu: leave one of them out")
        if not any(values.values()):
            raise UserError(f"--tpu is missing: {HELP['tpu']}; {HELP['gpu']}")

    def choice(flag: str, name: str | None) -> command.Choice:
        return command.Choice(flag, name or "", (), HELP[flag])

    return {flag: partial(choice, flag) for flag in HELP}


def make_slice(chosen: Mapping[str, str]) -> slices.Slice:
    """The cores that `--tpu` or `--gpu` names.

    Raises UserError where the compiler does not know them, or is not installed.
    """
    return (
        gpu.make_slice(chosen["gpu"])
        if chosen["gpu"]
        else tpu.make_slice(chosen["tpu"])
    )


def alone(program: str, function: Callable, argv: Sequence[str]) -> None:
    """Runs `PROGRAM plan ARGV` in a process of its own, in which it calls `function`.

    The compiler may crash its process, and writes to stderr. Raises UserError where the
    command does there, and where the compiler crashed.
    """
    if os.environ.get(CHILD):
        return function(argv)
    try:
        done = subprocess.run(
            [sys.executable, "-m", program, "plan", *argv],
            env=os.environ | slices.ALONE | {CHILD: "1"},
            stderr=subprocess.PIPE,
            text=True,
            check=False,
            timeout=60 * MINUTES,
        )
    except subprocess.TimeoutExpired:
        raise UserError(f"the compiler took over {MINUTES} minutes") from None
    if done.returncode < 0:
        crashed = re.search(r"Check failed: (.*)", done.stderr)
        raise UserError(
            "the compiler crashed: this slice, or this part of it, may not exist ("
            + (crashed[1] if crashed else f"signal {-done.returncode}")
            + ")"
        )
    if line := re.search(rf"^{program}: error: (.*)", done.stderr, re.MULTILINE):
        raise UserError(line[1])
    if done.returncode:
        sys.stderr.write(done.stderr)
        sys.exit(done.returncode)
