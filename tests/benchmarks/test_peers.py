"""The contest of `python -m benchmarks.peers`: its plan, processes and reports."""

import json
import sys

import jax
import numpy as np
import pytest
from dm_env import specs

from benchmarks.peers import __main__ as peers
from benchmarks.peers import contest, environments, floor, report
from podracer import networks
from podracer.errors import UserError

KINDS = contest.KINDS | contest.REPLAYED


def record(podracer, peer, floor_speed=100.0, cpus=2):
    """With a work that both did, in steps/s of each round."""
    made = report.begin("command", []) | {"cpus": cpus}
    made["floor"] = {"cartpole": [floor_speed], "Pong-v5": [7.0]}
    work = contest.parse("cartpole:2048x32")
    for name, speeds in ((contest.OURS, podracer), ("rejax 0.1.3", peer)):
        entrant = contest.Entrant(name, "", None, (), ())
        for speed in speeds:
            result = {"failure": "no\nfailed: x"}
            if speed:
                result = {"steps_per_second": speed}
            report.add(made, contest.Turn(work, entrant, 2), 0.5, result)
    return made


def test_every_peer_has_an_environment_and_every_entrant_a_script():
    for entrant in contest.ENTRANTS:
        assert entrant.peer is None or entrant.peer in environments.PINS
        assert (contest.FOLDER / entrant.script).exists()
        assert {*entrant.kinds} <= KINDS.keys()


def test_a_turn_is_work_that_the_entrant_can_do():
    works = [contest.parse(f"{name}:1024x8") for name in KINDS]
    plan = contest.turns(works, contest.ENTRANTS)
    assert {turn.work.kind for turn in plan} == KINDS.keys()
    for turn in plan:
        assert turn.work.kind in turn.entrant.kinds


def test_on_a_gpu_each_entrant_has_one_turn():
    works = [contest.parse("cartpole:64x128")]
    plan = contest.turns(works, contest.ENTRANTS, "cuda")
    assert {turn.cores for turn in plan} == {1}
    assert len({turn.entrant.name for turn in plan}) == len(plan)


@pytest.mark.parametrize(
    ("pin", "here"),
    [
        (f"numpy=={np.__version__}", True),
        (f"jax[cuda13]=={jax.__version__}", True),
        ("numpy==0.1", False),
        ("no-such-library==1.0", False),
    ],
)
def test_a_peer_is_here_in_its_version_alone(monkeypatch, pin, here):
    monkeypatch.setitem(environments.PINS, "peer", (pin,))
    assert environments.is_here("peer") is here


def test_a_peer_that_is_not_installed_is_left_out_on_a_gpu(monkeypatch):
    monkeypatch.setattr(environments, "is_here", lambda peer: peer == "brax")
    record = {"left_out": {}}
    found = peers.installed(contest.ENTRANTS, record, "cuda")
    assert {entrant.peer for entrant in found} == {None, "brax"}
    assert record["left_out"]["rejax 0.1.3"] == "not installed where podracer is"


def test_a_platform_that_jax_lacks_is_one_line(monkeypatch):
    monkeypatch.setattr(contest, "run", lambda *_: {"failure": "no\nAssertionError\n"})
    line = (
        "platform is 'cuda', .*: AssertionError; JAX_PLATFORMS=cuda python .*floor.py"
    )
    with pytest.raises(UserError, match=line) as error:
        peers.measure_floor({}, peers.Config(platform="cuda"), [])
    assert "\n" not in str(error.value)


