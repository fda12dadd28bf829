"""What our PPO learns beside rejax's, at equal environment steps and settings.

    python -m benchmarks.equal_steps [--seeds 10] [--report docs/results]
    python -m benchmarks.equal_steps --env gymnax:Breakout-MinAtar --total-steps 1048576

Each seed is evaluated at equal distances over whole episodes with sampled actions. Writes the
environment's record into equal-steps.json, and from all records there equal-steps.md and a
picture for each; `--again` makes these without training. rejax runs in a virtual environment
that is created on first use (`benchmarks.peers`).
"""

import dataclasses
import json
import platform
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import numpy as np
import tyro

import anakin
import envs_jax
from anakin import population
from benchmarks.learning import commit
from benchmarks.peers import environments
from podracer import networks, parallel
from podracer.agents import ppo
from podracer.files import atomic
from podracer.networks import heads
from podracer.runs import plot
from podracer.runs.evaluation import interval

OURS, PEER, GYMNAX = "podracer", "rejax 0.1.3", "gymnax:"
COLUMNS = "mean final return", "95 % interval", "lowest seed", "mean of all evaluations"
HEAD = """# PPO beside rejax's, at equal steps

`python -m benchmarks.equal_steps --report docs/results` makes this page: PPO by podracer and by
rejax 0.1.3 (gymnax 0.0.9) with the same settings, which are below. Each evaluation is the mean
return of whole episodes with sampled actions; intervals are bootstraps over the seeds. The runs
are short, so that the maximum does not hide a difference. For CartPole podracer has its own
environment and rejax that of gymnax; an environment `gymnax:NAME` is that of gymnax for both.

What the settings cannot make equal: rejax takes a time limit for a termination, podracer
bootstraps the value of the last observation; podracer spends a step between two episodes, which
it does not learn from; initial weights are truncated normals whose standard deviation is 12 %
smaller in podracer.
"""


@dataclasses.dataclass(frozen=True)
class Config:
    """The settings of both."""

    env: str = "cartpole"
    """cartpole, or an environment of gymnax 0.0.9 (gymnax:NAME)"""
    seeds: int = 10
    """number of runs of each, from seed 0"""
    total_steps: int = 2**18
    """environment steps of each run"""
    evaluations: int = 8
    """number of evaluations of each run, at equal distances"""
    episodes: int = 64
    """episodes in each evaluation"""
    batch_size: int = 64
    unroll_length: int = 32
    epochs: int = 4
    minibatches: int = 4
    """of single transitions"""
    hidden_sizes: tuple[int, ...] = (64, 64)
    """of tanh units; policy and value have a network each"""
    learning_rate: float = 1e-3
    """of Adam, constant; gradients are not clipped"""
    discount_factor: float = 0.99
    gae_lambda: float = 0.95
    clip: float = 0.2
    """of the probability ratio, and of the change of a value"""
    value_cost: float = 0.5
    """weight of half the squared error"""
    entropy_cost: float = 0.01


@dataclasses.dataclass(frozen=True)
class Command:
    """What to run, and where the results go."""

    settings: tyro.conf.OmitArgPrefixes[Config] = dataclasses.field(
        default_factory=Config
    )
    report: Path = Path("runs")
    """folder of the results"""
    again: bool = False
    """make page and pictures from equal-steps.json, without training"""


def make_agent(config: Config, env: Any):
    """Our PPO with the settings of the peer's."""
    network = networks.actor_critic(
        env.observation_spec(),
        env.action_spec(),
        networks.Config(
            torso="mlp",
            hidden_sizes=config.hidden_sizes,
            activation="tanh",
            init="truncated",
            separate_value=True,
            head=heads.Config(init_scale=1.0),
        ),
    )
    names = {field.name for field in dataclasses.fields(ppo.Config)}
    same = {k: v for k, v in dataclasses.asdict(config).items() if k in names}
    del same["total_steps"]  # only for the decay of the learning rate
    agent_config = ppo.Config(
        **same,
        shuffle="transitions",
        decay_learning_rate=False,
        clip_value=config.clip,
        normalize_advantages="minibatch",
        max_gradient_norm=float("inf"),
        adam_epsilon=1e-8,
    )
    return ppo.make_agent(agent_config, network)


