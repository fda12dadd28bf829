"""The compilers of TPUs and GPUs on every agent in both architectures: what they make of them."""

import dataclasses
import functools
import itertools
import os
import re
import subprocess
import sys
from functools import cache

import jax
import pytest
from jax.sharding import SingleDeviceSharding

from anakin import adaptation, meta_gradient
from anakin import planning as anakin
from anakin.meta import lpg as meta_lpg
from envs_jax import Catch, MountainCarContinuous
from envs_jax.lpg import TaskDistribution
from podracer import networks
from podracer.agents import (
    AGENTS,
    algorithm,
    batch_ppo,
    disco,
    dqn,
    from_flags,
    impala,
    lpg,
    muzero,
    ppo,
    pqn,
    sac,
    td3,
)
from podracer.kernels import compiler_options
from podracer.kernels.xla import ORDER
from podracer.parallel import SHARED
from podracer.plan import compiled, gpu, tpu
from podracer.rules.lpg import Sizes
from sebulba import host_environments
from sebulba import planning as sebulba
from sebulba.cores import Cores, split
from tests.disco_files import random_rule
from tests.rule_files import returns_rule

pytest.importorskip("libtpu", reason="the TPU's compiler is not installed")
pytest.importorskip(gpu.PLUGIN, reason="the GPU's compiler is not installed")
pytestmark = pytest.mark.tpu

# XLA reads its flags once, here for the TPU's compiler before the GPU's is asked: other
# tests use XLA as they are imported, so that `make test-tpu` runs this folder alone.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {gpu.NO_TRIALS}"

SLICES = {"v5e:1x1": (1, 1), "v5e:2x4": (8, 1), "v3:32x32": (2_048, 256)}
GPUS = {"h100:4": (4, 1)}
CONFIGS = {
    "impala": impala.Config(total_steps=10**9),
    "ppo": ppo.Config(total_steps=10**9, epochs=2, minibatches=2),
    "pqn": pqn.Config(total_steps=10**9, epochs=2, minibatches=2),
    "dqn": dqn.Config(total_steps=10**9),
    "batch_ppo": batch_ppo.Config(
        total_steps=10**9, episodes_per_update=8, max_episode_length=16, epochs=3
    ),
    "muzero": muzero.Config(total_steps=10**9, num_simulations=4, unroll_steps=2),
    "lpg": lpg.Config(update_rule=returns_rule()),
    "disco": disco.Config(update_rule=random_rule()),
    "sac": sac.Config(),
    "td3": td3.Config(),
}
CONTINUOUS = ("sac", "td3")
# Of an update: gradients, each averaged as one tree; and what else is averaged there
# (advantages' moments; the rule's moments and its lifetime's input; a KL, normalizers and
# whether enough episodes have finished).
GRADIENTS = {
    "impala": 1,
    "ppo": 4,
    "pqn": 4,
    "dqn": 1,
    "batch_ppo": 3,
    "muzero": 1,
    "lpg": 1,
    "disco": 1,
    "sac": 1,
    "td3": 2,  # of the critics and of the policy
}
OTHERS = {
    "impala": 0,
    "ppo": 2,
    "pqn": 0,
    "dqn": 0,
    "batch_ppo": 6,
    "muzero": 0,
    "lpg": 0,
    "disco": 2,
    "sac": 0,
    "td3": 0,
}
SMALL = {"hidden_sizes": (32,)}
SIZES = {
    "muzero": {"hidden_size": 32},
    "lpg": SMALL | {"prediction_size": 4},
    "disco": SMALL | dict.fromkeys(("embedding_size", "model_size", "head_size"), 8),
}
UNROLL_LENGTH = 4
PLACES = (*SLICES, *GPUS)


def cases(names):
    """All agents at all places; before a release, but for those names on the large slice."""
    quick = [
        *((name, "v3:32x32") for name in names),
        *(("impala", place) for place in ("v5e:1x1", "h100:4")),
    ]
    return pytest.mark.parametrize(
        ("name", "place"),
        [
            pytest.param(*case, marks=[pytest.mark.slow] * (case not in quick))
            for case in itertools.product(CONFIGS, PLACES)
        ],
    )


