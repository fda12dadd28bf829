"""Metrics between two reports: speed, policy lag, waiting times, episodes."""

import time

import jax
import numpy as np

from podracer.metrics import episodes
from podracer.parallel import hosts
from sebulba.cores import Cores
from sebulba.host_environments.environment import HostEnvironment
from sebulba.learner import Learner
from sebulba.transport import Delivery, TrajectoryQueue


class Report:
    """Collects on the host, from one row of metrics to the next.

    Steps, episodes and games are those of all hosts; waiting times and lag are this host's.
    """

    def __init__(
        self,
        queue: TrajectoryQueue,
        environments: list[HostEnvironment],
        unroll_length: int,
        total_steps: int,
        trajectories_per_report: int | None,
    ):
        self._queue, self._threads = queue, len(environments)
        self._frames_per_step = environments[0].frames_per_step
        steps = environments[0].batch_size * unroll_length
        self._steps_per_trajectory = steps * hosts.number_of()  # each host has its own
        self._trajectories = -(-total_steps // self._steps_per_trajectory)  # to learn
        hundredth = min(max(1, self._trajectories // 100), 1_000)
        self._trajectories_per_report = trajectories_per_report or hundredth
        self._early = trajectories_per_report is None  # as of `anakin.train`
        self._learned = self._dropped = 0  # trajectories since the start
        self._lost = 0  # episodes since the start
        self._reported = 0  # trajectories at the last row
        self._first = 0  # trajectory of this process, counted from the start
        self._sums_before = episodes.no_sums()  # of this row, from before a resume
        self._compile_seconds = 0.0
        self._deliveries: list[Delivery] = []  # without their trajectories
        self._lags: list[np.ndarray] = []
        self.start_clock()

    @property
    def complete(self) -> bool:
        """Whether the run has learned from all its trajectories."""
        return self._learned >= self._trajectories

    @property
    def due(self) -> bool:
        """Whether it is time for a row."""
        return self.complete or self._last_due() == self._learned

    def _last_due(self) -> int:
        """The newest number of trajectories up to now after which a row is due."""
        regular = self._learned - self._learned % self._trajectories_per_report
        if self._early and self._learned and not regular:
            return 2 ** (self._learned.bit_length() - 1)
        return regular

    def resume(self, learned: int, sums: episodes.Sums | None = None) -> None:
        """Resumes after `learned` trajectories.

        `sums` are of the episodes that had finished since the last row.
        """
        self._learned = self._first = self._timed_from = learned
        self._reported = self._last_due()
        self._sums_before = sums or self._sums_before

    def add(self, delivery: Delivery, lag: np.ndarray) -> None:
        """Counts a learned trajectory; `lag` are the updates since each step was acted."""
        self._lags.append(lag)
        self._lost += delivery.lost
        self._deliveries.append(delivery._replace(parts=()))
        self._learned += 1
        if self._learned == self._first + 1:  # everything is compiled by now
            self._compile_seconds = time.perf_counter() - self._started
            self.start_clock()

    def drop(self, delivery: Delivery) -> None:
        """Counts the episodes of a trajectory that is not learned."""
        self._lost += delivery.lost
        self._deliveries.append(delivery._replace(parts=()))
        self._dropped += 1

    def row(self, learner: Learner) -> dict[str, float]:
        """The metrics since the last row, named as in `podracer.metrics`."""
        timed = self._learned - self._timed_from
        waited = {
            who: total - self._waited[who]
            for who, total in self._queue.waited().items()
        }
        # After the waiting, which is then no longer than it. A first row of one trajectory
        # is all compilation: it has no time and no rates.
        seconds = time.perf_counter() - self._started if timed else 0.0

        def a_second(amount: float) -> float:
            return amount / seconds if timed else np.nan

        steps_per_second = a_second(timed * self._steps_per_trajectory)
        updates = timed * learner.updates_per_trajectory
        lag = np.concatenate(self._lags)
        finished = self._finished()
        played = (
            self._learned - self._reported + len(self._deliveries) - len(self._lags)
        )
        steps = played * self._steps_per_trajectory
        row = (
            learner.metrics()
            | finished
            | episodes.finished_share(finished, steps)
            | {
                "seconds": seconds,
                "compile_seconds": self._compile_seconds,
                "steps_per_second": steps_per_second,
                "frames_per_second": steps_per_second * self._frames_per_step,
                "learner_steps_per_second": a_second(updates),
                "learner_waiting": a_second(waited["learner"]),
                "actors_waiting": a_second(waited["actors"] / self._threads),
                "lag_mean": lag.mean(),
                "lag_median": np.median(lag),
                "lag_max": lag.max(),
            }
        )
        row = {name: float(x) for name, x in row.items()} | {
            "updates": learner.updates,
            "steps": self._learned * self._steps_per_trajectory,
            **hosts.total({"dropped": self._dropped, "lost_episodes": self._lost}),
        }
        self._reported = self._learned
        self._lags, self._deliveries, self._sums_before = [], [], episodes.no_sums()
        return row

    def sums(self) -> episodes.Sums:
        """Sums over the episodes that finished since the last row, as numpy arrays."""
        sums = [
            self._sums_before,
            *(delivery.episodes for delivery in self._deliveries),
        ]
        return jax.tree.map(lambda *x: sum(x), *jax.device_get(sums))

    def _finished(self) -> dict[str, float]:
        """Means over episodes, and over whole games where an episode is only a life."""
        sums = hosts.total(self.sums()._asdict())
        row = episodes.means(episodes.named(episodes.Sums(**sums)))
        games = [
            delivery.games
            for delivery in self._deliveries
            if delivery.games is not None
        ]
        if games:
            count, total = hosts.total(
                {
                    "finished": sum(x.finished for x in games),
                    "return_sum": sum(x.return_sum for x in games),
                }
            ).values()
            row |= {"games": count, "game_return": total / count if count else np.nan}
        return row

    def start_clock(self) -> None:
        """Time is counted from now on, and until the next row."""
        self._started = time.perf_counter()
        self._waited = self._queue.waited()
        self._timed_from = self._learned


def advice(
    rows: list[dict], cores: Cores, threads_per_core: int, ahead: int | None = None
) -> str:
    """One line on who waited for whom, and on flags that would balance it.

    `ahead`: how far actors may be ahead of the learner, see `starting.most_ahead`.
    """
    rows = [row for row in rows if row["seconds"]]
    if not rows:
        return "too short a run to measure who waited: train for more steps"
    learner, actors = (
        np.mean([row[name] for row in rows])
        for name in ("learner_waiting", "actors_waiting")
    )
    who = f"the learner waited {learner:.0%} of the time, the actors {actors:.0%}"
    acting, learning = len(cores.actors), len(cores.learners)
    if ahead == 0:
        return (
            f"{who}: acting and learning take turns; a larger --max-lag is faster, and "
            "learns from older trajectories"
        )
    if max(learner, actors) < 0.1:
        return f"{who}: well balanced"
    if learner > actors:
        more = f"--threads-per-core {threads_per_core + 1}"
        if learning > 1 and cores.actors != cores.learners:
            more += f", or --actor-cores {acting + 1} --learner-cores {learning - 1}"
        return f"{who}: actors are the bottleneck; try {more}"
    if acting > 1:
        fewer = f"--actor-cores {acting - 1} --learner-cores {learning + 1}"
    else:
        fewer = "a larger --batch-size"
        if threads_per_core > 1:
            fewer += ", or --threads-per-core 1"
    return f"{who}: the learner is the bottleneck; try {fewer}"
