"""Environments on other machines: `grpc://HOST:PORT[,HOST:PORT...]`, or `grpcs://` with TLS.

Their servers speak dm_env_rpc, version 1: `sebulba serve`, or any other.
"""

from typing import NamedTuple

from podracer import imports
from podracer.errors import UserError
from sebulba.host_environments.environment import HostEnvironment
from sebulba.host_environments.remote.client_options import Options, host_and_port


class RemoteAdapter(NamedTuple):
    """`grpc` or `grpcs`, as `sebulba.host_environments.ADAPTERS` has them."""

    scheme: str

    def default_options(self, name: str) -> Options:
        self.addresses(name)
        return Options()

    def make(
        self, name: str, batch_size: int, seed: int, threads: int, options: Options
    ) -> HostEnvironment:
        """B environments, distributed over the servers, which choose the seeds."""
        del seed, threads
        try:
            from sebulba.host_environments.remote import client, connection
        except ModuleNotFoundError as error:
            raise UserError(
                f"{self.scheme}:{name}: {error} ({imports.install('remote')})"
            ) from error
        credentials = connection.credentials(options, self.scheme == "grpcs")
        servers = [
            connection.Server(f"{self.scheme}://{address}", credentials, options)
            for address in self.addresses(name)
        ]
        return client.Remote(servers, batch_size, options)

    def addresses(self, name: str) -> list[str]:
        """HOST:PORT of each server. Raises UserError."""
        addresses = []
        for address in name.removeprefix("//").split(","):
            host, _, port = address.rpartition(":")
            number = int(port) if port.isascii() and port.isdigit() else 0
            if not (name.startswith("//") and host.strip() and number):
                raise UserError(
                    f"--env {self.scheme}:{name}: {address!r} is no HOST:PORT; write "
                    f"{self.scheme}://HOST:PORT, several with commas between"
                )
            if number > 65535:
                raise UserError(
                    f"--env {self.scheme}:{name}: the port is {number}; it must be from 1 "
                    "to 65535"
                )
            addresses.append(host_and_port(host, number))
        return addresses


GRPC, GRPCS = RemoteAdapter("grpc"), RemoteAdapter("grpcs")
