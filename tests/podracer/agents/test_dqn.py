"""DQN to R2D2: updates beside a slow reference in float64, memory, exploration, refusals."""

import dataclasses
import functools

import dm_env
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from dm_env import specs

from envs_jax import Catch, Pendulum
from podracer import networks
from podracer.agent import ActorOutput, Trajectory
from podracer.agents import dqn
from podracer.errors import UserError
from podracer.networks import heads
from podracer.parallel import AVERAGE
from tests.jitted import drawn, jitted, jitted_network

SPECS = Catch().observation_spec(), Catch().action_spec()
FIRST, MID, LAST = (int(x) for x in dm_env.StepType)
FEATURES, ACTIONS = 4, 3
KEY = jax.random.key(0)


def linear(quantiles: int) -> networks.Network:
    """Quantiles [..., A, Q] that are linear in the observation [..., F]."""

    def unroll(params, memory, timesteps):
        flat = timesteps.observation @ params
        return flat.reshape(*flat.shape[:-1], ACTIONS, quantiles)

    return networks.Network(
        init=lambda key: jax.random.normal(key, (FEATURES, ACTIONS * quantiles)),
        initial_memory=lambda batch_size: (),
        step=lambda params, memory, x: (memory, unroll(params, memory, x)),
        unroll=unroll,
        observation_spec=specs.Array((FEATURES,), np.float32),
    )


def compiled(agent):
    return jitted(agent)._replace(weighted_step=jax.jit(agent.weighted_step))


def timesteps_of(step_types, seed=1, discount=1.0, features=FEATURES):
    """Random timesteps [T + 1, B]; LAST has `discount`."""
    step_type, random = np.int32(step_types), np.random.default_rng(seed)
    return dm_env.TimeStep(
        step_type,
        np.float32(2.0 * random.normal(size=step_type.shape)),
        np.float32(np.where(step_type == LAST, discount, 1.0)),
        np.float32(random.normal(size=(*step_type.shape, features))),
    )


def ends_everywhere(length):
    """[T + 1, B]: environment b ends at row b; others never, twice, and lost at row 2."""
    step_types = np.full((length + 1, length + 4), MID)
    for b in range(length + 1):
        step_types[b, b] = LAST
        step_types[b + 1 : b + 2, b] = FIRST
    step_types[[1, 4], -1], step_types[[2, 5], -1] = LAST, FIRST
    step_types[2, -2] = FIRST
    return step_types


def trajectory_of(seed, step_types, discount=1.0):
    """Random actions in random timesteps, with the state of an agent without memory."""
    random = np.random.default_rng(seed)
    action = np.int32(random.integers(0, ACTIONS, np.shape(step_types)))[:-1]
    state = dqn.ActorState((), np.ones(action.shape[1], np.float32))
    timesteps = timesteps_of(step_types, seed, discount)
    return Trajectory(timesteps, ActorOutput(action, ()), state)


def returns_by_hand(values, timesteps, discount_factor, steps):
    """Of one environment, forwards: values [T + 1, Q]; None where there is none."""
    step_type, reward, discount = (np.float64(x) for x in timesteps[:3])
    length, returns = len(step_type) - 1, []
    for start in range(length):
        if step_type[start] == LAST or step_type[start + 1] == FIRST:
            returns.append(None)
            continue
        total, factor = 0.0, 1.0
        for t in range(start + 1, start + steps + 1):
            total += factor * reward[t]
            factor *= discount_factor * discount[t]
            over = t == length or step_type[t] == LAST or step_type[t + 1] == FIRST
            if over:
                break
        returns.append(total + factor * values[t])
    return returns


def h(x):
    return np.sign(x) * (np.sqrt(np.abs(x) + 1.0) - 1.0) + 1e-3 * x


def inverse_of_h(x):
    root = np.sqrt(1.0 + 4e-3 * (np.abs(x) + 1.0 + 1e-3))
    return np.sign(x) * (((root - 1.0) / 2e-3) ** 2 - 1.0)