def test_a_process_on_a_gpu_sees_the_first_that_is_allowed(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    names = "JAX_PLATFORMS", "CUDA_VISIBLE_DEVICES", "JAX_NUM_CPU_DEVICES"
    program = (
        "import json, os; found = [os.environ.get(x) for x in "
        f"{names}]; print(json.dumps({{'found': found, 'devices': 1}}))"
    )
    result = contest.run([sys.executable, "-c", program], 1, 60.0, "cuda")
    assert result["found"] == ["cuda", "3", None]


@pytest.mark.parametrize("text", ["cartpole", "chess:8x8", "cartpole:axb"])
def test_work_that_is_refused(text):
    with pytest.raises(UserError, match="it takes KIND:BxT"):
        contest.parse(text)


def test_steps_are_whole_updates():
    assert contest.parse("cartpole:2048x32").steps == 2**20
    assert contest.parse("cartpole:8x16", scale=0.0).steps == 128
    assert contest.parse("Pong-v5:64x128").steps == 3 * 64 * 128  # of 2.5


def test_replay_has_as_many_updates_however_often_a_library_updates():
    work = contest.parse("pendulum-each-step:8x4")
    assert (work.updates, work.updates_per_step, work.transitions) == (32, 1.0, 256)
    assert work.updates_after_step * work.unroll_length == work.updates
    assert work.algorithm == "SAC"
    assert contest.parse("cartpole-each-step:8x4") == work._replace(
        kind="cartpole-each-step",
        algorithm="DQN",
        environment="cartpole",
        transitions=64,
        steps=2**12,
    )
    work = contest.parse("pendulum-parallel:1024x8")
    assert (work.updates, work.updates_after_step, work.transitions) == (16, 2, 4096)
    assert work.steps % (1024 * 8) == 0
    for text in ("pendulum-parallel:256x1", "pendulum-parallel:64x16"):
        with pytest.raises(UserError, match="not a whole number"):
            contest.parse(text)


def test_a_device_has_an_environment():
    one, many = (contest.parse(f"pendulum-each-step:{b}x8") for b in (1, 8))
    entrant = contest.Entrant("brax", "", None, contest.SAC, (1, 2))
    assert [x.cores for x in contest.turns([one, many], [entrant])] == [1, 1, 2]
    threads = entrant._replace(cores=(2,))
    assert [x.cores for x in contest.turns([one], [threads])] == [2]


def test_updates_are_reported_beside_steps():
    work = contest.parse("pendulum-parallel:1024x8")
    entrant = contest.Entrant(contest.OURS, "", None, (), ())
    made = report.begin("command", [])
    report.add(made, contest.Turn(work, entrant, 2), 0.5, {"steps_per_second": 1024.0})
    lines = [*report.table(made)]
    assert "Updates/s: pendulum-parallel:1024x8, podracer on 2: 2" in lines


def process(program, seconds=60.0):
    return contest.run([sys.executable, "-c", program], 2, seconds)


def test_a_process_ends_with_a_line_of_json():
    line = json.dumps({"steps_per_second": 3.0, "devices": 2})
    assert process(f"print('noise'); print('{line}'); print('more')") == json.loads(
        line
    )


def test_what_fails_is_said():
    assert "exit code 1: " in process("raise ValueError")["failure"]
    assert "no result: " in process("print('noise')")["failure"]
    assert process("import time; time.sleep(60)", 0.5) == {
        "failure": "no result after 0 s"
    }


def test_ratios_are_of_medians_to_the_fastest_peer_and_the_floor():
    lines = "\n".join(report.table(record([30, 10, 60], [15, 20, None])))
    assert "| podracer | 2 | 30 | 10 | 60 | 1.71 | 0.3 |" in lines
    assert "| rejax 0.1.3 | 2 | 17.5 | 15 | 20 | 1.00 | 0.175 |" in lines
    assert "Failed: rejax 0.1.3 on cartpole:2048x32: failed: x" in lines


def test_a_regression_is_marked_whatever_the_speed_of_the_machine():
    before = record([100], [50], floor_speed=1_000.0)
    same = record([10], [], floor_speed=100.0)
    slower = record([10], [], floor_speed=200.0)
    assert "1.00 |" in "\n".join(report.against(same, before))
    assert "0.50 **slower** |" in "\n".join(report.against(slower, before))
    others = record([10], [], cpus=8)
    assert "do not compare" in "\n".join(report.against(others, before))


def test_the_picture_has_a_bar_for_each_entrant():
    (axes,) = report.picture(record([30, 10, 50], [15, 20])).axes
    widths = {bar.get_width() for bar in axes.patches}
    assert widths == {30, 17.5}
    assert axes.get_title() == "cartpole:2048x32"


def test_the_limit_counts_every_product_of_an_update():
    names = "forward", "input_gradient", "weight_gradient"
    rates = dict.fromkeys([*names, "weight_gradient_transposed", "tanh"], 1.0)
    task = floor.Task(64, (((3, 5, 1), (5, 2, 1)),), 4, tanh=5)
    # Five passes forward, four backward; products of 2 x inputs x outputs, five units.
    flops = 5 * 50 + 4 * 20 + 4 * 50
    assert floor.limit(rates, task) == pytest.approx(1 / (flops + 5 * 5))
    image = task._replace(layers=(((3, 5, 1), (5, 2, 7)),), tanh=0)
    assert floor.limit(rates, image) == pytest.approx(1 / (flops + 13 * 6 * 20))
    # DQN's target network: a pass more of each epoch.
    dqn = task._replace(tanh=0, predictions=2)
    assert floor.limit(rates, dqn) == pytest.approx(1 / (flops + 4 * 50))


def test_sacs_floor_counts_every_product_of_an_update():
    names = "forward", "input_gradient", "weight_gradient"
    rates = dict.fromkeys([*names, "weight_gradient_transposed", "tanh"], 1.0)
    layers = ((3, 5, 1), (5, 2, 1)), ((4, 5, 1), (5, 1, 1))  # 50 and 50 flops
    task = floor.Replayed(256, layers, 3)
    # To act one pass of the policy, to learn two of it and three of both critics; backward
    # one of the policy and one of both critics, and the inner layers of both once more.
    flops = 50 + 3 * (8 * 50 + 3 * 50 + 20 + 2 * 10 + 2 * 10)
    assert floor.limit(rates, task) == pytest.approx(1 / flops)


def test_every_work_has_a_floor():
    assert floor.TASKS.keys() == KINDS.keys()
    replayed = contest.REPLAYED.items()
    for name, (learns, _, rate, transitions, (units, _), _) in replayed:
        task = floor.TASKS[name]
        assert (task.epochs, task.units) == (rate * transitions, units)
        if learns == "DQN":
            assert task.predictions == 2  # by the network and by the target network
    for name, (_, epochs, _, units, _, memory, _) in contest.KINDS.items():
        task = floor.TASKS[name]
        # Of an actor and a critic; an LSTM's unit has five.
        assert (task.epochs, task.tanh) == (epochs, 2 * (sum(units) + 5 * memory))


@pytest.mark.parametrize(
    ("kind", "torso"), [("Pong-v5", "shallow"), (contest.DEEP, "resnet")]
)
def test_the_floor_has_the_layers_of_our_network(kind, torso):
    images = specs.BoundedArray((84, 84, 4), np.uint8, 0, 255)
    actions = specs.DiscreteArray(6)
    network = networks.actor_critic(images, actions, networks.Config(torso))
    params = jax.eval_shape(network.init, jax.random.key(0))
    kernels = [x.size for x in jax.tree.leaves(params) if x.ndim > 1]
    (layers,) = floor.TASKS[kind].layers
    assert sum(inputs * outputs for inputs, outputs, _ in layers) == sum(kernels)
