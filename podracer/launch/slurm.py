"""`podracer launch slurm NAME -- COMMAND`: a batch job with one process on each host
(https://slurm.schedmd.com/sbatch.html); JAX detects the others from SLURM's variables."""

import dataclasses
import shlex
from collections.abc import Sequence

import tyro

from podracer import command
from podracer.errors import UserError, check_at_least_one
from podracer.launch import restarts
from podracer.launch.steps import Execution, Step, do

INSTALL = "part of SLURM: run this on a login host of the cluster"
EXAMPLE = "slurm NAME --nodes 2 -- anakin train --agent ppo --env catch"

# JAX would take one GPU a process: https://docs.jax.dev/en/latest/multi_process.html
ALL_GPUS = """\
if [ -n "$SLURM_GPUS_ON_NODE" ]; then
  export JAX_LOCAL_DEVICE_IDS=$(seq -s, 0 $((SLURM_GPUS_ON_NODE - 1)))
fi
"""
# Since SLURM 22.05 srun does not inherit it: https://slurm.schedmd.com/srun.html
CPUS = """\
if [ -n "$SLURM_CPUS_PER_TASK" ]; then
  export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
fi
"""
SRUN = "srun --kill-on-bad-exit=1 "


@dataclasses.dataclass(frozen=True)
class Config:
    """Submits a job that runs one command on all of its hosts, one process on each: podracer
    launch slurm catch --nodes 2 -- anakin train --env catch."""

    name: tyro.conf.Positional[str] = ""
    """name of the job"""
    nodes: int = 1
    """number of hosts"""
    options: tuple[str, ...] = ()
    """further sbatch options, e.g. partition=gpu time=02:00:00 gpus-per-node=4
    cpus-per-task=32"""
    execution: command.Flat[Execution] = dataclasses.field(default_factory=Execution)

    def __post_init__(self):
        check_at_least_one(nodes=self.nodes)


def run(config: Config, program: Sequence[str]) -> int:
    """Submits the job; returns sbatch's exit code."""
    return do(steps(config, program), INSTALL)


def steps(config: Config, program: Sequence[str]) -> list[Step]:
    """The submission of the script. Raises UserError without a name."""
    if not config.name:
        raise UserError(f"NAME is missing: podracer launch {EXAMPLE}")
    return [Step("submit", ("sbatch",), input=script(config, program))]


def script(config: Config, program: Sequence[str]) -> str:
    """The batch script, which runs on the first host."""
    options = {
        "job-name": config.name,
        "nodes": config.nodes,
        "ntasks-per-node": 1,
        "output": f"{config.name}-%j.txt",
    }
    count = config.execution.restarts
    flags = [f"{name}={value}" for name, value in options.items()]
    flags += config.options
    flags += ["requeue", "open-mode=append"] if count else ["no-requeue"]
    head = "".join(f"#SBATCH --{flag}\n" for flag in flags)
    body = _restarted(program, count) if count else f"{SRUN}{shlex.join(program)}\n"
    return f"#!/bin/bash\n{head}{CPUS}{ALL_GPUS}{body}"


def _restarted(program: Sequence[str], count: int) -> str:
    """SLURM requeues a job that lost a host; this requeues one that failed, too."""
    run = restarts.commands(program)
    return f"""\
restarts=${{SLURM_RESTART_COUNT:-0}}
if [ $restarts -eq 0 ] || {restarts.holds_anothers(run)}; then
  {SRUN}{shlex.join(run.first)}
elif {restarts.holds_checkpoint(run.folder)}; then
  {SRUN}{shlex.join(run.resume)}
else
  {SRUN}{shlex.join(run.anew)}
fi
code=$?
if [ $code -ne 0 ] && [ $code -ne 2 ] && [ $restarts -lt {count} ]; then
  scontrol requeue $SLURM_JOB_ID
fi
exit $code
"""
