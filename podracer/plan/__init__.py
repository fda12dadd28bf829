"""Programs compiled but not run: what a run would need and do on cores that are not here.

A TPU pod or a GPU is rented by the hour; its compiler is free. `anakin plan` and `sebulba
plan` compile a run's programs for it and print whether they fit, what they compute, move and
send, and how often (docs/plan.md). `make test-tpu` holds by the same means what no CPU shows:
one all-reduce an update, the whole state donated, no transfer to the host.

`hlo` parses the compiler's text, because XLA's own analysis counts a loop's body once and does
not tell collectives, copies and padding apart. All that it reads is in the report.
"""
