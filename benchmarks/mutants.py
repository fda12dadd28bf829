"""Whether the tests notice faults: mutants of the learning core, each run against its tests.

    python -m benchmarks.mutants [--only losses] [--report docs/results/mutants.md]

Before and after tests are changed, the same mutants must die. Each replaces one piece of a
file, which occurs there once, in a copy of the checkout; it dies if one of its tests, all of
which pass without it, fails.
"""

import dataclasses
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import tyro

from podracer.errors import UserError

ROOT = Path(__file__).parents[1]
MINUTES = 10  # a mutant that takes longer has died: it hangs
HEAD = """# Mutants

Faults in the learning core, and whether the tests of that part notice them:
`python -m benchmarks.mutants --report docs/results/mutants.md` writes this page.

| file | fault | seen |
|---|---|---|
"""


class Mutant(NamedTuple):
    """One fault."""

    file: str
    right: str
    wrong: str


ADAPTATION = "anakin/adaptation.py"
AGENTS = "podracer/agents"
CHECKPOINTS = "podracer/checkpoints"
CORES = "podracer/parallel/cores.py"
GRADIENTS = "podracer/learning/gradients.py"
LOSSES = "podracer/learning/losses.py"
MINIBATCHES = "podracer/learning/minibatches.py"
SUMS = "podracer/sums.py"
TRAINING = "anakin/training.py"
TRANSFORMATIONS = "podracer/transformations"
TESTS = {  # of the part, the quickest first: the first that fails ends the run
    ADAPTATION: ("tests/anakin/test_adaptation.py",),
    CORES: (
        "tests/podracer/parallel",
        "tests/anakin/test_agreement.py",
        "tests/anakin/test_agents.py",
    ),
    GRADIENTS: ("tests/podracer/learning", "tests/anakin/test_agents.py"),
    LOSSES: ("tests/podracer/learning", "tests/podracer/agents/test_impala.py"),
    MINIBATCHES: ("tests/podracer/learning", "tests/podracer/agents/test_ppo.py"),
    SUMS: ("tests/podracer/metrics/test_episodes.py",),
    TRAINING: ("tests/anakin/test_training.py", "tests/anakin/test_agents.py"),
    f"{TRANSFORMATIONS}/normalizer.py": (
        "tests/podracer/transformations/test_normalizer.py",
    ),
    f"{TRANSFORMATIONS}/history.py": (
        "tests/podracer/transformations/test_history.py",
    ),
    f"{TRANSFORMATIONS}/replay.py": ("tests/podracer/transformations/test_replay.py",),
    f"{TRANSFORMATIONS}/priorities.py": (
        "tests/podracer/transformations/test_priorities.py",
    ),
    f"{AGENTS}/ppo.py": ("tests/podracer/agents/test_ppo.py",),
    f"{AGENTS}/pqn.py": ("tests/podracer/agents/test_pqn.py",),
    f"{AGENTS}/dqn.py": (
        "tests/podracer/agents/test_dqn.py",
        "tests/podracer/agents/test_cores.py",
    ),
    f"{AGENTS}/sac.py": (
        "tests/podracer/agents/test_sac.py",
        "tests/anakin/test_agents.py",
    ),
    f"{AGENTS}/td3.py": ("tests/podracer/agents/test_td3.py",),
    f"{AGENTS}/learned_rule.py": (
        "tests/podracer/agents/test_lpg.py",
        "tests/anakin/test_agents.py",
    ),
    f"{AGENTS}/impala.py": ("tests/podracer/agents/test_impala.py",),
    f"{AGENTS}/batch_ppo/update.py": ("tests/podracer/agents/test_batch_ppo.py",),
    f"{AGENTS}/muzero/agent.py": ("tests/podracer/agents/test_muzero.py",),
    f"{AGENTS}/muzero/search.py": ("tests/podracer/agents/test_muzero.py",),
    f"{CHECKPOINTS}/checksums.py": (f"tests/{CHECKPOINTS}",),
    f"{CHECKPOINTS}/finding.py": (f"tests/{CHECKPOINTS}",),
    f"{CHECKPOINTS}/reading.py": (f"tests/{CHECKPOINTS}",),
    f"{CHECKPOINTS}/retention.py": (f"tests/{CHECKPOINTS}",),
}
MUTANTS = (
    Mutant(ADAPTATION, "x[parents], learners)", "x[parents[::-1]], learners)"),
    Mutant(ADAPTATION, "local=own[0]), actors=own[1]", "local=own[0])"),
    Mutant(
        ADAPTATION, "(learner.local, state.actors)", "(learner.local, fresh.actors)"
    ),
    Mutant(ADAPTATION, "standing.failed | failed", "failed"),
    Mutant(ADAPTATION, "standing.finished + metrics", "metrics"),
    Mutant(ADAPTATION, "(done <= self.last)", "(done <= self.last + 1)"),
    Mutant(ADAPTATION, "(done > 0) & ", ""),
    Mutant(ADAPTATION, "bad & (scores[best] > scores)", "bad"),
    Mutant(ADAPTATION, "| (scores == -jnp.inf)", ""),
    Mutant(ADAPTATION, "= hyperparameters[name][parents]", "= hyperparameters[name]"),
    Mutant(ADAPTATION, "jnp.where(is_up, 1, -1)", "jnp.where(is_up, 1, 1)"),
    Mutant(ADAPTATION, "jnp.where(is_new, new, moved)", "moved"),
    Mutant(LOSSES, "last()[:-1] | timesteps.first", "last()[:-1] & timesteps.first"),
    Mutant(
        LOSSES, "void, 0.0, timesteps.reward[1:])", "void, 1.0, timesteps.reward[1:])"
    ),
    Mutant(LOSSES, "timesteps.discount[1:] * disc", "timesteps.discount[:-1] * disc"),
    Mutant(LOSSES, "jnp.minimum(clip_c, rho) /", "jnp.minimum(1.0, rho) /"),
    Mutant(
        LOSSES, "jnp.minimum(clip_pg_rho, rho) * (q", "jnp.minimum(clip_rho, rho) * (q"
    ),
    Mutant(
        LOSSES,
        "jnp.where(transitions.mask == 0.0, 0.0, rho)",
        "rho",
    ),
    Mutant(
        LOSSES,
        "return transitions.mask * jax.lax.stop_gradient(advantage)",
        "return jax.lax.stop_gradient(advantage)",
    ),
    Mutant(LOSSES, "x = weight * (x - total / count)", "x = x - total / count"),
    Mutant(LOSSES, "average.total(jnp.sum(jnp.square(x)))", "jnp.sum(jnp.square(x))"),
    Mutant(LOSSES, "else jnp.broadcast_to(weight, x.shape)", "else 1.0"),
    Mutant(LOSSES, "name: x / taken for", "name: x / count for"),
    Mutant(LOSSES, "0.3 * squashed, squashed", "squashed, squashed"),
    Mutant(GRADIENTS, "lambda x: x / count, gradients", "lambda x: x, gradients"),
    Mutant(GRADIENTS, "average((gradients, sums.taken))", "gradients, sums.taken"),
    Mutant(MINIBATCHES, "(number == 0) | ~enough", "(number == 0) | enough"),
    Mutant(MINIBATCHES, "orders[number])[0]", "orders[0])[0]"),
    Mutant(MINIBATCHES, "lambda x: x / config.minibatches, sums", "lambda x: x, sums"),
    Mutant(MINIBATCHES, "if count % config.minibatches:", "if False:"),
    Mutant(CORES, "_together(jax.lax.pmean, tree)", "_together(jax.lax.psum, tree)"),
    Mutant(CORES, "jax.lax.axis_index(CORE))", "0)"),
    Mutant(CORES, "jnp.where(late > 0, most - late, 0)", "late"),
    Mutant(
        f"{TRANSFORMATIONS}/normalizer.py",
        "/= jnp.maximum(state.count - 1.0, 1.0)",
        "/= jnp.maximum(state.count, 1.0)",
    ),
    Mutant(
        f"{TRANSFORMATIONS}/normalizer.py",
        "variance_sum += jnp.square(delta)",
        "variance_sum += 0 * jnp.square(delta)",
    ),
    Mutant(
        SUMS,
        "jnp.add, new, lost)",
        "lambda x, y: x, new, lost)",
    ),
    Mutant(
        f"{TRANSFORMATIONS}/normalizer.py",
        "timestep.first(), 0.0, discount_factor",
        "timestep.last(), 0.0, discount_factor",
    ),
    Mutant(
        f"{TRANSFORMATIONS}/history.py", "timestep.first().resh", "timestep.last().resh"
    ),
    Mutant(
        f"{TRANSFORMATIONS}/history.py",
        "return acted(history, action), timestep",
        "return history, timestep",
    ),
    Mutant(
        f"{TRANSFORMATIONS}/replay.py", "ring.filled >= least", "ring.filled > least"
    ),
    Mutant(
        f"{TRANSFORMATIONS}/replay.py", "jnp.mean(x, axis=0), metrics", "x[0], metrics"
    ),
    Mutant(
        f"{TRANSFORMATIONS}/replay.py",
        "priorities.sample(sample_key, state.masses",
        "priorities.sample(sample_key, masses",
    ),
    Mutant(
        f"{TRANSFORMATIONS}/priorities.py",
        ".at[slots].set(0.0).at[slots].max(new)",
        ".at[slots].set(new)",
    ),
    Mutant(f"{AGENTS}/ppo.py", "target = advantage + value", "target = advantage"),
    Mutant(
        f"{AGENTS}/ppo.py",
        "losses.clip_reward(timesteps.reward, config.reward_clipping)",
        "timesteps.reward",
    ),
    Mutant(
        f"{AGENTS}/pqn.py", "jnp.argmax(values, -1), jnp", "jnp.argmin(values, -1), jnp"
    ),
    Mutant(f"{AGENTS}/pqn.py", "batch.mask.size * average.cores", "batch.mask.size"),
    Mutant(
        f"{AGENTS}/impala.py",
        "= average.total((gradients, taken))",
        "= gradients, taken",
    ),
    Mutant(
        f"{AGENTS}/impala.py",
        "losses.means(sums, count, taken)",
        "losses.means(sums, 1, taken)",
    ),
    Mutant(
        f"{AGENTS}/batch_ppo/update.py", "padding.shape) + padding)", "padding.shape))"
    ),
    Mutant(
        f"{AGENTS}/batch_ppo/update.py",
        "network.initial_memory(each)",
        "jax.tree.map(jnp.ones_like, network.initial_memory(each))",
    ),
    Mutant(
        f"{AGENTS}/muzero/search.py",
        "gumbel_scale=1.0 if exploring else 0.0",
        "gumbel_scale=1.0",
    ),
    Mutant(
        f"{AGENTS}/muzero/agent.py",
        "(largest > model.support.max_return)",
        "(largest > 2 * model.support.max_return)",
    ),
    Mutant(
        f"{AGENTS}/dqn.py",
        "moved, shared.target_params, updates",
        "moved, params, updates",
    ),
    Mutant(f"{AGENTS}/dqn.py", "online if config.double else target", "target"),
    Mutant(
        f"{AGENTS}/dqn.py", "jnp.roll(transitions.mask, -1, axis=0)", "transitions.mask"
    ),
    Mutant(f"{AGENTS}/sac.py", "* log_prob)[..., None]", "* 0.0)[..., None]"),
    Mutant(
        f"{AGENTS}/sac.py",
        "network.values(shared.targets, after",
        "network.values(shared.params.critics, after",
    ),
    Mutant(
        f"{AGENTS}/sac.py",
        "lax.stop_gradient(log_prob + target)",
        "lax.stop_gradient(log_prob - target)",
    ),
    Mutant(
        f"{AGENTS}/td3.py",
        "updates % config.policy_delay == 0",
        "updates % config.policy_delay == 1",
    ),
    Mutant(
        f"{AGENTS}/td3.py",
        "network.policy(targets.policy, after) + noise",
        "network.policy(targets.policy, after)",
    ),
    Mutant(
        f"{AGENTS}/learned_rule.py",
        "average(pull_back(directions)[0])",
        "pull_back(directions)[0]",
    ),
    Mutant(TRAINING, "acting, parallel.core_key(learning)", "acting, learning"),
    Mutant(TRAINING, "updates=state.updates + 1", "updates=state.updates + 2"),
    Mutant(TRAINING, "jax.random.fold_in(state.key, state.updates)", "state.key"),
    Mutant(
        f"{CHECKPOINTS}/checksums.py",
        "crc = size + len(chunk), zlib.crc32(chunk, crc)",
        "crc = size + len(chunk), 0",
    ),
    Mutant(f"{CHECKPOINTS}/checksums.py", "if name not in actual:", "if False:"),
    Mutant(
        f"{CHECKPOINTS}/finding.py",
        'if f"{n}" in names), reverse=True)',
        'if f"{n}" in names))',
    ),
    Mutant(
        f"{CHECKPOINTS}/reading.py", "if shape != x.shape and word", "if False and word"
    ),
    Mutant(
        f"{CHECKPOINTS}/reading.py",
        "or _leaf_names(saved[name]) != _leaf_names(x))",
        "or False)",
    ),
    Mutant(
        f"{CHECKPOINTS}/retention.py",
        "sorted(returns)[-self._keep :]",
        "sorted(returns)[: self._keep]",
    ),
    Mutant(
        f"{CHECKPOINTS}/retention.py", "x.step in (*best, *newest)", "x.step in newest"
    ),
)


