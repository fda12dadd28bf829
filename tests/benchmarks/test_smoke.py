"""Every benchmark runs: at sizes of seconds, whose figures mean nothing."""

import os
import runpy
import sys
from pathlib import Path

import pytest

from benchmarks import mutants
from tests import interruptions
from tests.disco_files import random_rule

ROOT = Path(__file__).parents[2]
SMALL = {
    "anakin": "--envs catch --batch-sizes 8 --unroll-lengths 4 --cores 1 --seconds 0.01 "
    "--steps 320 --no-memory",
    "checkpoints": "--hidden 8 --batch-size 32 --saves 1 --turns 1",
    "disco": f"--rule {random_rule()} --batch-size 2 --unroll-length 2 --units 4",
    "environments": "--names catch --rounds 1 --seconds 0.01 --batch-size 8 --steps 4",
    "kernels": "--kernels threefry --rounds 1 --scale 0.001",
    "learning": "--only smoke --seeds 1 --out runs",
    "equal_steps": "--seeds 1 --total-steps 1024 --evaluations 2 --episodes 2 "
    "--batch-size 8 --hidden-sizes 4 --report drawn",
    "gallery": "--names catch bandit --batch-size 2 --steps 20 --out drawn",
    "held_out": "--families chain-short --batch-size 2 "
    "--unroll-length 2 --updates 20 --seeds 1 --learning-rates 1 --a2c-learning-rates 0.1",
    "meta_gradient": "--families chain-short --lifetimes 2 --batch-size 2 "
    "--unroll-length 2 --updates 1 --seconds 0.01 --rule.prediction-size 2 "
    "--rule.memory-size 2 --rule.embedding-size 2",
    "mutants": "--only losses --first 1 --tests "
    "tests/podracer/learning/test_losses.py::test_an_episode_that_was_lost_is_cut_off_before_its_end",
    "muzero": "--simulations 2 --policies gumbel --batch-size 4 --unroll-length 2 "
    "--hidden-size 4 --updates 2 --seconds 0.01 --trajectories 2 --repeats 1",
    "observations": "--agents impala --only masked --seeds 1 --total-steps 512 --report page.md",
    "pictures": "--env catch --steps 512 --shown 0 1 --frames 10 --out drawn",
    "population": "--only smoke --seeds 1 --members 2 --episodes 2 --out runs",
    "random_play": "catch 8 4 0.01",
    "scaling": """--unroll-length 4 --seconds 0.5 --one {"batch_size":4096}""",
    "sebulba": "--settings cartpole --batch-sizes 4 --unroll-lengths 4 "
    "--threads-per-core 1 --cores 2 --seconds 0.1 --rounds 1",
    "suite": "--tests tests/envs_jax/bsuite/test_bandit.py --workers 0",
    "time_to_score": "--tasks smoke --seeds 1 --report page",
    "peers.__main__": "--short --works cartpole:8x16 --rounds 1 --scale 0 "
    "--floor-seconds 0.001 --floor-rows 128",
    "peers.floor": "0.001 128",
    "peers.ours": """{"kind":"CartPole-v1","environment":"CartPole-v1","batch_size":8,
    "unroll_length":4,"epochs":2,"minibatches":2,"hidden_sizes":[8],"torso":"","memory":4,"steps":64,
    "cores":2}""".replace("\n    ", ""),
    "peers.ours_replayed": """{"kind":"cartpole-each-step","algorithm":"DQN",
    "environment":"cartpole","batch_size":2,"unroll_length":2,"updates":4,"transitions":8,"hidden_sizes":[8],"steps":8,
    "cores":2}""".replace("\n    ", ""),
    "peers.brax_learning": "--run run",
    "peers.sb3_mujoco": "--run run",
}
EXPECTED = {
    "anakin": "catch",
    "checkpoints": "1 checkpoints",
    "disco": "an update of impala",
    "environments": "libraries: not installed",
    "equal_steps": "rejax: not installed",
    "gallery": "| `catch` | A ball falls",
    "held_out": "untrained rule",
    "kernels": "JAX's hash for random numbers",
    "learning": "IMPALA",
    "meta_gradient": "without",
    "mutants": "| dies |",
    "muzero": "Sebulba, one actor core",
    "observations": "Locks, masked",
    "pictures": "catch: episodes after 0 steps",
    "population": "| population - random search |",
    "scaling": "steps_per_second",
    "sebulba": "cartpole",
    "suite": "bsuite/test_bandit.py | 5",
    "time_to_score": "| podracer | ",
    "peers.__main__": "cartpole:8x16",
    "peers.floor": "weight_gradient",
    "peers.ours": "steps_per_second",
    "peers.ours_replayed": "steps_per_second",
    "peers.brax_learning": "brax: not installed",
    "peers.sb3_mujoco": "sb3: not installed",
}
RUN_BY_OTHERS = {  # most with a peer's interpreter
    *("peers.environments", "peers.contest", "peers.report"),  # by peers.__main__
    *("peers.rejax_ppo", "peers.brax_ppo", "peers.jaxnasium_ppo", "peers.sb3_ppo"),
    "peers.jaxnasium_dqn",
    *("peers.rejax_replayed", "peers.brax_sac", "peers.sb3_replayed"),
    *("peers.brax_on_jax", "peers.recorded"),
    *("peers.envpool_sb3", "peers.sample_factory_appo"),
    *("peers.rejax_learning", "peers.rejax_to_score", "peers.sb3_to_score"),
    "peers.work",
}
LISTS = {"experiments", "records"}  # of what `learning` runs, and has run


def test_none_is_left_out():
    scripts = (ROOT / "benchmarks").glob("**/*.py")
    names = {".".join(x.relative_to(ROOT / "benchmarks").parts)[:-3] for x in scripts}
    assert names == SMALL.keys() | RUN_BY_OTHERS | LISTS


def test_each_mutant_has_its_place_and_its_tests():
    for mutant in mutants.MUTANTS:
        text = (ROOT / mutant.file).read_text()
        assert text.count(mutant.right) == 1, mutant
        assert all((ROOT / x).exists() for x in mutants.TESTS[mutant.file])


def run(name, folder):
    """What the process of a benchmark does."""
    os.chdir(folder)
    os.environ |= {
        "HOME": str(folder),  # where no peer is installed
        "PODRACER_BENCHMARKS_INSTALL": "no",
        "PYTHONPATH": str(ROOT),
    }
    interruptions.say_in("said.txt")
    sys.argv = [name, *SMALL[name].split()]
    sys.path.insert(0, str(ROOT / "benchmarks" / "peers"))  # as Python has for scripts
    runpy.run_module(f"benchmarks.{name}", run_name="__main__")


# Compiles many searches; starts six commands; is a part of peers.__main__.
SLOW = ("muzero", "population", "peers.ours")
NAMES = [
    pytest.param(
        name,
        marks=[
            pytest.mark.shows(ROOT / "benchmarks" / f"{name.replace('.', '/')}.py"),
            *[pytest.mark.slow] * (name in SLOW),
        ],
    )
    for name in SMALL
]


@pytest.mark.parametrize("name", NAMES)
def test_it_runs(name, tmp_path):
    process = interruptions.processes.Process(target=run, args=(name, tmp_path))
    process.start()
    code = interruptions.ended(process)
    said = (tmp_path / "said.txt").read_text()
    assert code == 0, said
    assert EXPECTED.get(name, "") in said
