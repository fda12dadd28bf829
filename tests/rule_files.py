"""Rule files for tests: a rule whose weights are set by hand to compute returns."""

import functools
import math
import os
import tempfile
from pathlib import Path

import numpy as np

from podracer.rules import files, lpg

SCALE = 0.01  # of rewards inside the LSTM, so that its tanh is nearly the identity


def returns_weights(discount_factor=0.9, prediction_size=4):
    """(sizes, weights) of an LPG rule: pi_hat is the discounted sum of rewards to the end of
    the episode or trajectory, y_hat is uniform."""
    sizes = lpg.Sizes(prediction_size, memory_size=2, embedding_size=1)
    signs = np.array(
        [1.0, -1.0], np.float32
    )  # of the two units: ReLU keeps one of them
    rewards = np.zeros((6, 2), np.float32)
    rewards[0] = SCALE * signs
    open_gate = np.full(2, 30.0, np.float32)
    keep = np.full(2, math.log(discount_factor / (1 - discount_factor)), np.float32)
    nothing = np.zeros((2, 2), np.float32)
    lstm = {
        **{x: {"kernel": np.zeros((6, 2), np.float32)} for x in ("ii", "if", "io")},
        "ig": {"kernel": rewards},
        "hi": {"kernel": nothing, "bias": open_gate},
        "hf": {"kernel": nothing, "bias": keep},
        "hg": {"kernel": nothing, "bias": np.zeros(2, np.float32)},
        "ho": {"kernel": nothing, "bias": open_gate},
    }

    def dense(rows, columns):
        kernel = np.zeros((rows, columns), np.float32)
        return {"kernel": kernel, "bias": np.zeros(columns, np.float32)}

    weights = {
        "embedding": dense(prediction_size, 1),
        "embedding_output": dense(1, 1),
        "lstm": lstm,
        "pi_hat": dense(2, 1) | {"kernel": signs[:, None] / np.float32(SCALE)},
        "y_hat": dense(2, prediction_size),
    }
    return sizes, {"params": weights}


@functools.cache
def returns_rule() -> Path:
    """A file of that rule, of 4 categories, for as long as the tests run."""
    folder = tempfile.mkdtemp(dir=os.environ["PODRACER_TESTS"])
    path = Path(folder, "returns.safetensors")
    files.save_rule(path, "lpg", *returns_weights())
    return path
