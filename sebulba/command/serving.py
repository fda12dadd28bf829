"""`sebulba serve`: environments for other machines."""

import contextlib
import dataclasses
import os
import time
from collections.abc import Sequence
from typing import Any

from podracer import command, imports
from podracer.errors import UserError
from sebulba import host_environments
from sebulba.command import environments


@dataclasses.dataclass(frozen=True)
class Serve:
    """Serves environments to other machines, which train with `--env grpc://HOST:PORT`.

    Every client that reaches the port can play: keep it inside your network, or use TLS.
    """

    env: Any
    address: command.Flat[Any]


def serve(argv: Sequence[str]) -> None:
    """Serve environments to other machines, which train with --env grpc://HOST:PORT."""
    try:
        from sebulba.host_environments.remote import serving
    except ModuleNotFoundError as error:
        raise UserError(f"{error} ({imports.install('remote')})") from error
    env = command.choose(argv, "env", (), environments.DEFAULT, environments.HELP)
    default = Serve(host_environments.default_options(env.name), serving.Config())
    config = command.parse(default, argv, "sebulba serve", (env,))

    def make(seed: int):
        return host_environments.make(env.name, 1, seed, 1, config.env)

    def first(number: int, batch_size: int):
        return make(config.address.seed)

    with contextlib.closing(environments.example(first, env.name)) as example:
        serving.check(example)  # errors are said here, not there
    with command.stopping() as stopped, serving.serving(make, config.address) as where:
        print(f"{env.name} is at {where}", flush=True)
        while not stopped():
            time.sleep(0.1)
    if serving.still_stepping():
        print("an environment is still in a step: it ends with the process", flush=True)
        os._exit(0)  # a normal exit would wait for it
