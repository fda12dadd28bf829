"""Environments on other machines: client, server, and the protocol (dm_env_rpc) of both."""
