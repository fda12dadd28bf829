"""The experiments of `benchmarks.learning`: each a command, a target and a group; what others
have published about their tasks."""

import math
import re
from typing import NamedTuple


class Task(NamedTuple):
    """A command, as a user types it, and the mean return that it should reach."""

    group: str
    agent: str  # how tables name it
    command: str
    target: float = math.nan
    together: bool = False  # all seeds in one program: each as alone, and sooner

    @property
    def env(self) -> str:
        """The environment's name in the command."""
        return re.search(r"--env (\S+)", self.command)[1]


PPO, BATCH_PPO = "--agent ppo --preset", "--agent batch_ppo --preset"
CARTPOLE = f"{PPO} cartpole"
SMALL, CONTINUOUS, MUJOCO = f"{PPO} small", f"{PPO} continuous", f"{PPO} mujoco"
PARALLEL = "--agent sac --preset parallel"
MUZERO = "--agent muzero --preset small --total-steps 200_000"
ON_ONE = f"anakin train {MUZERO} --cores 1"  # the same results on any machine
LSTM, MLP = "--network.memory lstm", "--network.torso mlp"
STEPS = "--total-steps"
DISCO = "--agent disco --update-rule disco_103.npz --preset"  # a file that is not ours
LPG = "--agent lpg --preset small --update-rule rule.safetensors"  # docs/results/meta-cpu.md
FEW = " --batch-size 16"  # for Freeway, whose episodes take 2,500 steps
GAMES = "asterix", "breakout", "freeway", "seaquest", "space-invaders"

FIRST = (  # seconds to minutes
    Task("cartpole", "PPO, Anakin", f"anakin train {CARTPOLE} --env cartpole", 475),
    Task(
        "cartpole",
        "PPO, Sebulba",
        f"sebulba train {CARTPOLE} --env CartPole-v1 {STEPS} 1_000_000",
        475,
    ),
    *(
        Task(  # with --seeds 10: how often a policy is lost again
            "cartpole-ten",
            f"PPO, {preset}",
            f"anakin train {PPO} {preset} --env cartpole --cores 1",
            475,
            together=True,
        )
        for preset in ("cartpole", "small")
    ),
    Task(
        "cartpole-batch-ppo",
        "BatchPPO, Anakin",
        f"anakin train {BATCH_PPO} latest-cartpole --env cartpole {STEPS} 200_000",
        475,
    ),
    Task(
        "cartpole-batch-ppo",
        "BatchPPO, Sebulba",
        f"sebulba train {BATCH_PPO} latest-cartpole --env CartPole-v1 {STEPS} 200_000",
        475,
    ),
    Task("pendulum", "PPO", f"anakin train {CONTINUOUS} --env pendulum", -200),
    Task(
        "pendulum",
        "BatchPPO",
        f"anakin train {BATCH_PPO} latest-pendulum --env pendulum",
        -250,
    ),
    Task("muzero-catch", "MuZero, Anakin", f"{ON_ONE} --env catch", 0.9),
    Task(
        "muzero-catch",
        "MuZero, Sebulba",
        f"sebulba train {MUZERO} --env jax:catch",
        0.9,
    ),
    Task(
        "muzero-cartpole",
        "MuZero",
        f"{ON_ONE} --env cartpole --agent.least-range 0.03",
        195,
    ),
    Task("muzero-empty", "MuZero", f"{ON_ONE} --env grid-empty", 0.9),
    Task("muzero-chain", "MuZero", f"{ON_ONE} --env deep-sea --env.size 6", 0.9),
    Task(
        "muzero-chain",
        "MuZero, one simulation",
        f"{ON_ONE} --env deep-sea --env.size 6 --agent.num-simulations 1",
    ),
    Task(  # of seconds, for the tests
        "smoke",
        "IMPALA",
        "anakin train --preset small --env catch --batch-size 8 --network.hidden-sizes 8"
        f" {STEPS} 2_000",
    ),
)

MEMORY = tuple(
    Task(group, name, f"anakin train {SMALL} {network} --env {env} {STEPS} {steps}")
    for group, env, torso, steps in (
        ("memory-chain", "memory-chain", "", "1_000_000"),
        ("memory-umbrella", "umbrella", "", "1_000_000"),
        ("memory-grid", "grid-memory", f" {MLP}", "5_000_000"),
    )
    for name, network in (
        ("PPO, LSTM", LSTM + torso),
        ("PPO, no memory", "--network.memory none" + torso),
    )
)

