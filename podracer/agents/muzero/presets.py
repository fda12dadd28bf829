"""MuZero's presets: our own for small problems, and the published ones scaled down."""

from podracer.agents.algorithm import Preset
from podracer.agents.muzero.config import Config
from podracer.networks import world_model
from podracer.transformations.replay import Config as Replay

# Ours, found on Catch: a model needs many updates from few steps.
_SMALL_MUZERO = Preset(
    Config(
        policy="gumbel", num_simulations=8, discount_factor=0.99, learning_rate=2e-3
    ),
    unroll_length=16,
    batch_size=32,
    network=world_model.Config(torso="mlp"),
    replay=Replay(
        1024, samples_per_insert=8.0, minimum_fill=256, fresh=False, updates=8
    ),
)
# for --preset
PRESETS = {
    "small": _SMALL_MUZERO,
    # ours, tried on Breakout
    "minatar": _SMALL_MUZERO._replace(
        network=world_model.Config(torso="mlp", hidden_size=128)
    ),
    # Schrittwieser et al. 2020, appendix G (Atari), scaled down: its search and
    # returns, a network and batch of a few cores, and Adam
    "atari": Preset(
        Config(num_simulations=50, dirichlet_alpha=0.25),
        unroll_length=60,
        batch_size=32,
        network=world_model.Config(
            channels=64, hidden_size=256, depth=4, max_return=58_705.0
        ),
    ),
}
