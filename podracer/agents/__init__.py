"""The agents by name: modules with a `Config`, `PRESETS` and `make_agent`."""

from podracer.agents import impala

AGENTS = {"impala": impala}
