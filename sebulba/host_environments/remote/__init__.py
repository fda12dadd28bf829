"""Environments on other machines: client, server, and the protocol (dm_env_rpc) of both."""

import os

os.environ.setdefault("GRPC_VERBOSITY", "ERROR")  # or it logs connections that end