def test_a_population_gathers_learners_once_a_call():
    """Whatever it copies is outside the updates; every leaf of a learner is in it."""
    slice = slice_of("v5e:2x4")
    config = adaptation.Config(fields=("learning-rate=1e-5..1e-2",))
    rule = functools.partial(adaptation.truncation, config=config)

    def make_agent(numbers):
        whole = from_flags.with_numbers(CONFIGS["impala"], numbers)
        specs = Catch().observation_spec(), Catch().action_spec()
        return impala.make_agent(
            whole, networks.actor_critic(*specs, networks.Config(**SMALL))
        )

    _, call = anakin.programs_together(
        make_agent,
        Catch(),
        slice.cores,
        runs=16,
        hyperparameters=("learning_rate",),
        adapt=(rule, adaptation.Updates(100, 1000)),
        batch_size=8,
        unroll_length=UNROLL_LENGTH,
    )
    steps = call.module.collectives
    assert steps and not any(step.inside for step in steps)
    learner = jax.eval_shape(
        make_agent({}).initial_learner_state, jax.random.key(0)
    ).shared
    sizes = [x.size * x.dtype.itemsize for x in jax.tree.leaves(learner)]
    carried = sum(x.logical for step in steps for x in step.instruction.arrays)
    assert carried >= 16 * sum(sizes)


@cache
def slice_of(place):
    return (gpu if place in GPUS else tpu).make_slice(place)


def environment_of(name):
    return MountainCarContinuous() if name in CONTINUOUS else Catch()


def make_agent(name):
    environment = environment_of(name)
    observation, action = environment.observation_spec(), environment.action_spec()
    make_network, default = from_flags.network_maker(None, algorithm.of(AGENTS[name]))
    network = dataclasses.replace(default, **SIZES.get(name, SMALL))
    network = make_network(observation, action, network)
    return AGENTS[name].make_agent(CONFIGS[name], network)


def gradient_bytes(name):
    state = make_agent(name).initial_learner_state
    params = jax.eval_shape(state, jax.random.key(0)).shared.params
    params = params.policy if name == "td3" else params  # the smaller of its two
    return 4 * sum(x.size for x in jax.tree.leaves(params))


def averages(program, inside):
    """The bytes of each all-reduce; there is no other collective."""
    found = []
    for step in program.module.collectives:
        if step.inside == inside:
            assert step.instruction.opcode in ("all-reduce", "all-reduce-start")
            carried = sum(x.logical for x in step.instruction.arrays)
            found += [carried] * step.times
    return found


def check_update(program, name, cores, others):
    """A gradient is averaged at once; the rest is scalars, no more often than needed."""
    size, found = gradient_bytes(name), averages(program, inside=True)
    if cores == 1:
        assert not found
        return
    assert sum(x >= size for x in found) == GRADIENTS[name]
    small = [x for x in found if x < size]
    assert len(small) <= others and sum(small) < 1_000
    assert not program.module.host_transfers


@pytest.mark.parametrize("place", PLACES)
def test_the_slice_is_there(place):
    slice = slice_of(place)
    cores, hosts = (SLICES | GPUS)[place]
    assert (len(slice.cores), len(slice.hosts)) == (cores, hosts)
    assert bool(slice.clock) == (place in SLICES)
    least = 59 if place in GPUS else 15
    assert least < slice.memory / 2**30 < least + 1


def test_kernels_of_a_gpu_overlap(monkeypatch):
    """If the compiler knows the option; another version may not."""
    first, second, *_ = slice_of("h100:4").cores
    assert compiler_options(SingleDeviceSharding(first)) == {ORDER: "CONCURRENT"}
    monkeypatch.setattr("podracer.kernels.xla.ORDER", "xla_no_such_option")
    assert compiler_options(SingleDeviceSharding(second)) == {}


# The programs of the two others take the compiler three times as long.
@cases(CONFIGS.keys() - {"muzero", "disco"})
def test_anakin(name, place):
    cores = slice_of(place).cores
    start, call = anakin.programs(
        make_agent(name),
        environment_of(name),
        cores,
        batch_size=8 * len(cores),
        unroll_length=UNROLL_LENGTH,
    )
    check_update(call, name, len(cores), OTHERS[name])
    assert len(averages(call, inside=False)) <= 2 * (len(cores) > 1)
    assert call.not_donated == ["u32[]", "pred[]"]  # all but `updates` and `report`
    assert not start.module.collectives and not start.module.host_transfers
    # The text is read as the compiler means it.
    padded = sum(x.padded for p in call.module.parameters for x in p.arrays)
    assert padded == call.memory.arguments
    assert (call.cycles > 0) == (place in SLICES) and call.flops > 0
    assert call.memory.peak < 2**26


