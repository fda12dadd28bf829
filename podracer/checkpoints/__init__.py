"""The whole state of a run on disk: checkpoint.py saves it, checksums.py detects damage."""
