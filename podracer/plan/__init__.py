"""Programs compiled but not run: memory, work and communication, also for a TPU."""
