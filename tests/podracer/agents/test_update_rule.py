"""`--agent lpg --update-rule FILE` in both commands: trained, resumed, loaded, refused."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import anakin.command.subcommands as anakin
import podracer
import sebulba.command.subcommands as sebulba
from podracer import metrics
from podracer.errors import UserError
from podracer.rules import files
from podracer.runs import run_folder
from podracer.trained import loading
from podracer.training import configuring
from tests import interruptions
from tests.rule_files import returns_rule, returns_weights

SMALL = "--agent lpg --batch-size 8 --unroll-length 5 --network.hidden-sizes 8 --quiet"
SIZES = "--network.prediction-size 4 --total-steps 160"
IN = {
    anakin: f"--env catch --cores 2 {SMALL} {SIZES}",
    sebulba: "--env jax:catch --actor-cores 1 --learner-cores 1 --threads-per-core 1 "
    f"{SMALL} {SIZES}",
}
NAMES = ["anakin", "sebulba"]


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """A folder with a rule, where commands leave the cores of the tests alone."""
    monkeypatch.chdir(tmp_path)
    for command in IN:
        monkeypatch.setattr("podracer.parallel.use_cpu_cores", lambda *_, **__: None)
    shutil.copy(returns_rule(), "rule.safetensors")


def checkpoints(run):
    return sorted(interruptions.checkpoints(Path(run)), key=int)


@pytest.mark.parametrize(
    "command", [anakin, pytest.param(sebulba, marks=pytest.mark.slow)], ids=NAMES
)
def test_a_run_trains_resumes_and_plays(command, tmp_path):
    flags = f"{IN[command]} --checkpoint.steps 80 --checkpoint.keep 2"
    command.train(f"{flags} --update-rule rule.safetensors --run run".split())
    kept = json.loads((tmp_path / "run" / "config.json").read_text())["config"]["train"]
    assert kept["agent"]["update_rule"] == "rule.safetensors"
    assert kept["agent"]["update_rule_checksum"] == files.checksum("rule.safetensors")
    rows = [*metrics.read(tmp_path / "run" / "metrics.jsonl")]
    assert rows[-1]["steps"] == 160 and rows[-1]["rule/y_hat_square"] > 0
    # The same rule in another place is the same run; another one is not.
    shutil.move("rule.safetensors", "moved.safetensors")
    before, last = checkpoints("run")
    shutil.rmtree(tmp_path / "run" / "checkpoints" / last)
    assert checkpoints("run") == [before]  # from which the run resumes
    command.train(["--resume", "run", "--update-rule", "moved.safetensors"])
    assert checkpoints("run")[-1] == last
    assert [*metrics.read(tmp_path / "run" / "metrics.jsonl")][-1]["steps"] == 160
    other = returns_weights(discount_factor=0.5)
    files.save_rule("moved.safetensors", "lpg", *other)
    for flags in ([], ["--update-rule", "moved.safetensors"]):
        with pytest.raises(
            UserError, match=r"differs: agent.update_rule_checksum: \w+ ->"
        ):
            command.train(["--resume", "run", *flags])
    # Nobody needs the rule to play.
    (tmp_path / "moved.safetensors").unlink()
    with pytest.raises(
        UserError, match=r"moved.safetensors: cannot read the rule file"
    ):
        command.train(["--resume", "run"])
    act = podracer.load("run")
    assert act(np.zeros((10, 5), np.float32)) in (0, 1, 2)
    command.evaluate(["run", "--episodes", "2"])
    assert loading.restore("run").updates == 4


@pytest.mark.parametrize("command", IN, ids=NAMES)
def test_a_rule_that_overwrite_would_remove_stays(command, tmp_path):
    (tmp_path / "link").symlink_to("run")
    flags = f"{IN[command]} --run run --overwrite --update-rule".split()
    for place in ("rule.safetensors", "seed-0/rule.safetensors"):
        file = tmp_path / "run" / place
        run_folder.create(file.parent, {})
        shutil.copy("rule.safetensors", file)
        for path in (f"run/{place}", f"link/{place}"):
            with pytest.raises(
                UserError, match=rf"agent.update_rule is {path}, which --overwrite may"
            ):
                command.train([*flags, path])
        assert file.exists()
    shutil.move(file, "run/mine.safetensors")  # of no run, which none removes
    program = command.__name__.partition(".")[0]
    argv = [*flags, "run/mine.safetensors"]
    configuring.configure(argv, command.Train, program, command.ENVIRONMENTS)


@pytest.mark.slow
def test_runs_side_by_side_share_the_rule():
    flags = "--update-rule rule.safetensors --run run --sweep alpha-y=0,1"
    anakin.train(f"{IN[anakin]} {flags}".split())
    params = [loading.restore(f"run/alpha-y-{x}-seed-0").params for x in (0, 1)]
    kernels = [x["params"]["prediction_head"]["kernel"] for x in params]
    assert (kernels[0] != kernels[1]).any()


@pytest.mark.parametrize("command", IN, ids=NAMES)
@pytest.mark.parametrize(
    ("flags", "line"),
    [
        ("", "update_rule is missing: --update-rule FILE; `anakin meta-train` makes"),
        ("--update-rule none", "none: cannot read the rule file: No such file"),
        ("--update-rule broken", "broken: no rule file, or damaged"),
        (
            "--update-rule rule.safetensors --network.prediction-size 7",
            "prediction_size is 7, but the rule has 4 categories",
        ),
        ("--agent.update-rule-checksum 0123", "--agent.update-rule-checksum"),
    ],
)
def test_bad_input_is_one_line(command, flags, line, tmp_path):
    (tmp_path / "broken").write_bytes(b"broken")
    with pytest.raises(UserError, match=line) as error:
        command.train(f"{IN[command]} --run run {flags}".split())
    assert "\n" not in str(error.value) and not (tmp_path / "run").exists()


def test_continuous_actions_are_one_line():
    flags = IN[anakin].replace("catch", "pendulum")
    with pytest.raises(UserError, match="LPG is for discrete actions"):
        anakin.train(f"{flags} --update-rule rule.safetensors --run run".split())
