"""`podracer launch tpu NAME --zone ZONE -- COMMAND`: on a slice of Cloud TPU VMs, created
for it and deleted after it (https://cloud.google.com/tpu/docs/queued-resources)."""

import dataclasses
import shlex
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

import tyro

from podracer import command, imports
from podracer.errors import UserError, check_at_least_one
from podracer.launch import restarts, tpu_host
from podracer.launch.steps import Execution, Step, do

INSTALL = "https://cloud.google.com/sdk/docs/install"
EXAMPLE = "tpu NAME --zone us-west4-a -- anakin train --agent ppo --env catch"
BUILD = (sys.executable, "-m", "pip", "wheel", "--no-deps", "--wheel-dir=dist", ".")
QUEUE = ("gcloud", "compute", "tpus", "queued-resources")
HOSTS = ("gcloud", "compute", "tpus", "tpu-vm")
# https://cloud.google.com/tpu/docs/runtimes: for JAX, by the prefix of the type
RUNTIMES = {
    "v2": "tpu-ubuntu2204-base",
    "v3": "tpu-ubuntu2204-base",
    "v4": "tpu-ubuntu2204-base",
    "v5litepod": "v2-alpha-tpuv5-lite",
    "v5p": "v2-alpha-tpuv5",
    "v6e": "v2-alpha-tpuv6e",
}
ONE_HOST = 8  # most cores or chips of a single host, for any type
INSTALL_SECONDS, FETCH_SECONDS = 1800.0, 3600.0


@dataclasses.dataclass(frozen=True)
class Config:
    """Creates a slice of Cloud TPU VMs, runs one command on all of its hosts, fetches the
    folder with the results, and deletes the slice, even after a failure: podracer launch tpu
    catch --zone us-west4-a -- anakin train --env catch."""

    name: tyro.conf.Positional[str] = ""
    """name of the slice, and of the working folder, which is fetched"""
    zone: str = ""
    """Google Cloud zone, e.g. us-west4-a"""
    accelerator_type: str = "v5litepod-8"
    """type of TPU slice, with its number of cores or chips; more than 8 are several hosts"""
    bucket: str = ""
    """Cloud Storage bucket to work in: results stay there and nothing is fetched;
    required for training on several hosts"""
    runtime_version: str | None = None
    """software version of the hosts; default: the one for the accelerator type"""
    spot: bool = False
    """cheaper, but may be preempted at any time"""
    wait_minutes: int = 60
    """longest wait for the slice; then the request is withdrawn"""
    install: str = "."
    """what pip installs on the hosts: this checkout (.), .[envpool], or a requirement"""
    keep: bool = False
    """do not delete the slice, which is billed as long as it exists"""
    execution: command.Flat[Execution] = dataclasses.field(default_factory=Execution)

    def __post_init__(self):
        check_at_least_one(wait_minutes=self.wait_minutes)

    @property
    def runtime(self) -> str:
        """The runtime version. Raises UserError if it is not known."""
        known = RUNTIMES.get(self.accelerator_type.partition("-")[0])
        if not (self.runtime_version or known):
            raise UserError(
                f"--accelerator-type is {self.accelerator_type}; its runtime version is not "
                f"known (known: {', '.join(RUNTIMES)}): add --runtime-version"
            )
        return self.runtime_version or known

    @property
    def hosts(self) -> bool:
        """Whether the slice has several hosts."""
        size = self.accelerator_type.rpartition("-")[2]
        return size.isdigit() and int(size) > ONE_HOST


def run(config: Config, program: Sequence[str]) -> int:
    """Executes all steps; returns the exit code of the first that failed, or 0."""
    return do(steps(config, program), INSTALL)


def steps(config: Config, program: Sequence[str]) -> list[Step]:
    """From building a wheel to fetching the results. Raises UserError."""
    for flag, value in (("NAME", config.name), ("--zone", config.zone)):
        if not value:
            raise UserError(f"{flag} is missing: podracer launch {EXAMPLE}")
    if config.hosts and "train" in program and not config.bucket:
        raise UserError(
            f"--accelerator-type is {config.accelerator_type}, several hosts, which must "
            "share the folder of a run: add --bucket, a Cloud Storage bucket"
        )
    wheel = _wheel(config.install)
    return [
        *([Step("build", BUILD)] if wheel else []),
        *_making(config),
        *_installing(config, wheel),
        _running(config, program),
        *_ending(config),
    ]


def _making(config: Config) -> Iterator[Step]:
    create = (
        "create",
        f"--node-id={config.name}",
        f"--accelerator-type={config.accelerator_type}",
        f"--runtime-version={config.runtime}",
        f"--valid-until-duration={config.wait_minutes}m",
        *(["--spot"] if config.spot else []),
    )
    yield Step("create", _slice(config, *create))
    yield Step(
        "wait",
        _slice(config, "describe", "--format", "value(state.state)"),
        seconds=60.0 * config.wait_minutes,
        until="ACTIVE",
        unless=("FAILED", "SUSPENDING", "SUSPENDED", "DELETING"),
    )


def _installing(config: Config, wheel: str | None) -> Iterator[Step]:
    requirement = config.install
    if wheel:
        requirement = f"./{wheel}{config.install[1:]}"
        source, target = f"dist/{wheel}", f"{config.name}:"
        yield Step("send", _copy(config, source, target, "--worker=all"))
    install = _on_hosts(config, tpu_host.installing(requirement))
    yield Step("install", install, seconds=INSTALL_SECONDS)
    if config.bucket:
        mount = tpu_host.mounting(config.bucket, config.name)
        yield Step("mount", _on_hosts(config, mount))


def _running(config: Config, program: Sequence[str]) -> Step:
    def running(text: str) -> tuple[str, ...]:
        return _on_hosts(config, tpu_host.running(config.name, text, config.hosts))

    first, count = running(shlex.join(program)), config.execution.restarts
    again = running(restarts.in_shell(program)) if count else ()
    return Step("run", first, seconds=None, again=again, restarts=count)


def _ending(config: Config) -> Iterator[Step]:
    if not config.bucket:
        source = f"{config.name}:{config.name}"
        fetch = _copy(config, source, ".", "--worker=0", "--recurse")
        yield Step("fetch", fetch, seconds=FETCH_SECONDS, after="install")
    if not config.keep:
        yield Step("delete", _slice(config, "delete", "--force"), after="create")


def _slice(config: Config, verb: str, *flags: str) -> tuple[str, ...]:
    return (*QUEUE, verb, config.name, f"--zone={config.zone}", "--quiet", *flags)


def _on_hosts(config: Config, text: str) -> tuple[str, ...]:
    """A shell command, on all hosts at once."""
    where = (f"--zone={config.zone}", "--quiet", "--worker=all")
    return (*HOSTS, "ssh", config.name, *where, "--command", text)


def _copy(config: Config, source: str, target: str, *flags: str) -> tuple[str, ...]:
    return (*HOSTS, "scp", source, target, f"--zone={config.zone}", "--quiet", *flags)


def _wheel(install: str) -> str | None:
    """The wheel of this checkout, if that is what to install. Raises UserError."""
    if install.partition("[")[0] != ".":
        return None
    try:
        project = tomllib.loads(Path("pyproject.toml").read_text())["project"]
    except (OSError, ValueError, KeyError):
        project = {}
    if project.get("name") != imports.DISTRIBUTION:
        raise UserError(
            f"--install is {install}, but this folder is no checkout of podracer: run "
            "it in one, or name a requirement, e.g. git+https://..."
        )
    name = imports.DISTRIBUTION.replace("-", "_")
    return f"{name}-{project['version']}-py3-none-any.whl"
