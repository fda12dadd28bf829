"""Learning an update rule: lifetimes, what they share, how good their agents become."""