# Every memory on the same tasks. An unroll is as long as what must be remembered, where one may
# be: gradients reach back to its start.
MEMORIES = tuple(
    Task(
        f"memories-{group}",
        f"PPO, {memory}",
        f"anakin train {SMALL} --env {flags} --network.memory {memory}"
        f"{window if memory == 'gtrxl' else ''} {STEPS} 1_000_000",
    )
    for group, flags, window in (
        ("chain-10", "memory-chain --env.length 10", ""),
        (
            "chain-100",
            "memory-chain --env.length 100 --unroll-length 128",
            " --network.memory-window 128",
        ),
        (
            "chain-1000",
            "memory-chain --env.length 1000 --unroll-length 1024 --batch-size 16",
            " --network.memory-window 512",
        ),
        ("grid", f"grid-memory --env.size 11 {MLP}", ""),
        ("umbrella", "umbrella", ""),
    )
    for memory in ("none", "lstm", "gru", "lru", "mingru", "gtrxl")
)

# An environment is a process there.
POPGYM = f"{SMALL} --batch-size 16 --threads-per-core 1 --env gym:popgym:popgym"
CRAFTAX = f"--env craftax:Craftax-Symbolic-v1 {MLP}"
OF_LIBRARIES = (  # pip install popgym, craftax, brax
    *(
        Task(
            group,
            f"PPO, {memory}",
            f"{train} --network.memory {memory} {STEPS} 1_000_000",
        )
        for group, train in (
            (
                "memories-previous",
                f"sebulba train {POPGYM}-RepeatPreviousEasy-v0",
            ),
            (
                "memories-positions",
                f"sebulba train {POPGYM}-PositionOnlyCartPoleEasy-v0",
            ),
            ("craftax", f"anakin train {SMALL} {CRAFTAX}"),
        )
        for memory in ("none", "lstm", "mingru", "gtrxl")
    ),
    *(
        Task(
            "craftax",
            agent.upper(),
            f"anakin train --agent {agent} --preset small {CRAFTAX} {STEPS} 1_000_000",
        )
        for agent in ("pqn", "dqn")
    ),
    *(
        Task("brax-hopper", name, f"{command} {STEPS} 1_000_000")
        for name, command in (
            ("PPO", f"anakin train {MUJOCO} --env brax:hopper"),
            ("PPO of brax", "benchmarks.peers.brax_learning --agent ppo --env hopper"),
            ("SAC", f"anakin train {PARALLEL} --env brax:hopper --batch-size 128"),
            ("SAC of brax", "benchmarks.peers.brax_learning --agent sac --env hopper"),
        )
    ),
)

SB3 = "benchmarks.peers.sb3_mujoco"
CONTROL = tuple(
    Task(group, name, f"{agent} --env {env} {STEPS} 1_000_000")
    for group, env in (
        ("cheetah", "HalfCheetah-v4"),
        ("walker", "Walker2d-v4"),
        ("hopper", "Hopper-v4"),
    )
    for name, agent in (
        ("PPO", f"sebulba train {PPO} mujoco"),
        ("BatchPPO", f"sebulba train {BATCH_PPO} mujoco"),
        ("SAC", "sebulba train --agent sac --preset mujoco"),
        ("TD3", "sebulba train --agent td3 --preset mujoco"),
        ("PPO of stable-baselines3", SB3),
    )
)

REPLAY = (
    *(
        Task(
            "cartpole-dqn",
            name,
            f"anakin train --agent dqn --preset cartpole --env cartpole {STEPS} 500_000"
            f" --cores 1{flags}",
            475,
            together=True,
        )
        for name, flags in (
            ("DQN", ""),
            ("DQN by priority", " --replay.priority 0.6"),
        )
    ),
    *(
        Task(
            f"minatar-{game}-dqn",
            "DQN",
            f"anakin train --agent dqn --preset minatar --env minatar-{game}"
            f" {STEPS} 1_000_000",
        )
        for game in GAMES
    ),
    *(
        Task(
            "pendulum-replay",
            name,
            f"anakin train --agent {agent} --preset pendulum --env pendulum"
            f" {STEPS} 20_000 --cores 1",
            -150,
            together=True,
        )
        for name, agent in (("SAC", "sac"), ("TD3", "td3"))
    ),
)

