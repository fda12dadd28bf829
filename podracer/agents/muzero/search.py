"""MuZero's search: mctx's, in our model."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import mctx
import numpy as np
from dm_env import specs

from podracer.agents.muzero.config import Config
from podracer.networks.masks import make_mask
from podracer.networks.world_model import Model

TINY = float(np.finfo(np.float32).tiny)


class Result(NamedTuple):
    """Of a search."""

    action: jax.Array  # int32 [B]
    # [B, A] an improved policy: the visit counts' shares, or gumbel's
    policy: jax.Array
    value: jax.Array  # [B] the root's


Search = Callable[..., Result]  # see `make_search`


def make_search(config: Config, model: Model) -> Search:
    """(keys [B], params, observation [B, ...], temperature [], exploring) -> Result.

    Without `exploring` there is no noise at the root, and the temperature is 0. mctx draws
    from one key for a whole batch; here each environment has its own, so that what happens in
    it does not depend on which others share its core. The temperature matters to the policy
    `muzero` only.
    """
    actions = specs.DiscreteArray(model.num_actions)
    allowed = make_mask(model.observation_spec, actions)
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
            result = plan(config, key, root, settings, temperature, exploring)
            return jax.tree.map(lambda x: x[0], result)

        invalid = None if allowed is None else 1.0 - allowed(observation)[""]
        return jax.vmap(one)(keys, root, invalid)

    return search


def plan_gumbel(config, key, root, settings, temperature, exploring) -> Result:
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
    return Result(output.action, output.action_weights, value)


def plan_muzero(config, key, root, settings, temperature, exploring) -> Result:
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
        # A high temperature would make unvisited actions, masked ones too, nearly as
        # likely as others.
        scores = jnp.where(summary.visit_probs > 0.0, scores, -jnp.inf)
        action = jax.random.categorical(action_key, scores)
    return Result(action.astype(jnp.int32), summary.visit_probs, summary.value)


def _log(probabilities: jax.Array) -> jax.Array:
    """Finite, also of 0."""
    return jnp.log(jnp.maximum(probabilities, TINY))
