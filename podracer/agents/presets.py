"""Published hyperparameters by agent and name, and our own for small problems (`small`)."""

import dataclasses
from typing import Any, NamedTuple

from podracer import networks
from podracer.agents import batch_ppo, disco, impala, lpg, muzero, ppo, pqn
from podracer.networks import action_model, heads, world_model
from podracer.transformations import Interface
from podracer.transformations.replay import Config as Replay


class Preset(NamedTuple):
    """Published hyperparameters: an agent's, and those that belong to them."""

    config: Any  # the agent's own Config
    unroll_length: int  # T, environment steps
    batch_size: int  # B, environments, over all cores
    network: Any = None  # networks.Config; None: its defaults
    interface: Interface = Interface()
    replay: Replay = Replay()
    threads_per_core: int = 2  # Sebulba's, each with a batch of its own
    max_lag: int | None = None  # Sebulba's: updates between acting and learning


_TABLE_G1 = impala.Config(learning_rate=6e-4, entropy_cost=0.01)
_ATARI = Preset(_TABLE_G1, unroll_length=20, batch_size=32)
_IMPALA = {
    "small": Preset(
        impala.Config(learning_rate=2e-3, entropy_cost=0.01),
        unroll_length=16,
        batch_size=32,
    ),
    # ours, for MinAtar's five games
    "minatar": Preset(
        impala.Config(learning_rate=6e-3, entropy_cost=0.01),
        unroll_length=16,
        batch_size=128,
    ),
    # monobeast.py's flags
    "torchbeast": Preset(impala.Config(), unroll_length=80, batch_size=8),
    # Espeholt et al. 2018, table G.1 (Atari)
    "impala": _ATARI,
    # the same, averaged as in the Podracer paper
    "podracer": _ATARI._replace(
        config=dataclasses.replace(_TABLE_G1, reduction="podracer")
    ),
}

_SEPARATE = networks.Config(
    hidden_sizes=(64, 64), activation="tanh", init="orthogonal", separate_value=True
)
_SMALL_PPO = Preset(
    ppo.Config(learning_rate=1e-3), unroll_length=32, batch_size=64, network=_SEPARATE
)
_PPO = {
    "small": _SMALL_PPO,
    # ours: without scaled rewards, CartPole is sometimes learned and lost again
    "cartpole": _SMALL_PPO._replace(interface=Interface(normalize_rewards=True)),
    # ours, for MinAtar's five games
    "minatar": Preset(
        ppo.Config(learning_rate=2.5e-3, epochs=4, minibatches=8),
        unroll_length=64,
        batch_size=128,
    ),
    # ours, for continuous actions: Pendulum
    "continuous": Preset(
        ppo.Config(
            learning_rate=1e-3, discount_factor=0.95, epochs=10, entropy_cost=0.0
        ),
        unroll_length=128,
        batch_size=16,
        network=dataclasses.replace(_SEPARATE, head=heads.Config(init_scale=0.01)),
        interface=Interface(normalize_rewards=True),
    ),
    # Schulman et al. 2017, table 3 (MuJoCo): its 2,048 steps from 16 environments, and the
    # normalized observations and rewards of its authors' code
    "mujoco": Preset(
        ppo.Config(
            epochs=10,
            minibatches=32,
            shuffle="transitions",
            entropy_cost=0.0,
            normalize_advantages="minibatch",
            decay_learning_rate=False,
        ),
        unroll_length=128,
        batch_size=16,
        network=dataclasses.replace(_SEPARATE, head=heads.Config(init_scale=1e-4)),
        interface=Interface(normalize_observations=True, normalize_rewards=True),
        threads_per_core=1,
        max_lag=0,  # ten epochs move the policy far
    ),
    # the same, table 5 (Atari); its squared error is not halved, hence value_cost. Initial
    # weights and a constant clip as in its authors' second version of the code (baselines'
    # ppo2)
    "atari": Preset(
        ppo.Config(
            epochs=3,
            learning_rate=2.5e-4,
            clip=0.1,
            value_cost=2.0,
            shuffle="transitions",
            reward_clipping="abs_one",
            normalize_advantages="minibatch",
        ),
        unroll_length=128,
        batch_size=8,
        network=networks.Config(init="orthogonal", head=heads.Config(init_scale=1e-4)),
    ),
}


# Gallici et al. 2024: the configurations of its authors' code for CartPole, MinAtar and
# Atari. Their rewards of CartPole are scaled by 0.1.
_PQN = {
    "small": Preset(
        pqn.Config(learning_rate=1e-3, trace_decay=0.95, decay_learning_rate=True),
        unroll_length=32,
        batch_size=64,
    ),
    "cartpole": Preset(
        pqn.Config(
            learning_rate=1e-4,
            decay_learning_rate=True,
            trace_decay=0.95,
            epsilon=0.2,
            exploration_share=0.2,
            epochs=4,
            minibatches=16,
            shuffle="transitions",
        ),
        unroll_length=64,
        batch_size=32,
        network=pqn.NetworkConfig(hidden_sizes=(256, 256)),
    ),
    "minatar": Preset(
        pqn.Config(
            learning_rate=5e-4,
            decay_learning_rate=True,
            epochs=2,
            minibatches=32,
            shuffle="transitions",
        ),
        unroll_length=32,
        batch_size=128,
    ),
    "atari": Preset(
        pqn.Config(
            epsilon=0.001,
            epochs=2,
            minibatches=32,
            shuffle="transitions",
            reward_clipping="abs_one",
        ),
        unroll_length=32,
        batch_size=128,
    ),
}


