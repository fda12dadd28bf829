"""What a run reports: the names of metrics, their file, and how they are counted."""

from podracer.metrics.lines import JsonLines, cut, last, read
from podracer.metrics.recent import Recent
from podracer.metrics.vocabulary import VOCABULARY, WEIGHT, human, merge

__all__ = [
    "VOCABULARY",
    "WEIGHT",
    "JsonLines",
    "Recent",
    "cut",
    "human",
    "last",
    "merge",
    "read",
]