MINATAR = (
    *(
        Task(
            f"minatar-{game}",
            name,
            f"anakin train --agent {agent} --preset minatar --env minatar-{game}"
            f" {STEPS} 10_000_000",
        )
        for game in GAMES
        for name, agent in (("IMPALA", "impala"), ("PPO", "ppo"))
    ),
    *(
        Task(
            "minatar-breakout",
            name,
            f"anakin train --agent {agent} --preset minatar --env minatar-breakout"
            f" {STEPS} {steps}",
        )
        for name, agent, steps in (
            ("PQN", "pqn", "10_000_000"),
            ("MuZero", "muzero", "200_000"),  # a quarter of an hour
        )
    ),
)

# All of our agents for MinAtar at equal steps, as many as MuZero affords.
FIVE = tuple(
    Task(
        f"five-{game}",
        name,
        f"anakin train --agent {name.lower()} --preset minatar --env minatar-{game}"
        f" {STEPS} 200_000 --cores 1{FEW if game == 'freeway' else ''}",
        together=True,
    )
    for game in GAMES
    for name in ("PPO", "PQN", "IMPALA", "MuZero", "DQN")
)

PQN = tuple(  # beside PPO
    Task(
        "pqn-breakout",
        agent.upper(),
        f"anakin train --agent {agent} --preset minatar --env minatar-breakout"
        f" {STEPS} 2_000_000",
    )
    for agent in ("pqn", "ppo")
)

RULES = (
    *(
        Task(
            f"disco-catch{group}",
            "Disco103",
            f"anakin train {DISCO} catch --env catch --env.rows 8 --env.columns 8 {STEPS}"
            f" 57_960 --cores 1 --updates-per-report 25 --agent.episode-ends {ends}",
            0.9,
        )
        for group, ends in (("", "own"), ("-jump", "jump"))
    ),
    *(
        Task(
            f"disco-{env.removeprefix('minatar-')}",
            name,
            f"anakin train {agent} --env {env} {STEPS} 200_000 --cores 1"
            + (FEW if env == "minatar-freeway" and name != "Disco103" else ""),
            together=name != "Disco103",
        )
        for env, preset in (
            ("cartpole", "cartpole"),
            *((f"minatar-{game}", "minatar") for game in GAMES),
        )
        for name, agent in (
            ("Disco103", f"{DISCO} small"),
            ("PPO", f"{PPO} {preset}"),
            ("LPG", f"{LPG} --network.prediction-size 8"),
        )
    ),
)

EPOCHS = (  # of PPO on Pong
    "--batch-size 16 --agent.epochs 3 --agent.minibatches 8 --agent.clip 0.2"
    " --agent.value-cost 0.5"
)
ATARI = (
    Task(  # about 12M frames: an hour on two fast cores
        "pong",
        "PPO",
        f"sebulba train {PPO} atari --env Pong-v5 {STEPS} 3_000_000 {EPOCHS} --max-lag 1",
        18,
    ),
    Task(  # twice as long; lock-step is reproducible, and as fast where the learner is slower
        "pong-long",
        "PPO",
        f"sebulba train {PPO} atari --env Pong-v5 {STEPS} 6_000_000 {EPOCHS} --max-lag 0"
        " --threads-per-core 1",
        18,
    ),
    Task(  # A3C's network needs a third of the operations
        "pong-a3c",
        "PPO",
        f"sebulba train {PPO} atari --env Pong-v5 {STEPS} 5_000_000 {EPOCHS} --max-lag 0"
        " --threads-per-core 1 --network.torso a3c",
        18,
    ),
    Task(
        "pong-impala",
        "IMPALA",
        f"sebulba train --agent impala --preset impala --env Pong-v5 {STEPS} 3_000_000"
        " --network.torso shallow --network.center-images --network.init orthogonal"
        " --network.head.init-scale 1e-4 --agent.learning-rate 4e-4"
        " --agent.rmsprop-epsilon 0.01 --agent.entropy-cost 2e-3"
        " --updates-per-trajectory 8 --max-lag 8 --threads-per-core 1",
        18,
    ),
    *(
        Task(
            "breakout",
            name,
            f"sebulba train --agent {name.lower()} --preset atari --env Breakout-v5"
            f" {STEPS} 10_000_000 --max-lag 0 --threads-per-core 1{flags}",
        )
        for name, flags in (("PPO", f" {EPOCHS}"), ("PQN", ""))
    ),
)


def _built_in(env: str, agent: str, flags: str, steps: str = "1_000_000") -> Task:
    command = f"anakin train {flags} --env {env} {STEPS} {steps} --cores 1"
    return Task("built-in", agent, command, together=True)