class Reference:
    """The agent of a linear network in float64, a step of a trajectory at a time."""

    def __init__(self, config, weights, quantiles):
        self.config, self.quantiles = config, quantiles
        self.weights = self.target_weights = np.float64(weights)
        self.mean = self.square = np.zeros_like(self.weights)
        self.updates = 0

    def predictions(self, weights, observation):
        flat = np.float64(observation) @ weights
        return flat.reshape(*flat.shape[:-1], ACTIONS, self.quantiles)

    def targets(self, timesteps):
        """[T] of one environment's timesteps [T + 1]: [Q], or None."""
        config = self.config
        target = self.predictions(self.target_weights, timesteps.observation)
        online = self.predictions(self.weights, timesteps.observation)
        chosen = (online if config.double else target).mean(-1).argmax(-1)
        values = target[np.arange(len(chosen)), chosen]
        reward = np.float64(timesteps.reward)
        if config.reward_clipping == "abs_one":
            reward = np.clip(reward, -1.0, 1.0)
        returns = returns_by_hand(
            inverse_of_h(values) if config.rescale_values else values,
            timesteps._replace(reward=reward),
            config.discount_factor,
            config.return_steps,
        )
        scale = h if config.rescale_values else (lambda x: x)
        return [None if x is None else scale(x) for x in returns]

    def update(self, trajectory, weight):
        """Priorities [B]."""
        config, timesteps = self.config, trajectory.timesteps
        action = trajectory.outputs.action
        length, batch_size = action.shape
        gradient, priority = np.zeros_like(self.weights), []
        shares = (np.arange(self.quantiles) + 0.5) / self.quantiles
        for b in range(batch_size):
            one, errors = jax.tree.map(lambda x, b=b: x[:, b], timesteps), []
            for t, target in enumerate(self.targets(one)):
                if target is None:
                    continue
                features, a = np.float64(one.observation[t]), action[t, b]
                value = self.predictions(self.weights, features)[a]
                errors.append(abs(target.mean() - value.mean()))
                for i in range(self.quantiles):
                    error = target - value[i]
                    slope = np.clip(error, -config.huber, config.huber)
                    if self.quantiles > 1:
                        slope = slope * np.abs(shares[i] - (error < 0))
                    column = a * self.quantiles + i
                    gradient[:, column] -= weight[b] * slope.mean() * features
            mixture = config.priority_mixture
            mixed = mixture * np.max(errors) + (1 - mixture) * np.mean(errors)
            priority.append(mixed)
        self.descend(gradient / (length * batch_size))
        return np.array(priority)

    def descend(self, gradient):
        config = self.config
        norm = np.sqrt(np.square(gradient).sum())
        gradient = gradient * min(1.0, config.max_gradient_norm / norm)
        self.updates += 1
        self.mean = 0.9 * self.mean + 0.1 * gradient
        self.square = 0.999 * self.square + 0.001 * gradient**2
        mean = self.mean / (1 - 0.9**self.updates)
        square = self.square / (1 - 0.999**self.updates)
        direction = mean / (np.sqrt(square) + config.adam_epsilon)
        self.weights = self.weights - config.learning_rate * direction
        if self.updates % config.target_period == 0:
            rate = config.target_rate
            self.target_weights = (1 - rate) * self.target_weights + rate * self.weights


