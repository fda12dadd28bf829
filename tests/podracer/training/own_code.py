"""What a user writes from the docs alone, as files of a folder outside the project."""

ENVIRONMENT = '''
import dataclasses

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
from envs_jax import restart, transition


@dataclasses.dataclass(frozen=True)
class Chase:
    """Close in on a target."""

    size: float = 1.0
    """how far away a target may be"""
    time_limit: int = 10

    def initial_state(self, key):
        target = self.size * jax.random.uniform(key, (2,), minval=-1.0)
        return target, restart(target)

    def step(self, key, target, action):
        target = target - 0.1 * jnp.clip(action, -1, 1)
        distance = jnp.linalg.norm(target)
        return target, transition(-distance, target, terminated=distance < 0.1)

    def observation_spec(self):
        return dm_env.specs.Array((2,), jnp.float32)

    def action_spec(self):
        return dm_env.specs.BoundedArray((2,), jnp.float32, -1, 1)

    def render(self, target):
        return jnp.zeros((8, 8, 3), jnp.uint8)


class Iffy(Chase):
    """An `if` on a value that JAX traces."""

    def step(self, key, target, action):
        if target[0] > 0:
            target = -target
        return super().step(key, target, action)


def near():
    return Chase(size=0.5)


class Plain:
    """No dataclass."""

    def __init__(self):
        chase = Chase()
        self.initial_state, self.step = chase.initial_state, chase.step
        self.observation_spec, self.action_spec = chase.observation_spec, chase.action_spec
        self.time_limit = 10


class Numpy(Chase):
    """NumPy on a value that JAX traces."""

    def step(self, key, target, action):
        return super().step(key, np.asarray(target), action)


class Property(Chase):
    observation_spec = property(Chase.observation_spec)


class Silent(Plain):
    def __init__(self):
        super().__init__()
        self.step = lambda key, target, action: (target, None)
'''

AGENT = '''
import dataclasses

from podracer.agents import impala


@dataclasses.dataclass(frozen=True)
class Config:
    """An agent of your own."""

    step_size: float = 1e-3
    """step size"""


def make_agent(config, network):
    return impala.make_agent(impala.Config(learning_rate=config.step_size), network)
'''

NOT_AN_AGENT = (
    AGENT.partition("def make_agent")[0]
    + """
def make_agent(config, network):
    return network
"""
)

NETWORK = '''
import dataclasses

import dm_env
from podracer import networks


@dataclasses.dataclass(frozen=True)
class Config:
    """A network of your own."""

    units: int = 4
    """units of the only layer"""


def make(observation_spec, action_spec, config=Config()):
    layers = networks.Config(hidden_sizes=(config.units,))
    return networks.actor_critic(observation_spec, action_spec, layers)


def plain(observation_spec, action_spec):
    return make(observation_spec, action_spec)


def nothing(observation_spec, action_spec):
    return None


def pair(observation_spec, action_spec):
    network = make(observation_spec, action_spec)
    return network._replace(step=lambda *x: (x[1], tuple(network.step(*x)[1])))


def wide(observation_spec, action_spec):
    network = make(observation_spec, action_spec)

    def step(*inputs):
        memory, predictions = network.step(*inputs)
        return memory, predictions._replace(value=predictions.value[..., None])

    return network._replace(step=step)


def narrow(observation_spec, action_spec):
    fewer = dm_env.specs.DiscreteArray(action_spec.num_values - 1)
    return make(observation_spec, fewer)


def failing(observation_spec, action_spec):
    raise TypeError("too few arguments")


def broken(observation_spec, action_spec):
    network = make(observation_spec, action_spec)
    return network._replace(step=lambda params, memory, timestep: params["nowhere"])
'''

FILES = {
    "my_env.py": ENVIRONMENT,
    "my_agent.py": AGENT,
    "no_agent.py": NOT_AN_AGENT,
    "my_network.py": NETWORK,
}


def write(folder):
    """Writes the files; returns the names of their modules."""
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return [name.removesuffix(".py") for name in FILES]
