"""What an update of Disco103 costs: beside IMPALA's, and how much of it is the rule.

    python -m benchmarks.disco --rule disco_103.npz

The settings are those of `--agent disco --preset catch`: 64 trajectories of 29 timesteps.
CPU seconds, the least of several repetitions: other programs on the machine matter little.
"""

import dataclasses
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import tyro

from envs_jax import Catch
from podracer import networks
from podracer.agent import Trajectory
from podracer.agents import algorithm, disco, from_flags, impala
from podracer.rules.rule import Experience
from podracer.transformations.examples import zero_timestep

REPEATS = 3
ENVIRONMENT = Catch(8, 8)
SPECS = ENVIRONMENT.observation_spec(), ENVIRONMENT.action_spec()


@dataclasses.dataclass(frozen=True)
class Config:
    """What to measure."""

    rule: Path
    """the published rule file"""
    batch_size: int = 64
    """number of trajectories of an update"""
    unroll_length: int = 28
    """transitions of each"""
    units: int = 512
    """of each of a torso's two layers"""


def trajectory_of(agent, params, config):
    """The same decision and timestep at all times."""
    timestep = zero_timestep(SPECS[0], config.batch_size)._replace(
        step_type=jnp.ones(config.batch_size, jnp.int32),
        discount=jnp.ones(config.batch_size),
    )
    memory = agent.initial_actor_state(config.batch_size)
    keys = jax.random.split(jax.random.key(0), config.batch_size)
    _, output = jax.jit(agent.actor_step)(keys, params, memory, timestep)

    def repeat(tree, times):
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (times, *x.shape)), tree)

    timesteps = repeat(timestep, config.unroll_length + 1)
    return Trajectory(timesteps, repeat(output, config.unroll_length), memory)


def seconds(function, *arguments):
    """CPU seconds of a call."""
    function = jax.jit(function)
    jax.block_until_ready(function(*arguments))
    found = []
    for _ in range(REPEATS):
        started = time.process_time()
        jax.block_until_ready(function(*arguments))
        found.append(time.process_time() - started)
    return min(found)


def update(agent, config):
    """(CPU seconds of an update, learner state, trajectory)"""
    state = jax.jit(agent.initial_learner_state)(jax.random.key(0))
    trajectory = trajectory_of(agent, agent.actor_params(state), config)
    key = jax.random.key(1)
    return seconds(agent.learner_step, key, state, trajectory), state, trajectory


def main(config: Config) -> None:
    of_agent = disco.Config(update_rule=config.rule)
    default = from_flags.network_maker(None, algorithm.of(disco))[1]
    sizes = {"hidden_sizes": (config.units,), "embedding_size": config.units}
    network = disco.make_network(*SPECS, dataclasses.replace(default, **sizes))
    whole, state, trajectory = update(disco.make_agent(of_agent, network), config)
    rule, weights = disco.disco.make_rule(of_agent), disco.read_rule(of_agent)
    params, _, rule_state = state.shared

    def unroll(params):
        return network.unroll(params, trajectory.actor_state, trajectory.timesteps)

    predictions = jax.jit(unroll)(params)

    def targets(weights, rule_state, predictions):
        experience = Experience(trajectory, params, predictions, lambda _: predictions)
        return rule.targets(weights, rule_state, experience)[:2]

    alone = seconds(targets, weights, rule_state, predictions)
    body = networks.Config(hidden_sizes=(config.units, config.units))
    body = networks.actor_critic(*SPECS, body)
    other, *_ = update(impala.make_agent(impala.Config(), body), config)
    print(f"an update of disco: {whole:.3f} CPU seconds")
    print(f"  of it the rule's targets, given both networks' predictions: {alone:.3f}")
    print(f"an update of impala, torso of the same size: {other:.3f}")


if __name__ == "__main__":
    main(tyro.cli(Config))
