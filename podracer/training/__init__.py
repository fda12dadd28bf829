"""What `anakin train` and `sebulba train` share: flags, from them to a run, its limits, checks."""
