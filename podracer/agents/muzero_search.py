"""MuZero's configuration, and its search: mctx's, in our model."""

import dataclasses
import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import mctx
import numpy as np

from podracer.errors import UserError, check_at_least_one, check_range, check_ranges
from podracer.networks.world_model import Model

TINY = float(np.finfo(np.float32).tiny)


@dataclasses.dataclass(frozen=True)
class Config:
    """MuZero's hyperparameters."""

    policy: Literal["muzero", "gumbel"] = "muzero"
    """how the search chooses actions: by visit counts, or by sequential halving (gumbel)"""
    num_simulations: int = 16
    """number of simulations of a search, each one call of the model"""
    max_depth: int | None = None
    """largest depth of the search tree; None: no limit"""
    least_range: float = 0.3
    """range of a node's action values up to which they are not stretched to [0, 1]; if
    small, the noise of an untrained model decides where rewards are rare"""
    discount_factor: float = 0.997
    """the agent's gamma, per environment step"""
    unroll_steps: int = 5
    """K, steps that the model is unrolled and trained for"""
    return_steps: int = 10
    """n, rewards in a value target before the value of the search"""
    temperatures: tuple[float, ...] = (1.0, 0.5, 0.25)
    """temperatures of the visit counts: from the start of the run, from 1/2 of total_steps,
    from 3/4, from 7/8, ... (policy muzero)"""
    dirichlet_fraction: float = 0.25
    """share of noise in the root's prior policy (policy muzero)"""
    dirichlet_alpha: float = 0.3
    """concentration of that noise: small numbers favour few actions"""
    considered_actions: int = 16
    """largest number of actions that the root considers (policy gumbel)"""
    reanalyse: bool = False
    """search every observation again with the learner's parameters before learning from it,
    which makes the policies and values of stale trajectories new"""
    learning_rate: float = 1e-3
    """learning rate at the first update, of Adam"""
    decay_learning_rate: bool = True
    """decay the learning rate linearly, to 0 at total_steps"""
    total_steps: int | None = None
    """environment steps of the run (the command's --total-steps); None: no decay, and the
    first temperature"""
    value_cost: float = 0.25
    """weight of the value's cross-entropy"""
    reward_cost: float = 1.0
    """weight of the reward's cross-entropy"""
    reward_clipping: Literal["abs_one", "soft_asymmetric", "none"] = "none"
    """clipping of the rewards that the learner sees"""
    weight_decay: float = 1e-4
    """decay of all parameters, times the learning rate"""
    max_gradient_norm: float = 5.0
    """global norm to which larger gradients are scaled down"""
    adam_epsilon: float = 1e-8
    """added to Adam's root"""

    def __post_init__(self):
        names = "num_simulations", "unroll_steps", "return_steps", "considered_actions"
        check_at_least_one(**{x: getattr(self, x) for x in (*names, "max_depth")})
        costs = "learning_rate", "value_cost", "reward_cost", "weight_decay"
        limits = "max_gradient_norm", "adam_epsilon"
        check_ranges(self, 0.0, 1.0, "discount_factor", "dirichlet_fraction")
        check_ranges(self, 0.0, math.inf, *costs, *limits)
        check_range("dirichlet_alpha", self.dirichlet_alpha, 1e-6)
        check_range("least_range", self.least_range, 1e-8)
        check_at_least_one(**{"temperatures' length": len(self.temperatures)})
        for i, temperature in enumerate(self.temperatures):
            check_range(f"temperatures[{i}]", temperature, 0.0)


class Found(NamedTuple):
    """What a search finds."""

    action: jax.Array  # int32 [B]
    policy: (
        jax.Array
    )  # [B, A] an improved policy: the visit counts' shares, or gumbel's
    value: jax.Array  # [B] the root's


