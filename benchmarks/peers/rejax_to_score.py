"""Rejax trains until a score is reached, for `benchmarks.time_to_score`.

    python rejax_to_score.py SETTINGS

Runs in an environment of its own. SETTINGS is JSON: algorithm, env (of gymnax), score,
total_steps, seed, and the algorithm's arguments. Rejax is one program, which evaluates 128
episodes every `eval_freq` steps: the process ends where their mean return is the score. Prints a
line of JSON: whether it was, and after how many steps.
"""

import json
import os
import sys

import jax
import rejax
from rejax.evaluate import evaluate

EPISODES = 128


def main(settings: dict) -> None:
    algorithm = getattr(rejax, settings["algorithm"]).create(
        env=settings["env"],
        total_timesteps=settings["total_steps"],
        skip_initial_evaluation=True,
        **settings["arguments"],
    )

    def look(mean_return, steps) -> None:
        if mean_return >= settings["score"]:
            print(json.dumps({"reached": True, "steps": int(steps)}), flush=True)
            os._exit(0)

    def mean_return(algorithm, state, key):
        act = algorithm.make_act(state)
        environment = algorithm.env, algorithm.env_params
        found = evaluate(act, key, *environment, EPISODES)[1].mean()
        jax.debug.callback(look, found, state.global_step)
        return found

    algorithm = algorithm.replace(eval_callback=mean_return)
    jax.block_until_ready(jax.jit(algorithm.train)(jax.random.key(settings["seed"])))
    jax.effects_barrier()
    print(json.dumps({"reached": False, "steps": settings["total_steps"]}))


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))
