"""What rejax's PPO learns: evaluations of several seeds, as one line of JSON.

    python rejax_learning.py SETTINGS

Runs in an environment of its own. SETTINGS is JSON, the fields of `benchmarks.equal_steps`.
Each seed is evaluated at equal distances, over whole episodes with sampled actions; its
returns are [seeds][evaluations].
"""

import json
import sys

import jax
import rejax
from rejax.evaluate import evaluate
from rejax_ppo import ENVIRONMENTS


def main(settings: dict) -> None:
    between = settings["total_steps"] // settings["evaluations"]
    algorithm = rejax.PPO.create(
        env=ENVIRONMENTS.get(settings["env"], settings["env"].removeprefix("gymnax:")),
        agent_kwargs={
            "activation": "tanh",
            "hidden_layer_sizes": tuple(settings["hidden_sizes"]),
        },
        num_envs=settings["batch_size"],
        num_steps=settings["unroll_length"],
        num_epochs=settings["epochs"],
        num_minibatches=settings["minibatches"],
        learning_rate=settings["learning_rate"],
        gamma=settings["discount_factor"],
        gae_lambda=settings["gae_lambda"],
        clip_eps=settings["clip"],
        vf_coef=settings["value_cost"],
        ent_coef=settings["entropy_cost"],
        total_timesteps=settings["total_steps"],
        eval_freq=between,
        skip_initial_evaluation=True,
    )

    def mean_return(algorithm, state, key):
        act, episodes = algorithm.make_act(state), settings["episodes"]
        environment = algorithm.env, algorithm.env_params
        return evaluate(act, key, *environment, episodes)[1].mean()

    algorithm = algorithm.replace(eval_callback=mean_return)
    keys = jax.vmap(jax.random.key)(jax.numpy.arange(settings["seeds"]))
    _, returns = jax.jit(jax.vmap(algorithm.train))(keys)
    print(json.dumps(returns.tolist()))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