FIRST_DQN = dqn.Config(
    double=False, huber=float("inf"), target_period=3, learning_rate=1e-2
)
REFERENCES = {
    "dqn": (FIRST_DQN, 1),
    "double-huber-polyak": (
        dqn.Config(
            return_steps=3,
            huber=0.5,
            target_period=1,
            target_rate=0.1,
            max_gradient_norm=0.05,
            adam_epsilon=1e-3,
            learning_rate=1e-2,
        ),
        1,
    ),
    "quantiles-rescaled": (
        dqn.Config(
            return_steps=2,
            rescale_values=True,
            reward_clipping="abs_one",
            target_period=4,
            discount_factor=0.9,
            learning_rate=1e-2,
        ),
        5,
    ),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_twenty_updates_are_those_of_a_slow_loop(name):
    """Weights, the target network's, and priorities, after each of them."""
    config, quantiles = REFERENCES[name]
    agent = compiled(dqn.make_agent(config, linear(quantiles)))
    state = agent.initial_learner_state(KEY)
    reference = Reference(config, state.shared.params, quantiles)
    random, length = np.random.default_rng(0), 6
    step_types = ends_everywhere(length)
    for number in range(20):
        trajectory = trajectory_of(number, step_types, discount=float(number % 2))
        weight = np.float32(random.uniform(0.0, 2.0, step_types.shape[1]))
        state, _, priority = agent.weighted_step(KEY, state, trajectory, weight)
        expected = reference.update(trajectory, weight)
        np.testing.assert_allclose(priority, expected, rtol=1e-4)
        for found, exact in (
            (state.shared.params, reference.weights),
            (state.shared.target_params, reference.target_weights),
        ):
            np.testing.assert_allclose(found, exact, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("steps", [1, 3, 9])
@pytest.mark.parametrize("discount", [0.0, 1.0])  # of LAST: terminated, truncated
def test_returns_are_those_of_a_slow_loop(discount, steps):
    step_types = ends_everywhere(6)
    timesteps = timesteps_of(step_types, discount=discount)
    values = np.random.default_rng(0).normal(size=(*step_types.shape, 2))

    @jax.jit
    def returns():
        transitions = dqn.losses.make_transitions(timesteps, 0.9)
        after = jnp.float32(values[1:])
        return dqn.n_step_returns(after, transitions, steps), transitions.mask

    got, mask = map(np.asarray, returns())
    for b in range(step_types.shape[1]):
        one = jax.tree.map(lambda x, b=b: x[:, b], timesteps)
        for t, exact in enumerate(returns_by_hand(values[:, b], one, 0.9, steps)):
            if exact is None:
                assert mask[t, b] == 0.0
            else:
                np.testing.assert_allclose(got[t, b], exact, atol=1e-5)


def test_rescaling_is_undone():
    x = np.linspace(-300.0, 300.0, 2_001)
    np.testing.assert_allclose(dqn.rescaled(jnp.float32(x)), h(x), rtol=1e-6)
    back = dqn.unscaled(jnp.float32(h(x)))
    np.testing.assert_allclose(back, x, rtol=2e-5, atol=2e-6)
    np.testing.assert_allclose(
        dqn.unscaled(jnp.float32(h(1e-3 * x))), 1e-3 * x, atol=2e-6
    )


@functools.cache  # compiled once for the tests below
def first_dqn():
    agent = compiled(dqn.make_agent(FIRST_DQN, linear(1)))
    return agent, agent.initial_learner_state(KEY)


def assert_equal(tree, other):
    jax.tree.map(np.testing.assert_array_equal, tree, other)


def test_learner_step_is_weighted_step_with_ones():
    agent, state = first_dqn()
    trajectory = trajectory_of(0, np.full((4, 5), MID))
    *weighted, _ = agent.weighted_step(KEY, state, trajectory, np.ones(5, np.float32))
    assert_equal(tuple(weighted), agent.learner_step(KEY, state, trajectory))


def test_a_trajectory_of_weight_two_counts_twice():
    """And one of weight 0 not at all; the number of transitions is the same."""
    agent, state = first_dqn()
    twice = trajectory_of(0, np.full((4, 2), MID))
    twice = jax.tree.map(np.array, twice)
    for x in (*twice.timesteps, twice.outputs.action):
        x[:, 1] = x[:, 0]
    once = trajectory_of(0, np.full((4, 2), MID))
    found = agent.weighted_step(KEY, state, once, np.float32([2.0, 0.0]))[:2]
    expected = agent.weighted_step(KEY, state, twice, np.ones(2, np.float32))[:2]
    jax.tree.map(
        lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6),
        found,
        expected,
    )


def test_void_transitions_have_no_priority_and_teach_nothing():
    agent, state = first_dqn()
    trajectory = trajectory_of(0, [[LAST, MID], [FIRST, MID]])
    _, _, priority = agent.weighted_step(KEY, state, trajectory, np.ones(2, np.float32))
    assert priority[0] == 0.0 < priority[1]
    reward = trajectory.timesteps.reward.copy()
    reward[1, 0] = 1e6
    other = trajectory._replace(timesteps=trajectory.timesteps._replace(reward=reward))
    assert_equal(*(agent.learner_step(KEY, state, x) for x in (trajectory, other)))


RECURRENT = dqn.NetworkConfig(hidden_sizes=(8,), memory="gru", memory_size=8)


def test_the_stored_state_and_burn_in_continue_from_the_episodes_start():
    """Targets of the second half of an episode: each network's own memory, in both ways."""
    network = jitted_network(dqn.make_network(*SPECS, RECURRENT))
    params, other = drawn(network.init), drawn(network.init)
    other = jax.tree.map(lambda x: -0.5 * x, other)
    length, batch_size = 4, 3
    step_types = np.full((2 * length + 1, batch_size), MID)
    step_types[0] = FIRST
    step_types[1, 0], step_types[2, 0] = LAST, FIRST  # within the burn-in
    timesteps = timesteps_of(step_types, features=50)
    timesteps = timesteps._replace(
        observation=timesteps.observation.reshape(*step_types.shape, 10, 5)
    )
    agent = compiled(dqn.make_agent(dqn.Config(), network))
    acting, states, actions = dqn.Params(params, jnp.float32(0.5)), [], []
    state = agent.initial_actor_state(batch_size)
    for t in range(2 * length):
        row = jax.tree.map(lambda x, t=t: x[t], timesteps)
        states.append(state)
        keys = jax.random.split(jax.random.key(t), batch_size)
        state, output = agent.actor_step(keys, acting, state, row)
        actions.append(np.asarray(output.action))
    action = np.stack(actions)
    zeros = network.initial_memory(batch_size)
    online, target = (network.unroll(x, zeros, timesteps) for x in (params, other))

    def of_half(config, start, target_params):
        shared = dqn.Shared(params, target_params, (), jnp.int32(0), jnp.float32(0.0))
        part = Trajectory(
            jax.tree.map(lambda x: x[start:], timesteps),
            ActorOutput(action[start:], ()),
            states[start],
        )
        batch, memory, error = dqn.make_batch(config, network, shared, part)
        seen = network.unroll(params, memory, batch.timesteps)
        np.testing.assert_allclose(seen, online[length:-1], rtol=1e-4, atol=1e-5)
        assert batch.action.shape == error.shape == (length, batch_size)
        return batch.target

    def exact(target):
        best = np.asarray(online)[..., 0].argmax(-1)
        after = np.take_along_axis(np.asarray(target), best[..., None, None], -2)
        mid = 0.99 * after[length + 1 :, ..., 0, :]
        return timesteps.reward[length + 1 :, :, None] + mid

    # Burn-in gives each network its own memory; a stored state is the acting one's.
    burnt = of_half(dqn.Config(burn_in=length), 0, other)
    np.testing.assert_allclose(burnt, exact(target), rtol=1e-4, atol=1e-5)
    stored = of_half(dqn.Config(), length, params)
    np.testing.assert_allclose(stored, exact(online), rtol=1e-4, atol=1e-5)
    assert np.abs(exact(target) - exact(online)).max() > 0.01


def test_steps_of_the_burn_in_teach_nothing():
    config = dqn.Config(burn_in=2, priority_mixture=0.5, target_period=1)
    agent = compiled(dqn.make_agent(config, dqn.make_network(*SPECS, RECURRENT)))
    state = agent.initial_learner_state(KEY)
    timesteps = timesteps_of(np.full((5, 2), MID), features=50)
    timesteps = timesteps._replace(
        observation=timesteps.observation.reshape(5, 2, 10, 5)
    )
    actor_state = agent.initial_actor_state(2)
    action = np.zeros((4, 2), np.int32)
    updates = []
    for number in (0, 2):
        reward, other_action = timesteps.reward.copy(), action.copy()
        reward[1 : number + 1], other_action[:number] = 1e6, 1
        changed = Trajectory(
            timesteps._replace(reward=reward),
            ActorOutput(other_action, ()),
            actor_state,
        )
        weight = np.ones(2, np.float32)
        updates.append(agent.weighted_step(KEY, state, changed, weight))
    assert_equal(*updates)


def test_each_episode_draws_its_epsilon():
    """Ape-X's ladder: at FIRST, uniform in its exponent, and kept to the end."""
    count, config = 4_000, dqn.Config(ladder=7.0)
    agent = compiled(dqn.make_agent(config, linear(1)))
    params = agent.actor_params(agent.initial_learner_state(KEY))
    params = params._replace(epsilon=jnp.float32(0.4))
    state = agent.initial_actor_state(count)
    exponents, actions = [], []
    for number, kind in enumerate((FIRST, MID, LAST, FIRST)):
        timestep = jax.tree.map(lambda x: x[0], timesteps_of(np.full((1, count), kind)))
        keys = jax.random.split(jax.random.key(number), count)
        greedy = agent.greedy_actor_step(keys, params, state, timestep)[1].action
        state, output = agent.actor_step(keys, params, state, timestep)
        exponents.append(np.asarray(state.exponent))
        actions.append(np.asarray(output.action != greedy))
    assert_equal(exponents[0], exponents[1])
    assert_equal(exponents[0], exponents[2])
    for drawn_ones in (exponents[0], exponents[3]):
        found = np.quantile(drawn_ones, [0.0, 0.25, 0.5, 0.75, 1.0])
        np.testing.assert_allclose(found, [1.0, 2.75, 4.5, 6.25, 8.0], atol=0.2)
    assert abs(np.corrcoef(exponents[0], exponents[3])[0, 1]) < 0.06
    # Two of three random actions are not the greedy one.
    low = exponents[0] < 2.0
    expected = np.mean(0.4 ** exponents[0][low]) * 2 / 3
    assert np.stack(actions[:3])[:, low].mean() == pytest.approx(expected, abs=0.04)
    assert np.stack(actions[:3])[:, exponents[0] > 6.0].mean() < 0.01


def test_actions_are_random_until_the_first_update():
    config = dataclasses.replace(FIRST_DQN, exploration_share=0.0, epsilon=0.01)
    agent = compiled(dqn.make_agent(config, linear(1)))
    state = agent.initial_learner_state(KEY)
    assert agent.actor_params(state).epsilon == 1.0
    trajectory = trajectory_of(0, np.full((3, 4), MID))
    state, metrics = agent.learner_step(KEY, state, trajectory)
    assert metrics["epsilon"] == 1.0
    assert agent.actor_params(state).epsilon == jnp.float32(0.01)


class OfTwo(type(AVERAGE)):
    """Of two cores with equal data."""

    cores = 2
    __call__ = total = lambda self, tree: tree


@pytest.mark.parametrize("average", [AVERAGE, OfTwo(None)])
def test_epsilon_and_learning_rate_follow_the_steps_learned_from(average):
    """Two updates of 8 steps on a core, of 100; epsilon decays over 50."""
    config = dataclasses.replace(
        FIRST_DQN, total_steps=100, exploration_share=0.5, decay_learning_rate=True
    )
    agent = compiled(dqn.make_agent(config, linear(1), average))
    state = agent.initial_learner_state(KEY)
    trajectory = trajectory_of(0, np.full((3, 4), MID))
    for _ in range(3):
        epsilon = agent.actor_params(state).epsilon
        state, metrics = agent.learner_step(KEY, state, trajectory)
    steps = 16 * average.cores
    np.testing.assert_allclose(epsilon, 1.0 - 0.95 * steps / 50, rtol=1e-6)
    np.testing.assert_allclose(
        metrics["learning_rate"], 1e-2 * (1.0 - steps / 100), rtol=1e-6
    )


def test_the_greedy_action_has_the_largest_mean_of_quantiles():
    network = linear(3)
    agent = compiled(dqn.make_agent(dqn.Config(), network))
    params = agent.actor_params(agent.initial_learner_state(KEY))
    timestep = jax.tree.map(lambda x: x[0], timesteps_of(np.full((1, 64), MID)))
    keys, state = jax.random.split(KEY, 64), agent.initial_actor_state(64)
    found = agent.greedy_actor_step(keys, params, state, timestep)[1].action
    values = np.asarray(network.unroll(params.network, (), timestep))
    np.testing.assert_array_equal(found, values.mean(-1).argmax(-1))
    never = params._replace(epsilon=jnp.float32(0.0))
    output = agent.actor_step(keys, never, state, timestep)[1]
    np.testing.assert_array_equal(output.action, found)
    assert (values[..., 0].argmax(-1) != found).any()


def test_advantages_of_a_dueling_network_have_mean_zero():
    config = dqn.NetworkConfig(hidden_sizes=(8,), dueling=True, quantiles=2)
    network = jitted_network(dqn.make_network(*SPECS, config))
    params = drawn(network.init)
    timesteps = timesteps_of(np.full((1, 5), MID), features=50)
    timesteps = timesteps._replace(
        observation=timesteps.observation.reshape(1, 5, 10, 5)
    )
    before = network.unroll(params, network.initial_memory(5), timesteps)
    assert before.shape == (1, 5, 3, 2)
    params["params"]["advantage_head"]["bias"] += 3.0  # of all actions alike
    moved = network.unroll(params, network.initial_memory(5), timesteps)
    np.testing.assert_allclose(moved, before, atol=1e-5)
    params["params"]["value_head"]["bias"] += np.float32([1.0, 2.0])
    moved = network.unroll(params, network.initial_memory(5), timesteps)
    np.testing.assert_allclose(
        moved - before, np.broadcast_to([1.0, 2.0], moved.shape), atol=1e-5
    )


# Of the papers: steps of replay, the times that each is learned from, and the steps between
# copies of the target network.
PUBLISHED = {
    "minatar": (100_000, 32, 1_000),
    "dqn": (1_000_000, 8, 40_000),
    "atari": (1_000_000, 8, 8_000),
    "apex": (2_000_000, 0.75, 2_500 * 512 / 0.75),
    "r2d2": (1_000_000, 1.0, 2_500 * 64 * 120),  # a quarter of its replay
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_replay_as_their_papers_do(name):
    preset = dqn.PRESETS[name]
    length, replay = preset.unroll_length, preset.replay
    update = replay.samples(preset.batch_size) * length / replay.samples_per_insert
    found = (
        replay.capacity * length,
        replay.learned_per_insert,
        preset.config.target_period * update,
    )
    np.testing.assert_allclose(found, PUBLISHED[name], rtol=0.06)


@pytest.mark.parametrize("name", dqn.PRESETS)
def test_cores_can_share_what_a_preset_replays(name):
    preset = dqn.PRESETS[name]
    for cores in (1, 2, 4, 8):
        preset.replay.slots(cores)
        preset.replay.samples(preset.batch_size // cores)


def test_impossible_settings_are_one_line():
    with pytest.raises(UserError, match="DQN is for discrete actions"):
        dqn.make_network(SPECS[0], Pendulum().action_spec())
    with pytest.raises(UserError, match="target_rate is 1.5; it must be from 0 to 1"):
        dqn.Config(target_rate=1.5)
    with pytest.raises(UserError, match="return_steps is 0; it must be at least 1"):
        dqn.Config(return_steps=0)
    with pytest.raises(UserError, match="quantiles is 0; it must be at least 1"):
        dqn.NetworkConfig(quantiles=0)
    with pytest.raises(UserError, match="burn_in is 2, but the network has no memory"):
        dqn.make_agent(dqn.Config(burn_in=2), linear(1))
    with pytest.raises(UserError, match="burn_in is 4, which leaves nothing .* 4:"):
        network = dqn.make_network(*SPECS, RECURRENT)
        agent = dqn.make_agent(dqn.Config(burn_in=4), network)
        trajectory = trajectory_of(0, np.full((5, 2), MID))
        state = agent.initial_learner_state(KEY)
        agent.learner_step(
            KEY,
            state,
            trajectory._replace(actor_state=agent.initial_actor_state(2)),
        )
    with pytest.raises(UserError, match="separate_value is true"):
        dqn.make_network(*SPECS, dqn.NetworkConfig(separate_value=True))
    with pytest.raises(UserError, match=r"head.init_scale is 0.1, .* no effect on DQN"):
        head = heads.Config(init_scale=0.1)
        dqn.make_network(*SPECS, dqn.NetworkConfig(head=head))
