"""Programs compiled but not run: memory, work and communication, also for TPUs and GPUs."""
