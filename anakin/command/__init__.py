"""The parts of the command `anakin`: its flags, environments by name, and memory."""