BUILT_IN = (  # one for each environment of envs_jax, the slowest last
    _built_in("acrobot", "PPO", SMALL),
    _built_in("bandit", "PPO", SMALL, "200_000"),
    _built_in("cartpole", "PPO", CARTPOLE),
    _built_in("catch", "IMPALA", "--agent impala --preset small"),
    _built_in("deep-sea", "PPO", SMALL),
    _built_in("lpg-chain", "PPO", SMALL, "500_000"),
    _built_in("mountain-car-continuous", "PPO", CONTINUOUS, "500_000"),
    _built_in("pendulum", "PPO", CONTINUOUS, "500_000"),
    _built_in("umbrella", "PPO", SMALL, "500_000"),
    _built_in("mountain-car", "PPO", f"{SMALL} --interface.normalize-observations"),
    _built_in("lpg-grid", "PPO", f"{SMALL} {MLP}"),
    *(
        _built_in(f"minatar-{game}", "IMPALA", "--agent impala --preset minatar")
        for game in GAMES
    ),
    *(
        _built_in(f"grid-{world}", agent, f"{SMALL} {MLP}{memory}")
        for world, agent, memory in (
            ("empty", "PPO", ""),
            ("door-key", "PPO", ""),
            ("four-rooms", "PPO", ""),
            ("memory", "PPO, LSTM", f" {LSTM}"),
        )
    ),
    _built_in("memory-chain", "PPO, LSTM", f"{SMALL} {LSTM}", "500_000"),
)

TASKS = (
    *FIRST,
    *MEMORY,
    *MEMORIES,
    *OF_LIBRARIES,
    *CONTROL,
    *REPLAY,
    *MINATAR,
    *FIVE,
    *PQN,
    *RULES,
    *ATARI,
    *BUILT_IN,
)


class Published(NamedTuple):
    """The mean return of another library after so many environment steps."""

    who: str
    env: str
    mean_return: float
    steps: int
    source: str


# Read on 2026-11-29. CleanRL's pages: PPO at commit 7a96de2, whose table of MuJoCo, which it
# includes, and figure of Breakout are from others' quotations; SAC at 08d1c01, TD3 at 0a247b6.
# Craftax's scoreboard, in percent of 226, at 0a2f7f9. Each has the default number of steps.
CLEANRL = "https://docs.cleanrl.dev/rl-algorithms"


def _cleanrl(agent: str, env: str, mean_return: float, steps: int) -> Published:
    source = f"{CLEANRL}/{agent.lower()}/"
    return Published(f"CleanRL's {agent}", env, mean_return, steps, source)


def _mujoco(name: str, ppo: float, sac: float, td3: float) -> tuple[Published, ...]:
    return (
        _cleanrl("PPO", f"{name}-v4", ppo, 1_000_000),
        _cleanrl("SAC", f"{name}-v2", sac, 1_000_000),
        _cleanrl("TD3", f"{name}-v2", td3, 1_000_000),
    )


def _craftax(agent: str, percent: float) -> Published:
    source = "https://github.com/MichaelTMatthews/Craftax"
    mean_return = round(percent * 2.26, 2)
    return Published(f"Craftax's {agent}", "Craftax-1M", mean_return, 1_000_000, source)


CLEANRL_CARTPOLE = _cleanrl("PPO", "CartPole-v1", 490.04, 500_000)
CLEANRL_PONG = _cleanrl("PPO", "PongNoFrameskip-v4", 20.36, 10_000_000)
CLEANRL_BREAKOUT = _cleanrl("PPO", "BreakoutNoFrameskip-v4", 414.66, 10_000_000)
PUBLISHED = {  # by group
    "breakout": (CLEANRL_BREAKOUT,),
    "cartpole": (CLEANRL_CARTPOLE,),
    "cartpole-ten": (CLEANRL_CARTPOLE,),
    "cheetah": _mujoco("HalfCheetah", 1442.64, 9634.89, 9018.31),
    "craftax": (_craftax("PPO", 2.2), _craftax("PPO-RNN", 2.3)),
    "hopper": _mujoco("Hopper", 2382.86, 2310.46, 3391.78),
    "pong": (CLEANRL_PONG,),
    "pong-a3c": (CLEANRL_PONG,),
    "pong-impala": (CLEANRL_PONG,),
    "pong-long": (CLEANRL_PONG,),
    "walker": _mujoco("Walker2d", 2287.95, 3591.45, 4246.07),
}
