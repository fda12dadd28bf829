"""From the command line to a configuration: names, files, run folders, in one line or right."""

import dataclasses
import json
import os
import sys
from pathlib import Path

import pytest
from dm_env import specs

import anakin.command.subcommands as anakin_command
import podracer
import sebulba.command.subcommands as sebulba_command
from podracer import command
from podracer.agents import impala, ppo
from podracer.errors import UserError
from podracer.runs import run_folder, spec_json
from podracer.trained import exporting, loading
from podracer.training import configuring
from podracer.transformations.replay import Config as Replay

COMMANDS = {"anakin": anakin_command, "sebulba": sebulba_command}


def configure(program, *argv):
    owner = COMMANDS[program]
    return configuring.configure(argv, owner.Train, program, owner.ENVIRONMENTS)


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    """Runs lie in a folder of their own, which modules can be imported from."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    before = {*sys.modules}
    yield tmp_path
    for name in {*sys.modules} - before:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(
            sys.modules[name].__file__
        ):
            del sys.modules[name]


def stored(program="anakin", folder="run", about=None, **train):
    """The folder of a run as version 0.1 wrote it."""
    keep = {
        "run": folder,
        "overwrite": False,
        "resume": None,
        "allow_changes": False,
        "checkpoint": {"minutes": 10.0, "steps": None, "keep": 3},
        "evaluate": {"steps": None, "episodes": 32},
        "sinks": {"tensorboard": False, "wandb": None},
        "quiet": False,
    }
    config = {"agent": {"learning_rate": 0.5}, "env": {}, "total_steps": 77}
    env = "catch" if program == "anakin" else "jax:catch"
    kept = {"agent": "impala", "env": env} | (about or {})
    kept["train"] = config | train | {"keep": keep}
    description = {"command": f"{program} train", "config": kept}
    description["versions"] = run_folder.versions()
    path = here_folder(folder) / "config.json"
    path.write_text(json.dumps(description))
    return folder


def here_folder(name):
    Path(name).mkdir(exist_ok=True)
    return Path(name)


@pytest.mark.parametrize("program", COMMANDS)
def test_the_shared_flags_are_one_dataclass_and_stay_flat(program):
    shared = {x.name for x in dataclasses.fields(configuring.flags.Train)}
    own = {x.name for x in dataclasses.fields(COMMANDS[program].Train)}
    assert shared < own and {"seed", "total_steps", "keep", "agent", "env"} <= shared
    config = configure(program, "--seed", "3", "--total-steps", "5").config
    kept = dataclasses.asdict(config)
    assert kept["seed"] == 3 and kept["total_steps"] == 5 and kept["agent"]


def test_the_commands_have_their_own_defaults():
    fields = "batch_size", "unroll_length"
    for program, values in {"anakin": (64, 16), "sebulba": (96, 20)}.items():
        config = configure(program).config
        assert tuple(getattr(config, x) for x in fields) == values
        preset = configure(program, "--preset", "small").config
        assert tuple(getattr(preset, x) for x in fields) == (32, 16)


def test_the_command_line_is_read_twice_not_five_times(monkeypatch):
    """Once for what decides which flags there are, once by tyro."""
    calls = []
    read = command.read

    def counted(*arguments, **others):
        calls.append(arguments)
        return read(*arguments, **others)

    monkeypatch.setattr(command, "read", counted)
    monkeypatch.setattr(command.flags, "read", counted)
    configure("anakin", "--agent", "ppo", "--preset", "small", "--env", "cartpole")
    assert len(calls) == 1


@pytest.mark.parametrize("program", COMMANDS)
def test_an_old_run_is_resumed_as_it_was_configured(program):
    folder = stored(program, batch_size=12)
    found = configure(program, "--resume", folder)
    assert (found.config.total_steps, found.config.batch_size) == (77, 12)
    assert found.config.agent == impala.Config(learning_rate=0.5)
    keep = found.config.keep
    assert found.config.replay == Replay()  # which that version did not have
    assert (
        keep.resume == Path(folder).absolute()
        and keep.run is None
        and keep.stop_at is None
    )
    with pytest.raises(UserError, match="seed: 0 -> 4; leave the flags out"):
        configure(program, "--resume", folder, "--seed", "4")
    with pytest.raises(UserError, match="--agent is ppo, but run is impala on"):
        configure(program, "--resume", folder, "--agent", "ppo")


def test_a_field_that_is_no_flag_is_kept(here):
    """A user's own dataclass may hold an array; `config.json` has it as text."""
    (here / "table.py").write_text(
        "import dataclasses, numpy\n@dataclasses.dataclass\nclass Env:\n"
        "  size: int = 3\n"
        "  a: numpy.ndarray = dataclasses.field(default_factory=lambda: numpy.ones(2))\n"
    )
    folder = stored(about={"env": "table:Env"}, env={"size": 4, "a": "[1. 1.]"})
    env = configure("anakin", "--resume", folder, "--trust").config.env
    assert env.size == 4 and env.a.tolist() == [1, 1]