def make_search(config: Config, model: Model) -> Callable[..., Found]:
    """(keys [B], params, observation [B, ...], temperature [], exploring) -> Found.

    Without `exploring` there is no noise at the root, and the temperature is 0. mctx draws from one key for a whole
    batch; here each environment has its own, so that what happens in it does not depend on
    which others share its core. The temperature matters to the policy `muzero` only.
    """
    find_invalid = make_mask(model.observation_spec, model.num_actions)
    plan = {"muzero": plan_muzero, "gumbel": plan_gumbel}[config.policy]

    def predict(params, hidden):
        logits, value = model.prediction(params, hidden)
        return {"prior_logits": logits, "value": model.support.mean(value)}

    def recurrent(params, key, action, hidden):
        hidden, reward = model.dynamics(params, hidden, action)
        output = mctx.RecurrentFnOutput(
            reward=model.support.mean(reward),
            discount=jnp.full(action.shape, config.discount_factor, jnp.float32),
            **predict(params, hidden),
        )
        return output, hidden

    def search(keys, params, observation, temperature, exploring):
        hidden = model.representation(params, observation)
        root = mctx.RootFnOutput(embedding=hidden, **predict(params, hidden))

        def one(key, root, invalid):
            root, invalid = jax.tree.map(lambda x: x[None], (root, invalid))
            settings = {
                "params": params,
                "recurrent_fn": recurrent,
                "num_simulations": config.num_simulations,
                "max_depth": config.max_depth,
                "invalid_actions": invalid,
            }
            found = plan(config, key, root, settings, temperature, exploring)
            return jax.tree.map(lambda x: x[0], found)

        return jax.vmap(one)(keys, root, find_invalid(observation))

    return search


def plan_gumbel(config, key, root, settings, temperature, exploring) -> Found:
    output = mctx.gumbel_muzero_policy(
        rng_key=key,
        root=root,
        **settings,
        qtransform=partial(
            mctx.qtransform_completed_by_mix_value, epsilon=config.least_range
        ),
        max_num_considered_actions=config.considered_actions,
        gumbel_scale=1.0 if exploring else 0.0,
    )
    value = output.search_tree.summary().value
    return Found(output.action, output.action_weights, value)


def plan_muzero(config, key, root, settings, temperature, exploring) -> Found:
    """As `mctx.muzero_policy`, but ties between actions are not broken at random.

    And noise is not drawn where it has no weight. Both take most of the compilation.
    """
    noise_key, action_key = jax.random.split(key)
    prior = jax.nn.softmax(root.prior_logits)
    if exploring:
        alpha = jnp.full(prior.shape[-1:], config.dirichlet_alpha, jnp.float32)
        noise = jax.random.dirichlet(noise_key, alpha, prior.shape[:1])
        prior += config.dirichlet_fraction * (noise - prior)
    if settings["invalid_actions"] is not None:
        prior *= 1.0 - settings["invalid_actions"]

    qtransform = partial(
        mctx.qtransform_by_parent_and_siblings, epsilon=config.least_range
    )

    def select(key, *where, **depth):
        del key  # so that ties are broken alike everywhere
        return mctx.muzero_action_selection(
            jax.random.key(0), *where, **depth, qtransform=qtransform
        )

    tree = mctx.search(
        rng_key=key,
        root=root.replace(prior_logits=_log(prior)),
        root_action_selection_fn=partial(select, depth=0),
        interior_action_selection_fn=select,
        **settings,
    )
    summary = tree.summary()
    action = jnp.argmax(summary.visit_probs, -1)
    if exploring:
        scores = _log(summary.visit_probs)
        # Relative to the best, or a temperature of 0 would make all of them infinite.
        scores -= scores.max(-1, keepdims=True)
        scores /= jnp.maximum(temperature, TINY)
        # A high temperature would bring what was never visited, also by a mask, near the rest.
        scores = jnp.where(summary.visit_probs > 0.0, scores, -jnp.inf)
        action = jax.random.categorical(action_key, scores)
    return Found(action.astype(jnp.int32), summary.visit_probs, summary.value)


def _log(probabilities: jax.Array) -> jax.Array:
    """Finite, also of 0."""
    return jnp.log(jnp.maximum(probabilities, TINY))


def make_mask(observation_spec: Any, num_actions: int) -> Callable[[Any], Any]:
    """(observation [B, ...]) -> 1.0 for invalid actions [B, A]; None if all are allowed.

    Raises UserError for a field `action_mask` that is no mask of the actions.
    """

    def field(tree):
        if isinstance(tree, Mapping):
            return tree.get("action_mask")
        return getattr(tree, "action_mask", None)

    spec = field(observation_spec)
    if spec is None:
        return lambda observation: None
    if spec.shape != (num_actions,) or spec.dtype.kind not in "bui":
        raise UserError(
            f"observation_spec's action_mask is {spec.dtype} {spec.shape}; it must be bool "
            f"or integers ({num_actions},), True where an action is allowed: correct the "
            "environment, and leave observations unnormalized and unscaled"
        )
    return lambda observation: (field(observation) == 0).astype(jnp.float32)