def ours(config: Config) -> list[list[float]]:
    """[seeds][evaluations]: mean returns of our runs, all in one program."""
    parallel.use_cpu_cores(1)
    env = envs_jax.make(config.env)
    agent = make_agent(config, env)
    update = config.batch_size * config.unroll_length
    reports = population.train(
        lambda _: agent,
        env,
        seeds=range(config.seeds),
        batch_size=config.batch_size,
        unroll_length=config.unroll_length,
        total_steps=config.total_steps,
        updates_per_report=config.total_steps // config.evaluations // update,
        cores=1,
    )
    found = []
    for number, (state, rows) in enumerate(reports):
        if rows:
            found.append([])
            for seed in range(config.seeds):
                learner = population.member(state, seed).learner
                played = anakin.evaluate(
                    agent,
                    agent.actor_params(learner),
                    env,
                    episodes=config.episodes,
                    seed=number * config.seeds + seed,
                    greedy=False,
                )
                found[-1].append(float(played.episode_return.mean()))
    return np.transpose(found).tolist()


def theirs(config: Config) -> list[list[float]]:
    """The same of rejax's runs."""
    script = Path(environments.__file__).parent / "rejax_learning.py"
    settings = {"JAX_PLATFORMS": "cpu", "JAX_NUM_CPU_DEVICES": "1"}
    done = subprocess.run(
        [
            environments.python_of("rejax"),
            script,
            json.dumps(dataclasses.asdict(config)),
        ],
        env=environments.clean_environment(**settings),
        timeout=3_600,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def page(records: dict[str, dict[str, Any]]) -> Iterator[str]:
    """Lines of Markdown, from the environments' records."""
    yield HEAD
    for env, record in records.items():
        yield from section(env, record)


def section(env: str, record: dict[str, Any]) -> Iterator[str]:
    """The environment's results."""
    settings = record["settings"]
    yield f"## {env}"
    yield ""
    yield f"{record['date']}, {record['machine']}, jax {record['jax']}, commit"
    yield f"{record['commit']}; {settings['seeds']} seeds:"
    yield ""
    yield f"| | {' | '.join(COLUMNS)} |"
    yield "|---" * (1 + len(COLUMNS)) + "|"
    for who, returns in record["returns"].items():
        final = np.array(returns)[:, -1]
        low, high = interval(final[:, None]) if len(final) > 1 else ([np.nan],) * 2
        cells = [
            who,
            f"{final.mean():.4g}",
            f"{low[0]:.4g} to {high[0]:.4g}",
            f"{final.min():.4g}",
            f"{np.mean(returns):.4g}",
        ]
        yield f"| {' | '.join(cells)} |"
    yield ""
    yield f"![mean return by environment steps]({picture_name(env)})"
    yield ""
    yield "Settings: " + ", ".join(f"`{k}` {v}" for k, v in settings.items()) + "."
    yield ""


def picture_name(env: str) -> str:
    """The file's name."""
    return f"equal-steps-{env.removeprefix(GYMNAX).lower()}.png"


def picture(record: dict[str, Any]) -> plot.Picture:
    """The curves of all seeds."""
    settings = record["settings"]
    steps = settings["total_steps"] * np.linspace(0, 1, settings["evaluations"] + 1)[1:]
    return plot.compare(
        {
            who: [np.stack([steps, x, np.ones_like(steps)], axis=1) for x in returns]
            for who, returns in record["returns"].items()
        },
        ends={who: float(np.mean(x, 0)[-1]) for who, x in record["returns"].items()},
    )


def measure(config: Config) -> dict[str, Any]:
    """The record: settings, machine and returns."""
    returns = {OURS: ours(config)}
    if environments.is_available("rejax"):
        returns[PEER] = theirs(config)
    return {
        "date": time.strftime("%Y-%m-%d"),
        "commit": commit(),
        "machine": f"{parallel.processors()} {platform.machine()} processors",
        "jax": jax.__version__,
        "settings": dataclasses.asdict(config),
        "returns": returns,
    }


def main(command: Command) -> None:
    """Measures, and writes all files."""
    command.report.mkdir(parents=True, exist_ok=True)
    file = command.report / "equal-steps.json"
    records = json.loads(file.read_text()) if file.exists() else {}
    if not command.again:
        records[command.settings.env] = measure(command.settings)
        with atomic(file) as path:
            path.write_text(json.dumps(records, indent=1))
    lines = "\n".join(page(records))
    with atomic(file.with_suffix(".md")) as path:
        path.write_text(lines)
    print(lines)
    for env, record in records.items():
        plot.save(picture(record), command.report / picture_name(env))


if __name__ == "__main__":
    main(tyro.cli(Command, description=__doc__))
