"""`podracer launch xpk NAME --cluster C --image I -- COMMAND`: on the TPUs of a GKE
cluster, by XPK (https://github.com/AI-Hypercomputer/xpk)."""

import dataclasses
import shlex
from collections.abc import Sequence

import tyro

from podracer import command
from podracer.errors import UserError, check_at_least_one
from podracer.launch import restarts
from podracer.launch.steps import Execution, Step, do

INSTALL = "pip install xpk"
EXAMPLE = "xpk NAME --cluster C --image IMAGE -- anakin train --agent ppo --env catch"
FAILED = 1  # exit code of a run that failed; XPK restarts after signals by itself


@dataclasses.dataclass(frozen=True)
class Config:
    """Submits a workload that runs one command on every host of TPU slices on GKE: podracer launch
    xpk catch --cluster tpus --image IMAGE -- anakin train --env catch."""

    name: tyro.conf.Positional[str] = ""
    """name of the workload"""
    cluster: str = ""
    """name of the cluster"""
    image: str = ""
    """container image with podracer, see the Dockerfile"""
    tpu_type: str = "v5litepod-16"
    """type of TPU slice, with its number of cores or chips"""
    slices: int = 1
    """number of slices"""
    options: tuple[str, ...] = ()
    """further options of xpk workload create, e.g. zone=us-west4-a priority=high spot"""
    execution: command.Flat[Execution] = dataclasses.field(default_factory=Execution)

    def __post_init__(self):
        check_at_least_one(slices=self.slices)


def run(config: Config, program: Sequence[str]) -> int:
    """Submits the workload; returns XPK's exit code."""
    return do(steps(config, program), INSTALL)


def steps(config: Config, program: Sequence[str]) -> list[Step]:
    """The submission. Raises UserError if a flag is missing."""
    needed = {"NAME": config.name, "--cluster": config.cluster, "--image": config.image}
    for flag, value in needed.items():
        if not value:
            raise UserError(f"{flag} is missing: podracer launch {EXAMPLE}")
    count = config.execution.restarts
    flags = [
        f"workload={config.name}",
        f"cluster={config.cluster}",
        f"docker-image={config.image}",
        f"tpu-type={config.tpu_type}",
        f"num-slices={config.slices}",
        *config.options,
    ]
    if config.slices > 1:
        flags.append(
            "env=PODRACER_HOSTS=detect"
        )  # within one slice JAX detects the hosts
    if count:
        flags += [f"max-restarts={count}", f"restart-on-exit-codes={FAILED}"]
    text = restarts.in_shell(program) if count else shlex.join(program)
    named = (f"--{flag}" for flag in flags)
    return [Step("submit", ("xpk", "workload", "create", *named, "--command", text))]