def test_a_configuration_of_another_type_is_one_line():
    for train, line in {
        "agent": "agent is 3; it must be an object of fields",
        "total_steps": "total_steps is '9'; it must be of type int",
    }.items():
        folder = stored(**{train: {"agent": 3, "total_steps": "9"}[train]})
        with pytest.raises(UserError, match=line):
            configure("anakin", "--resume", folder)
    for text in ("null", "{}", '{"config": 1, "versions": 2, "command": 3}'):
        (here_folder("odd") / "config.json").write_text(text)
        with pytest.raises(
            UserError, match="odd/config.json: damaged, or not the conf"
        ):
            configure("anakin", "--resume", "odd")


def test_a_run_starts_from_a_file_and_flags_win():
    folder = stored(batch_size=12)
    found = configure("anakin", "--config", f"{folder}/config.json", "--seed", "4")
    config = found.config
    assert (config.total_steps, config.batch_size, config.seed) == (77, 12, 4)
    assert config.agent.learning_rate == 0.5
    assert config.keep.run is None and config.keep.resume is None
    # Another agent's hyperparameters are not this one's.
    other = configure("anakin", "--config", f"{folder}/config.json", "--agent", "ppo")
    assert other.config.agent == ppo.Config() and other.config.batch_size == 12


def test_a_run_starts_from_yaml(here):
    (here / "a.yaml").write_text(
        "agent: ppo\nenv: catch\ntrain:\n  seed: 4\n  agent: {learning_rate: 0.25}\n"
        "  env: {rows: 7}\n  network: {hidden_sizes: [3, 4]}\n"
    )
    found = configure("anakin", "--config", "a.yaml", "--env.columns", "3")
    assert found.chosen.name == "ppo" and found.config.agent.learning_rate == 0.25
    assert dataclasses.asdict(found.config.env) == {"rows": 7, "columns": 3}
    assert found.config.network.hidden_sizes == (3, 4) and found.config.seed == 4
    (here / "c.yaml").write_text("train: {agent: {learning_rate: 2e-3}}\n")
    assert configure("anakin", "--config", "c.yaml").config.agent.learning_rate == 2e-3
    (here / "b.yaml").write_text("train: {seed: 5}\n")
    assert configure("sebulba", "--config", "b.yaml").config.seed == 5


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("- 1", "must be as a run's config.json"),
        ("train: 3", "must be as a run's config.json"),
        ("agent: 3", "must be as a run's config.json"),
        ("agents: ppo", "must be as a run's config.json"),
        ("a: [", "cannot be read"),
        ("train: {sede: 1}", "--config a.yaml: sede is unknown to this version"),
        ("train: {sede: 1}", "written it); did you mean 'seed'?"),
        ("train: {seed: x}", "seed is 'x'; it must be of type int"),
        ("train: {agent: {learning_rate: -1}}", "agent.learning_rate is -1"),
        ("env: nowhere", "unknown name 'nowhere'"),
        ("command: sebulba train\nconfig: {agent: ppo}", "a run of sebulba, not of"),
    ],
)
def test_a_bad_file_is_one_line(here, text, line):
    (here / "a.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        configure("anakin", "--config", "a.yaml")
    assert line in str(error.value) and "\n" not in str(error.value)


@pytest.mark.timeout(60)
def test_a_pipe_is_no_file(here):
    os.mkfifo(here / "a.yaml")
    with pytest.raises(UserError, match="--config a.yaml: not a regular file"):
        configure("anakin", "--config", "a.yaml")


@pytest.mark.parametrize("name", ["a.json", "a.yaml"])
def test_a_file_nested_too_deep_is_one_line(here, name):
    (here / name).write_text("[" * 100_000 + "]" * 100_000)
    with pytest.raises(
        UserError, match=rf"--config {name}: cannot be read: .*recursion"
    ):
        configure("anakin", "--config", name)


MODULES = {
    "steals": "open('stolen', 'w').close()\nclass Config: ...\ndef make_agent(): ...",
}


@pytest.mark.parametrize(
    ("program", "about", "flag"),
    [
        ("anakin", {"env": "steals:Env"}, "--env steals:Env"),
        ("anakin", {"agent": "steals"}, "--agent steals"),
        ("anakin", {"network": "steals:net"}, "--network steals:net"),
        ("sebulba", {"env": "jax:steals:Env"}, "--env jax:steals:Env"),
        ("sebulba", {"env": "dm:steals:Env"}, "--env dm:steals:Env"),
        ("sebulba", {"env": "gym:steals:Env-v0"}, "--env gym:steals:Env-v0"),
    ],
)
@pytest.mark.parametrize("how", ["resume", "config", "evaluate", "render", "load"])
def test_a_folder_alone_runs_no_code(here, program, about, flag, how):
    (here / "steals.py").write_text(MODULES["steals"])
    folder = stored(program, about=about)
    owner = COMMANDS[program]

    def attempt(*flags):
        if how in ("evaluate", "render"):
            getattr(owner, how)([folder, *flags])
        elif how == "load":
            loading.restore(folder, trust=bool(flags))
        else:
            path = folder if how == "resume" else f"{folder}/config.json"
            configure(program, f"--{how}", path, *flags)

    if how == "load":  # it makes no environment; old runs without specs are refused
        with pytest.raises(UserError):
            attempt()
        assert not (here / "stolen").exists()
        return
    with pytest.raises(UserError, match=f"run.* names code to import, {flag}; if you"):
        attempt()
    assert not (here / "stolen").exists()
    for trust in (["--trust"], flag.split()):
        if how in ("evaluate", "render"):
            with pytest.raises(UserError, match="does not say what its agent sees"):
                attempt(*trust)  # the next step, before which nothing is imported
        else:
            with pytest.raises(UserError) as error:
                attempt(*trust)
            assert "names code to import" not in str(error.value)


def test_a_run_of_meta_train_has_no_agent():
    folder = stored("anakin", about={"agent": "lpg", "env": "lpg-tasks"}, rule={})
    for program, *flags in (
        ("anakin", "--resume", folder),
        ("sebulba", "--resume", folder),
        ("anakin", "--config", f"{folder}/config.json"),
    ):
        with pytest.raises(UserError, match="of meta-train, not of an agent: say anak"):
            configure(program, *flags)
    line = f"which has no agent but a rule: .* --update-rule {folder}/rule.safetensors"
    for attempt in (
        lambda: anakin_command.evaluate([folder]),
        lambda: anakin_command.render([folder]),
        lambda: exporting.export(folder, "x.safetensors"),
        lambda: podracer.load(folder),
    ):
        with pytest.raises(UserError, match=line):
            attempt()


def test_the_rule_of_a_population_is_code(here):
    """A folder that names one imports it with --trust only, or if the flag names it, too."""
    pbt = {"fields": ["learning-rate=1e-4..1e-2"], "rule": "raises:make"}
    train = {"population": 2, "pbt": pbt}
    contents = {"agent": "impala", "env": "catch", "train": train}
    text = json.dumps({"command": "anakin train", "versions": {}, "config": contents})
    (here / "several").mkdir()
    (here / "several" / "together.json").write_text(text)
    flags = "--resume", f"{here / 'several'}"
    with pytest.raises(UserError, match="names code to import, --pbt.rule raises:make"):
        configure("anakin", *flags)
    for trusted in (["--trust"], ["--pbt.rule", "raises:make"]):
        assert configure("anakin", *flags, *trusted).config.pbt.rule == "raises:make"


@pytest.mark.parametrize("about", [{"agent": "steals"}, {"network": "steals:net"}])
def test_load_imports_only_what_is_trusted(here, about):
    (here / "steals.py").write_text(MODULES["steals"])
    array = spec_json.encode(specs.DiscreteArray(3))
    seen = {"observation": array, "action": array, "frame_stack": 1}
    folder = stored(about=about | {"specs": seen}, network={}, interface={})
    with pytest.raises(UserError, match="run names code to import, --.* steals"):
        podracer.load(folder)
    assert not (here / "stolen").exists()
    with pytest.raises(Exception) as error:
        podracer.load(folder, trust=True)
    assert (here / "stolen").exists() and "names code" not in str(error.value)


@pytest.mark.parametrize(
    ("flags", "line"),
    [
        (
            "--agent missing",
            "unknown name 'missing'; known: batch_ppo, disco, dqn, impala, lpg, muzero, ppo, pqn",
        ),
        ("--agent fails", "module 'fails' fails while it is imported: ZeroDivisionErr"),
        ("--agent exits", "module 'exits' fails while it is imported: SystemExit: 3"),
        ("--agent needs", "No module named 'nowhere'"),
        ("--agent half", "module 'half' has no make_agent"),
        ("--agent plain", "plain.Config is no dataclass"),
        ("--env half:Nothing", "'half' has no 'Nothing'; known: Config"),
        ("--env half:Confg", "did you mean 'Config'?"),
        ("--env half:number", "half:number is 3; it must be a class or a function"),
        ("--env fails:Env", "module 'fails' fails while it is imported"),
        ("--env raises:make", "raises:make() fails without arguments: ValueError: no"),
        (
            "--env missing:Env",
            "'missing' in 'missing:Env' is neither a module in the current folder nor a lib",
        ),
        ("--env gymnaks:Env", "did you mean 'gymnax'?"),
        ("--env half:", "--env is 'half:'; it must be MODULE:NAME"),
        ("--env fields:Env", "its fields cannot be flags"),
        ("--network half", "--network is 'half'; it must be MODULE:NAME"),
        (
            "--network raises:make",
            "must be a function of (observation_spec, action_spec)",
        ),
        (
            "--network half:number",
            "must be a function of (observation_spec, action_spec",
        ),
    ],
)
def test_code_that_cannot_be_used_is_one_line(here, flags, line):
    (here / "fails.py").write_text("1 / 0")
    (here / "exits.py").write_text("import sys\nsys.exit(3)")
    (here / "needs.py").write_text("import nowhere")
    (here / "half.py").write_text("number = 3\nclass Config: ...")
    (here / "plain.py").write_text("class Config: ...\ndef make_agent(): ...")
    (here / "fields.py").write_text(
        "import dataclasses\n@dataclasses.dataclass\nclass Env:\n  a: 'Unknown' = 3"
    )
    (here / "raises.py").write_text("def make():\n    raise ValueError('no')")
    with pytest.raises(UserError) as error:
        configure("anakin", *flags.split())
    assert line in str(error.value)


def test_names_without_flags_are_answered_with_the_flags():
    line = "'ppo cartpole' needs flags: --agent ppo --env cartpole"
    with pytest.raises(UserError, match=line):
        configure("anakin", "ppo", "cartpole", "--quiet")


def test_a_flag_in_place_of_a_files_code_needs_no_trust(here):
    (here / "steals.py").write_text(MODULES["steals"])
    folder = stored(about={"env": "steals:Env"})
    path = f"{folder}/config.json"
    assert configure("anakin", "--config", path, "--env", "catch").env == "catch"
    with pytest.raises(UserError, match="names code to import"):
        configure("anakin", "--config", path, "--env", "")
    with pytest.raises(UserError, match="--env is catch, but run is impala on steals"):
        configure("anakin", "--resume", folder, "--env", "catch")
    assert not (here / "stolen").exists()


def test_an_unknown_name_of_ours_is_not_looked_for_as_a_module(here):
    (here / "ppo.py").write_text("1 / 0")
    assert (
        configure("anakin", "--agent", "ppo").chosen.algorithm.make_agent
        is ppo.make_agent
    )
