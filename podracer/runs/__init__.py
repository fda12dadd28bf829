"""A run on disk: its folder, recording, plots, sinks, evaluation; lists of runs."""
