"""BatchPPO's published hyperparameters, and our own for MuJoCo."""

import dataclasses

from podracer import networks
from podracer.agents.algorithm import Preset
from podracer.agents.batch_ppo.config import Config
from podracer.networks import heads
from podracer.transformations import Interface


# There are three versions of BatchPPO. `paper`: the text of arXiv:1709.02878, and where that
# is silent the code of its time (without its error in the Gaussian's density). `v1`: that
# code, 1.0.0. `latest`: the last version; `latest-TASK`: its hyperparameters for a task. They
# take time limits for terminations, as the original does.
def _preset(
    config: Config,
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
_HEAD_OF_V1 = heads.Config(init_scale=0.05, mean="tanh", initial_deviation=0.3679)
_CONFIG_1_0 = Config(
    episodes_per_update=25,
    epochs=50,
    discount_factor=0.985,
    value_learning_rate=3e-4,
)
_PAPER = dataclasses.replace(_CONFIG_1_0, epochs=25, value_learning_rate=1e-3)
_TASKS = {
    "cartpole": Config(max_episode_length=500),
    "reacher": Config(discount_factor=0.985, episodes_per_update=60),
    "cheetah": Config(discount_factor=0.99),
    "walker": Config(),
    "hopper": Config(episodes_per_update=60),
    "ant": Config(),
    "humanoid": Config(episodes_per_update=60),
}
_PENDULUM = Config(max_episode_length=200, chunk_length=50, chunks_per_step=20)
# Ours, for a million steps of MuJoCo: smaller batches, without the quirks that matter, and
# steps of few chunks, since the episodes of a Hopper make few.
_MUJOCO = Config(
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

# for --preset
PRESETS = {
    "mujoco": _preset(_MUJOCO, 8, _HEAD),
    "paper": _preset(_PAPER, 10, _HEAD_OF_V1),
    "v1": _preset(_CONFIG_1_0, 10, _HEAD_OF_V1),
    "latest": _preset(Config(), 30, _HEAD),
    "latest-pendulum": _preset(
        _PENDULUM, 30, _HEAD, Interface(scale_observations=True)
    ),
} | {f"latest-{task}": _preset(config, 30, _HEAD) for task, config in _TASKS.items()}

# They were called `head`, `head-cartpole`, ... until heads of networks had that name.
RENAMED = {x.replace("latest", "head"): x for x in PRESETS if x.startswith("latest")}
