"""Brax's SAC: steps/s, as one line of JSON. Runs in an environment of its own.

    python brax_sac.py WORK

WORK is a `work.Replayed` as JSON. Brax updates after each step of all environments. It has
no Pendulum: this one is as its public interface asks for it. It evaluates three times, which
is not timed.
"""

import brax_on_jax
import jax
import jax.numpy as jnp
from brax.envs.base import Env, State
from brax.training.agents.sac import train
from brax.training.agents.sac.networks import make_sac_networks
from work import CAPACITY, Replayed, Speed, answer


class Pendulum(Env):
    """Gymnasium's, but for the time limit, which is brax's `episode_length`."""

    observation_size = 3
    action_size = 1
    backend = "none"

    def reset(self, rng):
        # The state is the angle from upright, and its velocity.
        bounds = jnp.array([jnp.pi, 1.0])
        start = jax.random.uniform(rng, (2,), minval=-bounds, maxval=bounds)
        return State(start, seen(start), jnp.float32(0), jnp.float32(0))

    def step(self, state, action):
        angle, velocity = state.pipeline_state
        torque = 2.0 * jnp.clip(action[0], -1.0, 1.0)
        from_upright = (angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
        cost = from_upright**2 + 0.1 * velocity**2 + 0.001 * torque**2
        velocity += 0.05 * (15.0 * jnp.sin(angle) + 3.0 * torque)
        velocity = jnp.clip(velocity, -8.0, 8.0)
        after = jnp.stack([angle + 0.05 * velocity, velocity])
        return state.replace(pipeline_state=after, obs=seen(after), reward=-cost)


def seen(state):
    angle, velocity = state
    return jnp.stack([jnp.cos(angle), jnp.sin(angle), velocity])


def network_factory(hidden_sizes: list[int]):
    def make(*sizes, **options):
        return make_sac_networks(*sizes, hidden_layer_sizes=hidden_sizes, **options)

    return make


def measure(work: Replayed) -> Speed:
    brax_on_jax.mend()
    speeds = []  # of an epoch, one program of `steps`, timed by brax; the first compiles

    def progress(_, metrics):
        if "training/sps" in metrics:
            speeds.append(float(metrics["training/sps"]))

    train.train(
        {"pendulum": Pendulum}[work.environment](),
        num_timesteps=2 * work.steps,
        num_evals=3,
        num_eval_envs=1,
        episode_length=200,
        num_envs=work.batch_size,
        batch_size=work.transitions,
        grad_updates_per_step=work.updates_after_step,
        max_replay_size=CAPACITY,
        learning_rate=3e-4,
        discounting=0.99,
        network_factory=network_factory(work.hidden_sizes),
        progress_fn=progress,
    )
    return Speed(speeds[-1], jax.device_count())


if __name__ == "__main__":
    answer(measure, Replayed)
