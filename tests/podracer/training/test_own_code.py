"""A user's own environment, agent and network have the whole command line."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import anakin.command.subcommands as anakin_command
import podracer
import podracer.__main__ as podracer_command
import sebulba.command.subcommands as sebulba_command
from podracer.errors import UserError
from tests import interruptions
from tests.podracer.training import own_code

OWN = "--agent my_agent --network my_network:make"
SMALL = "--quiet --batch-size 4 --unroll-length 5 --agent.step-size 0.01"


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(podracer.parallel, "use_cpu_cores", lambda *_, **__: None)
    modules = own_code.write(tmp_path)
    yield tmp_path
    for name in modules:
        sys.modules.pop(name, None)


def rows(folder):
    return [
        json.loads(x) for x in Path(folder, "metrics.jsonl").read_text().splitlines()
    ]


@pytest.mark.parametrize("cores", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_anakin_walks_the_whole_length(here, cores, capsys):
    names = f"{OWN} --env my_env:Chase"
    flags = (
        f"{SMALL} --env.size 0.8 --network.units 3 --cores {cores} --total-steps 200"
    )
    anakin_command.train(f"{names} {flags} --run run".split())
    config = json.loads((here / "run/config.json").read_text())["config"]
    found = config["agent"], config["env"], config["network"]
    assert found == ("my_agent", "my_env:Chase", "my_network:make")
    assert config["train"]["env"] == {"size": 0.8, "time_limit": 10}
    assert config["train"]["network"] == {"units": 3}
    assert config["train"]["agent"] == {"step_size": 0.01}
    assert rows("run")[-1]["steps"] == 200 and any(x["episodes"] for x in rows("run"))

    longer = "--resume run --allow-changes --total-steps 240"
    with pytest.raises(UserError, match="names code to import"):
        anakin_command.train(longer.split())
    anakin_command.train(f"{longer} {names} --quiet".split())
    assert rows("run")[-1]["steps"] == 240

    if cores == 2:
        return
    anakin_command.evaluate(["run", "--episodes", "2", "--trust"])
    assert "over 2 episodes" in capsys.readouterr().out
    anakin_command.render(f"run film.gif --max-steps 2 {names}".split())
    assert (here / "film.gif").read_bytes().startswith(b"GIF")
    with pytest.raises(
        UserError, match="names code to import, --agent my_agent --netw"
    ):
        podracer.load("run")
    action = podracer.load("run", trust=True)(np.array([0.1, 0.2], np.float32))
    assert action.shape == (2,)
    with pytest.raises(UserError, match="names code to import"):
        podracer_command.export(["run", "a.safetensors"])
    podracer_command.export(["run", "a.safetensors", "--trust"])
    podracer_command.plot(["run"])
    assert (here / "curves.png").exists()


@pytest.mark.parametrize("env", [pytest.param("near", marks=pytest.mark.slow), "Plain"])
def test_sebulba_takes_the_same_environment(here, env, capsys):
    names = f"{OWN} --env jax:my_env:{env}"
    cores = "--actor-cores 1 --learner-cores 1 --threads-per-core 1 --total-steps 40"
    sebulba_command.train(f"{names} {SMALL} {cores} --run run".split())
    options = {"near": {"size": 0.5, "time_limit": 10}, "Plain": {}}
    config = json.loads((here / "run/config.json").read_text())["config"]
    assert config["train"]["env"] == options[env]
    assert rows("run")[-1]["steps"] == 40
    flags = ["run", "--episodes", "1", "--environments", "1"]
    with pytest.raises(UserError, match=f"--env jax:my_env:{env}; if you trust"):
        sebulba_command.evaluate([*flags, *OWN.split()])
    sebulba_command.evaluate([*flags, "--trust"])
    assert "over 1 episodes" in capsys.readouterr().out
    if env == "Plain":  # which has no pictures
        return
    sebulba_command.render(f"run film.gif --max-steps 2 {names}".split())
    assert (here / "film.gif").read_bytes().startswith(b"GIF")
    action = podracer.load("run", trust=True)(np.array([0.1, 0.2], np.float32))
    assert action.shape == (2,)
    podracer_command.plot(["run"])
    assert (here / "curves.png").exists()


@pytest.mark.parametrize(
    ("program", "env", "flags"),
    [
        ("anakin", "my_env:Chase", "--cores 2 --updates-per-report 1"),
        ("sebulba", "jax:my_env:Chase", "--cores 3 --learner-cores 2"),
    ],
)
@pytest.mark.slow
def test_a_killed_run_resumes(here, program, env, flags):
    names = f"{OWN} --env {env}"
    endless = "--checkpoint.steps 20 --total-steps 1000000000"
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", program, "train"),
            *f"{names} {SMALL} {flags} {endless} --run run".split(),
        ],
        cwd=here,
        env=os.environ | {"PYTHONPATH": str(Path(podracer.__file__).parents[1])},
    )
    try:
        deadline = time.monotonic() + 300
        while not interruptions.checkpoints(here / "run"):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.1)
    finally:
        process.kill()
        process.wait(60)
    saved = max(map(int, interruptions.checkpoints(here / "run")))
    steps = 20 * saved + 40
    command = anakin_command if program == "anakin" else sebulba_command
    longer = f"--resume run --allow-changes --total-steps {steps} --trust --quiet"
    command.train(longer.split())
    assert rows("run")[-1]["steps"] >= steps


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("--agent no_agent", "no_agent.make_agent gives Network; it must be podracer"),
        (
            "--network my_network:nothing",
            "my_network:nothing gives NoneType; it must be",
        ),
        (
            "--network my_network:pair",
            "predicts tuple; it must be networks.Predictions",
        ),
        (
            "--network my_network:wide",
            "its value is (2, 1) for 2 timesteps; it must be",
        ),
        (
            "--network my_network:narrow",
            "its policy has 2 logits; the environment has 3 actions: give",
        ),
        ("--network my_network:failing", "my_network:failing fails: TypeError: too"),
        ("--network my_network:broken", "my_network:broken: step fails: KeyError"),
        ("--env my_env:Silent", "Silent.step"),
        ("--env my_env:Iffy", "my_env.py:42): use jnp.where or jax.lax.cond in place"),
        ("--env my_env:Numpy", "): use jnp in place of np"),
        (
            "--env my_env:Property",
            "Property.observation_spec is no method (a property?)",
        ),
        ("--env my_env", "a module; its environments: my_env:Chase, my_env:Iffy"),
        (
            "--env my_env.py:Chase",
            "a file; name its module, as in --env my_env:Chase, an",
        ),
        (
            "--agent ./my_agent.py",
            "a file; name its module, as in --agent my_agent, and",
        ),
        ("--network my_network.py:make", "as in --network my_network:make, and"),
        (
            "--env Pong-v5",
            "EnvPool's environments run in Sebulba: sebulba train --env P",
        ),
        ("--env gym:CartPole-v1", "sebulba train --env gym:CartPole-v1"),
        ("--env jax:my_env:Chase", "here it is --env my_env:Chase"),
        ("--env my_env:Chase --env.sise 1", "did you mean '--env.size'?"),
        (
            "--agent my_agent --interface.normalize-rewards",
            "needs the agent's discount",
        ),
        (
            "--network my_network:plain --network.units 3",
            "--network.units: no such flag",
        ),
    ],
)
def test_what_breaks_the_protocol_is_one_line(flags, line):
    with pytest.raises(UserError) as error:
        anakin_command.train([*flags.split(), "--quiet", "--total-steps", "1"])
    assert line in str(error.value) and "\n" not in str(error.value)
    assert not Path("runs").exists()


@pytest.mark.parametrize("program", ["anakin", "sebulba"])
def test_a_console_script_imports_from_the_current_folder(here, program):
    scripts = here / "bin"
    scripts.mkdir()
    script = f"from {program}.__main__ import main\nmain()\n"
    (scripts / program).write_text(script)
    env = "my_env:Chase" if program == "anakin" else "jax:my_env:Chase"
    flags = [*OWN.split(), "--env", env, "--help", "all"]
    done = subprocess.run(
        [sys.executable, scripts / program, "train", *flags],
        cwd=here,
        env=os.environ | {"PYTHONPATH": str(Path(podracer.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    for flag in ("--env.size", "--agent.step-size", "--network.units"):
        assert flag in done.stdout
    assert "how far away a target may be (default: 1.0)" in done.stdout
