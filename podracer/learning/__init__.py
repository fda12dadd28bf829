"""What learners share: losses, gradient accumulation, update rules, whole episodes."""
