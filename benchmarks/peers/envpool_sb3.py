"""EnvPool's simulators as stable-baselines3 wants them; for scripts of its environment."""

import envpool
import numpy as np
from gymnasium import spaces
from stable_baselines3.common.vec_env import VecEnv


class Pool(VecEnv):
    """A batch of an EnvPool environment, from seeds that differ.

    If `resets`, a finished environment is reset at once, and its last observation kept
    apart. Otherwise EnvPool does it in the next step, whose action it ignores: this is
    faster, but a void transition is learned from.
    """

    render_mode = None

    def __init__(self, name: str, batch_size: int, seed: int, resets: bool = True):
        self.pool = envpool.make(
            *(name, "gymnasium"),
            num_envs=batch_size,
            seed=seed * batch_size,  # environment i is seeded with this + i
        )
        self.resets = resets
        seen, acted = self.pool.observation_space, self.pool.action_space
        self.dtype = acted.dtype if isinstance(acted, spaces.Box) else np.int32
        image = seen.dtype == np.uint8
        self.seen_dtype = np.uint8 if image else np.float32
        low, high = (0, 255) if image else (-np.inf, np.inf)
        super().__init__(
            batch_size,
            spaces.Box(low, high, seen.shape, self.seen_dtype),
            spaces.Box(-1.0, 1.0, acted.shape, np.float32)
            if isinstance(acted, spaces.Box)
            else spaces.Discrete(int(acted.n)),
        )

    def reset(self):
        return self.pool.reset()[0].astype(self.seen_dtype)

    def step_async(self, actions):
        self.actions = np.asarray(actions, self.dtype)

    def step_wait(self):
        observation, reward, terminated, truncated, _ = self.pool.step(self.actions)
        observation = observation.astype(self.seen_dtype)
        over = np.asarray(terminated | truncated)
        infos = [{} for _ in range(self.num_envs)]
        for i in np.flatnonzero(over):
            infos[i]["terminal_observation"] = observation[i].copy()
            infos[i]["TimeLimit.truncated"] = not terminated[i]
        if self.resets and over.any():
            first, info = self.pool.reset(np.flatnonzero(over).astype(np.int32))
            observation[info["env_id"]] = first
        return observation, reward.astype(np.float32), over, infos

    def close(self):
        self.pool.close()

    def env_is_wrapped(self, wrapper_class, indices=None):
        return [False for _ in self._get_indices(indices)]

    def get_attr(self, attr_name, indices=None):
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name, value, indices=None):
        raise NotImplementedError

    def env_method(self, method_name, *args, indices=None, **kwargs):
        raise NotImplementedError