@dataclasses.dataclass(frozen=True)
class Config:
    """Which mutants to run."""

    only: str = ""
    """part of the files' names"""
    first: int = len(MUTANTS)
    """how many of them at most"""
    tests: tuple[str, ...] = ()
    """instead of those of the part"""
    report: Path | None = None
    """page to write"""


def copy(folder: Path) -> None:
    """Our packages and their tests, as they are now."""
    ignore = shutil.ignore_patterns("__pycache__")
    for name in ("anakin", "benchmarks", "envs_jax", "podracer", "sebulba", "tests"):
        shutil.copytree(ROOT / name, folder / name, ignore=ignore)
    shutil.copy(ROOT / "pyproject.toml", folder)


def passed(folder: Path, tests: tuple[str, ...]) -> bool:
    """Whether the tests pass in the copy; one that hangs has failed."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    try:
        done = subprocess.run(
            [*command, "-m", "not slow", *tests],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": str(folder)},  # before what is installed
            capture_output=True,
            timeout=60 * MINUTES,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def outcome(mutant: Mutant, folder: Path, tests: tuple[str, ...]) -> str:
    """What the tests say of a mutant; its file is right again afterwards."""
    file = folder / mutant.file
    right = file.read_text()
    if right.count(mutant.right) != 1:
        raise UserError(
            f"{mutant.file} does not have {mutant.right!r} once: mend MUTANTS"
        )
    file.write_text(right.replace(mutant.right, mutant.wrong))
    try:
        return "LIVES" if passed(folder, tests) else "dies"
    finally:
        file.write_text(right)


def lines(config: Config) -> Iterator[str]:
    """A row of the page for each mutant; without a fault, its tests must pass."""
    chosen = [mutant for mutant in MUTANTS if config.only in mutant.file][
        : config.first
    ]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy(folder)
        for file, mutants in itertools.groupby(chosen, lambda mutant: mutant.file):
            tests = config.tests or TESTS[file]
            if not passed(folder, tests):
                raise UserError(
                    f"{' '.join(tests)} fail without a fault: mend them first"
                )
            for mutant in mutants:
                said = outcome(mutant, folder, tests)
                fault = f"`{mutant.right}`: `{mutant.wrong}`".replace("|", "\\|")
                yield f"| {file} | {fault} | {said} |\n"


def main(config: Config) -> None:
    """Run the mutants, show each, and write the page."""
    text = HEAD
    for line in lines(config):
        print(line, end="", flush=True)
        text += line
    if config.report:
        config.report.write_text(text)


if __name__ == "__main__":
    main(tyro.cli(Config, description=__doc__))
