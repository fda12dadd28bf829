"""Brax's PPO: steps/s, as one line of JSON. Runs in an environment of its own.

    python brax_ppo.py WORK

WORK is a `work.Work` as JSON. Brax has neither these environments nor a distribution
over discrete actions: both are here, as its public interfaces ask for them; Breakout is
gymnax's. It has no evaluation, normalization or logging to do.
"""

import brax_on_jax
import gymnax
import jax
import jax.numpy as jnp
from brax.envs.base import Env, State
from brax.training import networks
from brax.training.agents.ppo import train
from brax.training.agents.ppo.networks import PPONetworks
from brax.training.distribution import ParametricDistribution
from work import Speed, Work, answer


class CartPole(Env):
    """Gymnasium's, but for the time limit, which is brax's `episode_length`.

    The observation is all of the state, so brax has nothing else to carry or to reset.
    """

    observation_size = 4
    action_size = 2
    backend = "none"

    def reset(self, rng):
        start = jax.random.uniform(rng, (4,), minval=-0.05, maxval=0.05)
        return State(None, start, jnp.float32(0), jnp.float32(0))

    def step(self, state, action):
        _, velocity, angle, spin = state.obs
        cos, sin = jnp.cos(angle), jnp.sin(angle)
        force = jnp.where(action == 1, 10.0, -10.0)
        push = (force + 0.05 * spin**2 * sin) / 1.1
        twist = (9.8 * sin - cos * push) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        pull = push - 0.05 * twist * cos / 1.1
        change = jnp.stack([velocity, pull, spin, twist])
        after = state.obs + 0.02 * change
        fell = (jnp.abs(after[0]) > 2.4) | (jnp.abs(after[2]) > 12 * jnp.pi / 180)
        return state.replace(obs=after, reward=jnp.float32(1), done=fell * 1.0)


class Breakout(Env):
    """Gymnax's of MinAtar; brax resets it, and has a time limit of its own."""

    observation_size = 400
    action_size = 3
    backend = "none"

    def __init__(self):
        self.game, self.params = gymnax.make("Breakout-MinAtar")

    def reset(self, rng):
        start, state = self.game.reset_env(rng, self.params)
        return State(state, start.reshape(-1), jnp.float32(0), jnp.float32(0))

    def step(self, state, action):
        # The game draws random numbers only when it is reset.
        seen, after, reward, done, _ = self.game.step_env(
            jax.random.key(0), state.pipeline_state, action, self.params
        )
        return state.replace(
            pipeline_state=after,
            obs=seen.reshape(-1).astype(jnp.float32),
            reward=jnp.float32(reward),
            done=jnp.float32(done),
        )


class Dispersion:
    """What brax's loss reports of a distribution, and a categorical one has not."""

    loc = scale = 0.0


class Categorical(ParametricDistribution):
    """Over integers, given logits."""

    def __init__(self, actions):
        super().__init__(actions, None, event_ndims=0, reparametrizable=False)

    def create_dist(self, parameters):
        return Dispersion()

    def sample_no_postprocessing(self, parameters, seed):
        return jax.random.categorical(seed, parameters)

    def postprocess(self, event):
        return event

    def mode(self, parameters):
        return jnp.argmax(parameters, -1)

    def log_prob(self, parameters, actions):
        log_probs = jax.nn.log_softmax(parameters)
        return jnp.take_along_axis(log_probs, actions[..., None], -1)[..., 0]

    def entropy(self, parameters, seed):
        log_probs = jax.nn.log_softmax(parameters)
        return -jnp.sum(jnp.exp(log_probs) * log_probs, -1)


def network_factory(actions: int, hidden_sizes: list[int]):
    """A separate policy and value of tanh units."""

    def make(observation_size, action_size, preprocess_observations_fn):
        kinds = (
            networks.make_policy_network(
                actions,
                observation_size,
                preprocess_observations_fn,
                hidden_layer_sizes=hidden_sizes,
                activation=jnp.tanh,
            ),
            networks.make_value_network(
                observation_size,
                preprocess_observations_fn,
                hidden_layer_sizes=hidden_sizes,
                activation=jnp.tanh,
            ),
        )
        return PPONetworks(*kinds, parametric_action_distribution=Categorical(actions))

    return make


def measure(work: Work) -> Speed:
    brax_on_jax.mend()
    speeds = []  # of an epoch, one program of `steps`, timed by brax; the first compiles
    env = {"cartpole": CartPole, "minatar-breakout": Breakout}[work.environment]()
    train.train(
        env,
        num_timesteps=2 * work.steps,
        num_evals=3,
        run_evals=False,
        episode_length=500,
        num_envs=work.batch_size,
        unroll_length=work.unroll_length,
        batch_size=work.batch_size // work.minibatches,
        num_minibatches=work.minibatches,
        num_updates_per_batch=work.epochs,
        learning_rate=3e-4,
        entropy_cost=0.01,
        discounting=0.99,
        clipping_epsilon=0.2,
        network_factory=network_factory(env.action_size, work.hidden_sizes),
        progress_fn=lambda _, metrics: speeds.append(float(metrics["training/sps"])),
    )
    return Speed(speeds[-1], jax.device_count())


if __name__ == "__main__":
    answer(measure)