# There are three versions of BatchPPO. `paper`: the text of arXiv:1709.02878, and where that
# is silent the code of its time (without its error in the Gaussian's density). `v1`: that
# code, 1.0.0. `head`: the last version; `head-TASK`: its hyperparameters for a task. They
# take time limits for terminations, as the original does.
def _batch_ppo(
    config: batch_ppo.Config,
    batch_size: int,
    head: heads.Config,
    interface: Interface = Interface(),  # noqa: B008 frozen
) -> Preset:
    network = networks.Config(
        hidden_sizes=(200, 100), init="glorot", separate_value=True, head=head
    )
    return Preset(config, 20, batch_size, network, interface, threads_per_core=1)


_HEAD = heads.Config(
    init_scale=0.1, mean="tanh", positive="softplus", initial_deviation=0.35
)
_HEAD_1_0 = heads.Config(init_scale=0.05, mean="tanh", initial_deviation=0.3679)
_CONFIG_1_0 = batch_ppo.Config(
    episodes_per_update=25,
    epochs=50,
    discount_factor=0.985,
    value_learning_rate=3e-4,
)
_PAPER = dataclasses.replace(_CONFIG_1_0, epochs=25, value_learning_rate=1e-3)
_TASKS = {
    "cartpole": batch_ppo.Config(max_episode_length=500),
    "reacher": batch_ppo.Config(discount_factor=0.985, episodes_per_update=60),
    "cheetah": batch_ppo.Config(discount_factor=0.99),
    "walker": batch_ppo.Config(),
    "hopper": batch_ppo.Config(episodes_per_update=60),
    "ant": batch_ppo.Config(),
    "humanoid": batch_ppo.Config(episodes_per_update=60),
}
_PENDULUM = batch_ppo.Config(
    max_episode_length=200, chunk_length=50, chunks_per_step=20
)
# Ours, for a million steps of MuJoCo: smaller batches, without the quirks that matter, and
# steps of few chunks, since the episodes of a Hopper make few.
_MUJOCO = batch_ppo.Config(
    episodes_per_update=8,
    discount_factor=0.99,
    gae_lambda=0.95,
    padding_in_bootstrap=False,
    bootstrap_on_truncation=True,
    learning_rate=3e-4,
    value_learning_rate=1e-3,
    epochs=10,
    chunk_length=50,
    chunks_per_step=4,
)
_BATCH_PPO = {
    "mujoco": _batch_ppo(_MUJOCO, 8, _HEAD),
    "paper": _batch_ppo(_PAPER, 10, _HEAD_1_0),
    "v1": _batch_ppo(_CONFIG_1_0, 10, _HEAD_1_0),
    "head": _batch_ppo(batch_ppo.Config(), 30, _HEAD),
    "head-pendulum": _batch_ppo(
        _PENDULUM, 30, _HEAD, Interface(scale_observations=True)
    ),
} | {f"head-{task}": _batch_ppo(config, 30, _HEAD) for task, config in _TASKS.items()}

# Oh et al. 2020, appendix; the learning rates are from its lists.
_SMALL_LPG = Preset(lpg.Config(), unroll_length=20, batch_size=64)
_LPG = {
    "small": _SMALL_LPG,
    # for discrete observations: the paper's tabular agents
    "tabular": _SMALL_LPG._replace(
        config=lpg.Config(learning_rate=40.0, optimizer="sgd"),
        network=lpg.NetworkConfig(table=True),
    ),
    # ours, for Atari
    "atari": _SMALL_LPG._replace(
        config=lpg.Config(learning_rate=3e-4, reward_clipping="abs_one")
    ),
}

# Ours, found on Catch: a model needs many updates from few steps.
_SMALL_MUZERO = Preset(
    muzero.Config(
        policy="gumbel", num_simulations=8, discount_factor=0.99, learning_rate=2e-3
    ),
    unroll_length=16,
    batch_size=32,
    network=world_model.Config(torso="mlp"),
    replay=Replay(
        1024, samples_per_insert=8.0, minimum_fill=256, fresh=False, updates=8
    ),
)
_MUZERO = {
    "small": _SMALL_MUZERO,
    # ours, tried on Breakout
    "minatar": _SMALL_MUZERO._replace(
        network=world_model.Config(torso="mlp", hidden_size=128)
    ),
    # Schrittwieser et al. 2020, appendix G (Atari), in small: its search and returns, a
    # network and batch of a few cores, and Adam
    "atari": Preset(
        muzero.Config(num_simulations=50, dirichlet_alpha=0.25),
        unroll_length=60,
        batch_size=32,
        network=world_model.Config(
            channels=64, hidden_size=256, depth=4, max_return=58_705.0
        ),
    ),
}

_DISCO = {
    # the reference's notebook: Catch with 8 rows and columns, on one core
    "catch": Preset(
        disco.Config(learning_rate=1e-2),
        unroll_length=28,
        batch_size=2,
        replay=Replay(1024, samples_per_insert=32.0, minimum_fill=64, fresh=False),
    ),
    # ours, for CartPole and MinAtar: small updates, many of which the rule needs
    "small": Preset(
        disco.Config(learning_rate=3e-3),
        unroll_length=28,
        batch_size=4,
        network=action_model.Config(torso="mlp"),
        replay=Replay(1024, minimum_fill=32),
    ),
    # ours, for Atari: the reference's default learning rate, and each trajectory twice
    "atari": Preset(disco.Config(), 28, 32, replay=Replay(1024, minimum_fill=32)),
}

PRESETS = {
    "impala": _IMPALA,
    "ppo": _PPO,
    "batch_ppo": _BATCH_PPO,
    "pqn": _PQN,
    "muzero": _MUZERO,
    "lpg": _LPG,
    "disco": _DISCO,
}
