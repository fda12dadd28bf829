"""The parts of the command `sebulba`: its flags, environments by name, and serving."""
