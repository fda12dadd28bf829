"""The names and units of the metrics that a run reports, and how rows are merged."""

import math
from collections.abc import Mapping, Sequence

_OF_EPISODES = {
    # name: (unit, meaning)
    "steps": ("environment steps", "total since the start of the run, over all cores"),
    "updates": ("updates", "total learner updates since the start of the run"),
    "seconds": ("s", "wall time of this row, without compilation"),
    "steps_per_second": ("environment steps / s", "mean speed over this row"),
    "compile_seconds": ("s", "compilation time before the first row"),
    "episodes": ("episodes", "number of episodes finished in this row"),
    "episode_return": ("reward", "mean undiscounted return of these episodes"),
    "episode_length": ("environment steps", "mean length of these episodes"),
    "finished_share": (
        "share",
        "steps of these episodes, as a share of the row's; far below 1 where few end",
    ),
    "evaluation_episodes": (
        "episodes",
        "number of evaluation episodes, played without exploration; 0 in most rows",
    ),
    "evaluation_return": ("reward", "mean undiscounted return of these episodes"),
    "evaluation_low": ("reward", "lower end of the 95 % interval of that mean"),
    "evaluation_high": ("reward", "upper end of the 95 % interval of that mean"),
}
_OF_AGENTS = {
    # Means over the updates of the row and over the cores. A step from the end
    # of an episode to the next one counts too, with 0; what is said of actions leaves it out.
    "loss/policy": ("", "mean policy loss per step"),
    "loss/value": ("", "mean of half the squared value error per step"),
    "loss/entropy": ("nat", "mean negative policy entropy per step"),
    "loss/total": ("", "weighted sum of all losses per step"),
    "value": ("reward", "mean predicted value of the actions taken"),
    "entropy": ("nat", "mean entropy of the policy"),
    "rho": ("", "mean ratio of action probabilities, target to behaviour policy"),
    "kl": ("nat", "KL divergence of the target from the behaviour policy"),
    "epochs": ("", "number of passes over the trajectory before the update ended"),
    "trained": (
        "share",
        "share of updates that learned; others wait for episodes or replay's minimum fill",
    ),
    "replay_age": (
        "batches",
        "mean number of batches delivered since a sampled trajectory was",
    ),
    "replay_filled": ("share", "share of replay's capacity in use"),
    "replay_priority": (
        "",
        "mean new priority of what was learned from; only if replay is prioritized",
    ),
    "replay_weight": (
        "",
        "mean importance weight of sampled trajectories, 1 where all priorities are equal",
    ),
    "observation_scale": (
        "",
        "mean standard deviation that observations are divided by",
    ),
    "reward_scale": ("reward", "standard deviation that rewards are divided by"),
    "observation": ("", "mean of all observed values; a sanity check"),
    "reward": ("reward", "mean reward per step"),
    "gradient_norm": ("", "global norm of the averaged gradient before clipping"),
    "learning_rate": ("", "step size of the optimizer"),
    # Of meta-training: means over the lifetimes as well.
    "meta/objective": ("", "what the rule's gradient ascends; all terms, weighted"),
    "meta/policy": ("", "its policy gradient term, of the agents after their updates"),
    "meta/entropy": ("nat", "entropy of these agents' policies"),
    "meta/prediction_entropy": ("nat", "entropy of their prediction vectors"),
    "meta/gradient_norm": ("", "global norm of the meta-gradient before clipping"),
    "meta/ended": ("share", "share of lifetimes that ended, per update of the rule"),
}
_OF_TRANSPORT = {  # Sebulba's
    "frames_per_second": (
        "emulator frames / s",
        "steps_per_second times action repeat",
    ),
    "learner_steps_per_second": ("updates / s", "mean learner speed over this row"),
    "learner_waiting": (
        "share of the time",
        "time the learner spent waiting for trajectories",
    ),
    "actors_waiting": (
        "share of the time",
        "time the actors spent waiting for space in the queue",
    ),
    "lag_mean": ("updates", "mean policy lag between acting and learning, over steps"),
    "lag_median": ("updates", "median policy lag"),
    "lag_max": ("updates", "maximum policy lag"),
    "dropped": (
        "trajectories",
        "total number dropped as too old since the run started or was resumed",
    ),
    "lost_episodes": (
        "episodes",
        "total number lost to crashed environments since the run started or was resumed",
    ),
    "games": ("games", "number of games finished in this row, if episodes are lives"),
    "game_return": ("reward", "mean undiscounted return of these games"),
}

# The same names in both architectures; an agent's module adds its own, `METRICS`. A row is one report: of the calls of a compiled
# program (Anakin) or of the learner (Sebulba); null where there is nothing to report.
VOCABULARY = _OF_EPISODES | _OF_AGENTS | _OF_TRANSPORT
# What runs measure themselves; the rest is of agents and update rules.
OF_RUNS = _OF_EPISODES.keys() | _OF_TRANSPORT.keys() | {"observation", "reward"}

# How rows are merged into one; all other metrics are averaged over the rows.
NEWEST = (
    "steps",
    "updates",
    "compile_seconds",
    "dropped",
    "lost_episodes",
)
SUM = ("seconds", "episodes", "games", "evaluation_episodes")
WEIGHT = {  # what the mean over rows is weighted by
    "episode_return": "episodes",
    "episode_length": "episodes",
    "game_return": "games",
    "evaluation_return": "evaluation_episodes",
    "evaluation_low": "evaluation_episodes",
    "evaluation_high": "evaluation_episodes",
    "steps_per_second": "seconds",
    "frames_per_second": "seconds",
    "learner_steps_per_second": "seconds",
    "learner_waiting": "seconds",
    "actors_waiting": "seconds",
}


def human(number: float, digits: int = 3) -> str:
    """A number with three digits and a suffix: 0.985, 1.23k, 4M, 2.1B; NaN is a dash."""
    if math.isnan(number):
        return "-"
    for suffix in ("", "k", "M", "B"):
        if abs(number) < 999.5:
            return f"{number:.{digits}g}{suffix}"
        number /= 1000
    return f"{number:.{digits}g}T"


def merge(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """Neighbouring rows merged into the row that one report in their place would be.

    Counts and means are exact; medians are averaged.
    """
    if len(rows) == 1:
        return dict(rows[0])
    return {name: _merged(name, rows) for name in rows[-1]}


def _merged(name: str, rows: Sequence[Mapping[str, float]]) -> float:
    numbers = [row[name] for row in rows]
    if name in NEWEST:
        return numbers[-1]
    if name in SUM:
        return sum(numbers)
    if name == "lag_max":
        return max(numbers)
    weights = [row[WEIGHT[name]] if name in WEIGHT else 1 for row in rows]
    pairs = [(x, weight) for x, weight in zip(numbers, weights) if weight]
    total = sum(weight for _, weight in pairs)
    return sum(x * weight for x, weight in pairs) / total if total else math.nan
