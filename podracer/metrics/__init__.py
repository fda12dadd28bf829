"""What a run reports: the names of metrics, their file, and how they are counted."""

from podracer.metrics.lines import JsonLines, cut, json_number, last, read
from podracer.metrics.recent import NewestHalf, Recent
from podracer.metrics.vocabulary import VOCABULARY, WEIGHT, human, merge

__all__ = [
    "VOCABULARY",
    "WEIGHT",
    "JsonLines",
    "NewestHalf",
    "Recent",
    "cut",
    "human",
    "json_number",
    "last",
    "merge",
    "read",
]