@pytest.mark.slow
@pytest.mark.parametrize("place", ["v5e:1x1", "v5e:2x4"])
def test_meta_training(place):
    """The rule's gradient is averaged at once; agents do not average with one another."""
    cores = slice_of(place).cores
    sizes = Sizes(prediction_size=4, memory_size=16, embedding_size=4)
    meta = meta_lpg.make_meta(
        meta_lpg.Config(batch_size=2, unroll_length=4),
        TaskDistribution(("chain-short",)),
        sizes,
    )
    config = meta_gradient.Config(lifetimes=2 * len(cores), updates=2)
    _, call = anakin.meta_programs(meta, config, cores)
    weights = jax.eval_shape(meta.init, jax.random.key(0))
    size = 4 * sum(x.size for x in jax.tree.leaves(weights))
    found = averages(call, inside=True)
    assert sum(x >= size for x in found) == (len(cores) > 1)
    assert sum(x for x in found if x < size) < 1_000  # what ended, for the bandit
    assert len(averages(call, inside=False)) <= 2 * (len(cores) > 1)
    assert not call.module.host_transfers


# Most of a learner's program is that of Anakin.
@cases(("impala", "batch_ppo", "dqn"))
def test_sebulba(name, place):
    slice = slice_of(place)
    hosts = [split(cores) for cores in slice.hosts]
    learners = [core for host in hosts for core in host.learners]
    env = "jax:mountain-car-continuous" if name in CONTINUOUS else "jax:catch"
    environment = host_environments.make(
        env, 48, 0, 1, host_environments.default_options(env)
    )
    made = sebulba.programs(
        make_agent(name),
        environment.reset(),
        Cores(hosts[0].actors, learners),
        parts=len(hosts[0].learners),
        unroll_length=UNROLL_LENGTH,
    )
    assert len(learners) in (1, 3, 6, 1_536)
    check_update(made.learn, name, len(learners), OTHERS[name] + 1)  # metrics
    assert not averages(made.learn, inside=False)
    # All of state, tally and unroll takes over its own memory.
    state, counted, _ = made.learn.compiled.in_avals[0]
    assert len(made.learn.module.donated) == len(jax.tree.leaves((state, counted)))
    unroll = made.step.results[0]
    assert len(made.step.module.donated) == len(jax.tree.leaves(unroll))
    for program in made:
        assert not program.module.host_transfers
    for program in (made.start, made.step, made.finish):
        assert not program.module.collectives


def test_what_the_persistent_cache_would_hold_is_compiled_again():
    """JAX writes programs for absent cores there, and fails to read them."""
    core = slice_of("v5e:1x1").cores
    (x,) = compiled.placed((jax.ShapeDtypeStruct((8,), "float32"),), SHARED, core)
    least = "jax_persistent_cache_min_compile_time_secs"
    before = jax.config.jax_persistent_cache_min_compile_time_secs
    jax.config.update(least, 0.0)
    try:
        for _ in range(2):  # not one jitted function, which would remember
            compiled.compile("twice", jax.jit(lambda x: x + 1.0), x)
    finally:
        jax.config.update(least, before)


def test_what_does_not_fit_is_refused():
    cores = slice_of("v5e:1x1").cores
    with pytest.raises(compiled.DoesNotFit) as refused:
        anakin.programs(
            make_agent("impala"), Catch(), cores, batch_size=2**22, unroll_length=16
        )
    assert refused.value.needed > 2 * refused.value.available
    assert refused.value.available == slice_of("v5e:1x1").memory


def command(program, *flags):
    return subprocess.run(
        [sys.executable, "-m", program, "plan", *flags],
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )


@pytest.mark.parametrize(
    "program, env",
    [("anakin", "catch"), pytest.param("sebulba", "jax:catch", marks=pytest.mark.slow)],
)
def test_the_command_reports(program, env):
    done = command(program, "--tpu", "v5e:1x1", "--env", env)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    for told in ("v5e:1x1 (TPU v5 lite): 1 core", "of a core's 15.8 GiB", "estimate"):
        assert told in done.stdout


@pytest.mark.parametrize(
    "flags, line",
    [
        (("v5e:3x5",), "--tpu is 'v5e:3x5': .*not divisible"),
        (
            ("v5e:32x32", "--batch-size", "1024"),
            "the compiler crashed: .*chip_bounds",
        ),
        (("v5e:2x4", "--batch-size", "9"), "batch_size is 9, .*choose a multiple of 8"),
    ],
)
def test_the_command_refuses(flags, line):
    done = command("anakin", "--tpu", *flags)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) == 1
    assert re.search(line, done.stderr)
