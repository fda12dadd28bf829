"""Records MiniGrid's steps for test_grid_world.py; needs `pip install minigrid==3.2.0`.

    python tests/envs_jax/grid_world/reference.py

Every episode begins at the initial state of MiniGrid's own reset and plays random actions,
with "forward" the most likely. They are recorded because MiniGrid needs pygame.
"""

import pathlib

import numpy as np

RECORDED = pathlib.Path(__file__).with_name("recorded.npz")
EPISODES, STEPS = 30, 80
LAYOUTS = {
    "Empty": "MiniGrid-Empty-Random-6x6-v0",
    "FourRooms": "MiniGrid-FourRooms-v0",
    "DoorKey": "MiniGrid-DoorKey-6x6-v0",
    "Memory": "MiniGrid-MemoryS9-v0",
}
# Probabilities of turn left, turn right, forward, pick up, drop, toggle, nothing.
ODDS = np.array([2, 2, 6, 2, 1, 2, 0.5]) / 15.5


def record(name: str) -> dict[str, np.ndarray]:
    """Per episode: the initial grid [W, H, 3] and agent, then the results of each step."""
    import gymnasium
    import minigrid  # noqa: F401 registers its environments

    environment = gymnasium.make(LAYOUTS[name]).unwrapped
    random, rows = np.random.default_rng(0), []
    for seed in range(EPISODES):
        environment.reset(seed=seed)
        grid = environment.grid.encode()
        agent = (*environment.agent_pos, environment.agent_dir)
        ends = getattr(environment, "success_pos", (0, 0))
        fails = getattr(environment, "failure_pos", (0, 0))
        action = random.choice(7, STEPS, p=ODDS)
        answers = [environment.step(a) for a in action]  # continues after the end
        image = np.stack([seen["image"] for seen, *_ in answers])
        direction = [seen["direction"] for seen, *_ in answers]
        reward, terminated = zip(*(answer[1:3] for answer in answers), strict=True)
        rows.append(
            (grid, agent, (*ends, *fails), action, image, direction, reward, terminated)
        )
    names = [
        "grid",
        "agent",
        "ends",
        "action",
        "image",
        "direction",
        "reward",
        "terminated",
    ]
    small = {"reward": np.float32}
    return {
        field: np.array(values).astype(small.get(field, np.uint8))
        for field, values in zip(names, zip(*rows, strict=True), strict=True)
    }


if __name__ == "__main__":
    recorded = {
        f"{name}.{field}": values
        for name in LAYOUTS
        for field, values in record(name).items()
    }
    np.savez_compressed(RECORDED, **recorded)
    print({k: v.shape for k, v in recorded.items()}, RECORDED.stat().st_size)
