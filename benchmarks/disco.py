"""What an update of Disco103 costs: beside IMPALA's, and how much of it is the rule.

    python benchmarks/disco.py disco_103.npz

The settings are those of `--agent disco --preset catch`: 64 trajectories of 29 timesteps.
CPU seconds, the least of several repetitions: other programs on the machine matter little.
"""

import sys
import time

import jax
import jax.numpy as jnp

from envs_jax import Catch
from podracer import networks
from podracer.agent import Trajectory, zero_timestep
from podracer.agents import disco, impala
from podracer.rules.rule import Experience

UNROLL_LENGTH, BATCH_SIZE, REPEATS = 28, 64, 3
ENVIRONMENT = Catch(8, 8)
SPECS = ENVIRONMENT.observation_spec(), ENVIRONMENT.action_spec()
BODY = networks.Config(hidden_sizes=(512, 512))


def trajectory_of(agent, params):
    """The same decision and timestep at all times."""
    timestep = zero_timestep(SPECS[0], BATCH_SIZE)._replace(
        step_type=jnp.ones(BATCH_SIZE, jnp.int32), discount=jnp.ones(BATCH_SIZE)
    )
    memory = agent.initial_actor_state(BATCH_SIZE)
    keys = jax.random.split(jax.random.key(0), BATCH_SIZE)
    _, output = jax.jit(agent.actor_step)(keys, params, memory, timestep)

    def repeat(tree, times):
        return jax.tree.map(lambda x: jnp.broadcast_to(x, (times, *x.shape)), tree)

    timesteps = repeat(timestep, UNROLL_LENGTH + 1)
    return Trajectory(timesteps, repeat(output, UNROLL_LENGTH), memory)


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


def update(agent):
    """(CPU seconds of an update, learner state, trajectory)"""
    state = jax.jit(agent.initial_learner_state)(jax.random.key(0))
    trajectory = trajectory_of(agent, agent.actor_params(state))
    key = jax.random.key(1)
    return seconds(agent.learner_step, key, state, trajectory), state, trajectory


def main(path: str) -> None:
    config = disco.Config(update_rule=path)
    network = disco.make_network(*SPECS)
    whole, state, trajectory = update(disco.make_agent(config, network))
    rule, weights = disco.disco.make_rule(config), disco.read_rule(config)
    params, _, rule_state = state.shared

    def unroll(params):
        return network.unroll(params, trajectory.actor_state, trajectory.timesteps)

    predictions = jax.jit(unroll)(params)

    def targets(weights, rule_state, predictions):
        experience = Experience(trajectory, params, predictions, lambda _: predictions)
        return rule.targets(weights, rule_state, experience)[:2]

    alone = seconds(targets, weights, rule_state, predictions)
    other, *_ = update(
        impala.make_agent(impala.Config(), networks.actor_critic(*SPECS, BODY))
    )
    print(f"an update of disco: {whole:.3f} CPU seconds")
    print(f"  of it the rule's targets, given both networks' predictions: {alone:.3f}")
    print(f"an update of impala, torso of 512 and 512 units: {other:.3f}")


if __name__ == "__main__":
    main(sys.argv[1])
