"""The command line: a configuration, or exactly one line that says what is wrong."""

import dataclasses
import importlib
import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Literal

import pytest
import tyro

import anakin
import envs_jax
import podracer
import sebulba
from podracer.command import (
    check_not_empty,
    choose,
    dispatch,
    exits,
    filled,
    make_choice,
    parse,
    read,
)
from podracer.errors import UserError, nearest
from podracer.runs import run


@dataclasses.dataclass(frozen=True)
class Impala:
    """Learns off-policy."""

    learning_rate: float = 1e-3
    """step size at the first update"""
    clipping: Literal["abs_one", "none"] = "none"
    """of rewards"""
    decay: bool = True
    max_norm: float | None = None

    def __post_init__(self):
        if self.learning_rate < 0:
            raise UserError(f"learning_rate is {self.learning_rate}; at least 0")


@dataclasses.dataclass(frozen=True)
class Ppo:
    epochs: int = 4
    """passes over a trajectory"""
    lambda_: float = 0.95


@dataclasses.dataclass(frozen=True)
class Catch:
    rows: int = 10
    """height of the board, in pixels"""


@dataclasses.dataclass(frozen=True)
class Network:
    hidden_sizes: tuple[int, ...] = (64, 64)


@dataclasses.dataclass(frozen=True)
class Train:
    """Trains an agent.

    Leaves a run folder.
    """

    agent: Any
    env: Any
    network: Network = Network()
    batch_size: int = 256
    """environments, over all cores"""
    overwrite: bool = False

    def __post_init__(self):
        if self.batch_size < 1:
            raise UserError(f"batch_size is {self.batch_size}; at least 1")


AGENTS = {"impala": Impala(), "ppo": Ppo()}
ENVIRONMENTS = {"catch": Catch()}
PRESETS = {"small": 32, "large": 1024}


def train(argv):
    agent = choose(argv, "agent", AGENTS, "impala", "the algorithm")
    env = choose(argv, "env", ENVIRONMENTS, "catch")
    preset = choose(argv, "preset", PRESETS, "large")
    default = Train(AGENTS[agent.name], ENVIRONMENTS[env.name])
    default = dataclasses.replace(default, batch_size=PRESETS[preset.name])
    return parse(default, argv, "anakin train", (agent, env, preset))


LINE = (
    "--agent impala --env catch --agent.learning-rate 1e-2 --env.rows 5 "
    "--network.hidden-sizes 32 16 --batch-size 8"
)


@pytest.mark.parametrize(
    "line",
    [
        LINE,
        LINE.replace("--agent impala", "--agent=impala").replace("rate ", "rate="),
        LINE.replace("learning-rate", "learning_rate"),
        "--batch-size 8 --network.hidden-sizes 32 16 --env.rows 5 --agent.learning-rate .01",
        "--agent ppo --agent.learning-rate 0.01 " + LINE,  # the last one counts
    ],
)
def test_the_same_configuration_in_other_words(line):
    expected = Train(Impala(learning_rate=0.01), Catch(5), Network((32, 16)), 8)
    assert train(line.split()) == expected


def test_a_name_brings_its_fields_and_defaults():
    assert train([]) == Train(Impala(), Catch(), batch_size=1024)
    line = "--agent=ppo --agent.epochs 2 --preset small --overwrite"
    assert train(line.split()) == Train(Ppo(2), Catch(), batch_size=32, overwrite=True)


@pytest.mark.parametrize(
    "line_and_words",
    [
        # Names.
        (
            "--agent impla",
            "--agent: unknown name 'impla'; did you mean 'impala'? known: ",
        ),
        ("--agent=", "--agent: unknown name ''; known: impala, ppo"),
        ("--agent", "--agent: a name is missing; known: impala, ppo"),
        ("--agent --env catch", "--agent: a name is missing"),
        (
            "--preset larg",
            "--preset: unknown name 'larg'; did you mean 'large'? known: ",
        ),
        # Flags.
        ("--batch-siz 8", "--batch-siz: no such flag; did you mean '--batch-size'?"),
        ("--learning-rate 1", "; did you mean '--agent.learning-rate'?"),
        ("--agent.learnin_rate=1", "; did you mean '--agent.learning-rate'?"),
        ("--env.length 1", "--env.length: no such flag; known: --env.rows"),
        (
            "--agent ppo --agent.decay",
            "--agent.decay: no such flag; ",
            "--agent.epochs",
        ),
        (
            "--agent ppo --agent.lambd 1",
            "--agent.lambd: no such flag; did you mean '--agent.lambda_'?",
        ),
        ("--presets large", "--presets: no such flag; did you mean '--preset'?"),
        ("-x", "-x: no such flag"),
        ("stray", "'stray': unexpected (see --help)"),
        ("--agent.decay False", "'False': unexpected after --agent.decay"),
        # Values.
        ("--batch-size 1.5", "--batch-size: ", "'1.5'", "environments, over all cores"),
        ("--batch-size", "--batch-size"),
        ("--agent.max-norm big", "--agent.max-norm: ", "['big']", "{None}|FLOAT"),
        ("--agent.clipping abs", "'abs'", "--agent.clipping", "'abs_one', 'none'"),
        ("--network.hidden-sizes 64 x", "--network.hidden-sizes: ", "x", "INT"),
        ("--agent.learning-rate -1", "error: agent: learning_rate is -1.0; at least 0"),
        ("--batch-size 0", "error: batch_size is 0; at least 1"),
    ],
    ids=lambda line_and_words: line_and_words[0],
)
def test_bad_input_is_one_line(line_and_words, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    line, *words = line_and_words
    with pytest.raises(SystemExit) as exit, exits("anakin"):
        train(line.split())
    assert exit.value.code == 2
    out, error = capsys.readouterr()
    assert not out
    assert error.startswith("anakin: error: ")
    assert error.count("\n") == 1
    assert all(word in error for word in words), error


@pytest.mark.parametrize("line", ["--help", "-h", "--agent ppo --help", "stray --help"])
def test_help(line, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit, exits("anakin"):
        train(line.split())
    assert exit.value.code == 0
    out, error = capsys.readouterr()
    assert not error
    assert out.startswith("usage: anakin train")
    mine, others = ("epochs", "learning-rate")[:: 1 if "ppo" in line else -1]
    for words in [
        "Trains an agent.",
        "--agent {impala,ppo}",
        "--env {catch}",
        "--preset {small,large}",
        "(default: large)",
        f"--agent.{mine}",
        "height of the board, in pixels (default: 10)",
        "(default: 1024)",
    ]:
        assert words in out
    assert f"--agent.{others}" not in out


def test_a_name_that_only_its_user_can_know():
    """EnvPool's games are too many to import for `--help`."""
    game = choose(["--env", "Pong-v5"], "env", (), "Breakout-v5")
    default = Train(Impala(), Catch())
    argv = ["--env", "Pong-v5", "--batch-size", "8"]
    assert game.name == "Pong-v5"
    assert parse(default, argv, "sebulba train", [game]).batch_size == 8


@pytest.mark.parametrize("flag", ["--run", "--nope=1", "-dash"])
def test_an_unknown_flag_in_place_of_an_argument_is_named(flag):
    @dataclasses.dataclass(frozen=True)
    class Play:
        run: tyro.conf.Positional[Path | None] = None
        seed: int = 0

    for argv in ([flag, "x"], ["--seed", "-1", flag], ["x", flag]):
        with pytest.raises(UserError) as error:
            parse(Play(), argv, "anakin evaluate")
        assert f"{error.value}" == f"{flag}: no such flag; known: --seed (see --help)"
    with pytest.raises(UserError, match="^--seed: invalid literal"):
        parse(Play(), ["--seed", "x"], "anakin evaluate")
    assert parse(Play(), ["--", flag], "anakin evaluate").run == Path(flag)


def test_flags_are_read_in_one_pass():
    argv = [
        "--env",
        "a",
        "--seed",
        "1",
        "--env=b",
        "--trust",
        "--agent.x",
        "2",
        "stray",
    ]
    names = {"env": (), "agent": (), "resume": ()}
    found = read(argv, names, switches=("trust", "quiet"))
    given = {"env": "b", "agent": None, "resume": None}
    assert found == given | {"trust": True, "quiet": False}
    for argv, line in {
        ("--agent", "--seed", "1"): "--agent: a name is missing; known: impala",
        ("--trust=1",): "--trust: takes no value",
    }.items():
        with pytest.raises(UserError, match=line):
            read(argv, {"agent": ["impala"]}, switches=["trust"])


@pytest.mark.parametrize(
    ("line", "name"),
    [
        (["--run", ""], "--run"),
        (["--run="], "--run"),
        (["--seed", "1", ""], "an argument"),
        ([""], "an argument"),
        (["a", "--name", "b", "", "c"], "an argument"),
    ],
)
def test_an_empty_argument_is_no_path(line, name):
    with pytest.raises(UserError, match=f"^{name} is empty"):
        check_not_empty(line)
    check_not_empty(["--run", "a", "--x=1", "b=", "=", "--"])


def test_values_of_another_type_are_refused():
    assert filled(Train(Impala(), Catch()), {"batch_size": 3}).batch_size == 3
    sizes = filled(Network(), {"hidden_sizes": [1, 2]})
    assert sizes == Network((1, 2))
    assert filled(Impala(), {"learning_rate": 1, "max_norm": None}).max_norm is None
    for values, line in [
        ({"learning_rate": "fast"}, "a.learning_rate is 'fast'; it must be of type f"),
        ({"learning_rate": True}, "a.learning_rate is True; it must be of type float"),
        ({"max_norm": True}, "a.max_norm is True; it must be of type float"),
        ({"clipping": "abs"}, "a.clipping is 'abs'; it must be of type Literal"),
        ({"decay": 1}, "a.decay is 1; it must be of type bool"),
        ({"nope": 1}, "a.nope is no field of tests.podracer.test_command.Impala"),
        ({"learning_rate": -1}, "a.learning_rate is -1"),
        ([], r"a is \[\]; it must be an object"),
    ]:
        with pytest.raises(UserError, match=f"^{line}"):
            filled(Impala(), values, "a.")


def test_objects_that_json_has_as_text_keep_their_defaults():
    """As library adapters have them: text with an address, which is another one next time."""

    class Physics:
        pass

    @dataclasses.dataclass(frozen=True)
    class Mine:
        physics: Any = dataclasses.field(default_factory=Physics)
        actions: tuple[Callable, ...] = (read, parse)
        size: int = 1

    written = json.loads(json.dumps(dataclasses.asdict(Mine()), default=str))
    mine = Mine()
    assert written["physics"] != str(mine.physics)
    assert filled(mine, written | {"size": 2}) == dataclasses.replace(mine, size=2)
    with pytest.raises(UserError, match="actions is .'other'.*must be of type"):
        filled(mine, {"actions": ["other"]})


def test_dispatch(capsys):
    called = []

    def train(argv):
        """Train an agent.

        At length.
        """
        called.append(argv)

    def evaluate(argv):
        """Evaluate a trained
        agent."""

    commands = {"train": train, "evaluate": evaluate}
    dispatch(commands, ["train", "--seed", "1"], "anakin")
    assert called == [["--seed", "1"]]
    dispatch(commands, [], "anakin")
    listed = capsys.readouterr().out.splitlines()
    assert listed[-2:] == [
        "  train     Train an agent.",
        "  evaluate  Evaluate a trained agent.",
    ]
    with pytest.raises(UserError, match="'trian'; did you mean 'train'?"):
        dispatch(commands, ["trian"], "anakin")


def test_nearest_of_many_names_no_crowd():
    assert nearest("xyz", ["a", "b"]) == "; known: a, b"
    games = [f"Game{number}-v5" for number in range(1000)]
    assert nearest("game7-v5", games) == "; did you mean 'Game7-v5'?"
    assert nearest("chess", games) == nearest("chess", []) == ""


def end(error=None):
    with exits("anakin"):
        if error:
            raise error


@pytest.mark.parametrize(
    "error, code, line",
    [
        (UserError("rows is 0;\n  at least 1"), 2, "error: rows is 0; at least 1"),
        (
            FloatingPointError("update 7: loss/value"),
            1,
            "stopped: update 7: loss/value",
        ),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError("466 GiB"), 2, "error: not enough memory: 466 GiB"),
    ],
)
def test_exits(error, code, line, capsys):
    with pytest.raises(SystemExit) as exit:
        end(error)
    assert exit.value.code == code
    assert capsys.readouterr() == ("", f"anakin: {line}\n")


def test_a_command_works_in_a_folder_that_was_removed(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    end()


def test_other_ends_are_left_alone():
    end()
    for error in (ValueError("a bug"), RuntimeError("a bug"), SystemExit(0)):
        with pytest.raises(type(error)):
            end(error)


@pytest.mark.core
@pytest.mark.parametrize(
    ("name", "command"), [("cuda", ["evaluate"]), ("banana", ["train", "--run"])]
)
def test_a_platform_without_devices_is_named(tmp_path, name, command):
    """Not the folder of the run that is evaluated, which is whole."""
    catch = envs_jax.make("catch")
    specs = run.encode_specs(catch.observation_spec(), catch.action_spec())
    config = {"agent": "ppo", "env": "catch", "train": {}, "specs": specs}
    kept = {"command": "anakin train", "versions": {}, "config": config}
    (tmp_path / "config.json").write_text(json.dumps(kept))
    folder = tmp_path if command == ["evaluate"] else tmp_path / "new"
    ended = subprocess.run(
        [sys.executable, "-m", "anakin", *command, str(folder)],
        env=os.environ | {"JAX_PLATFORMS": name},
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    *_, line = ended.stderr.splitlines()
    assert ended.returncode == 2, ended.stderr
    assert line.startswith(f"anakin: error: JAX_PLATFORMS is {name}, where JAX finds")
    assert line.endswith("unset it, or install what JAX needs there")


ON_A_TERMINAL = """
import fcntl, pathlib, signal, sys, termios, time
from podracer.command import stopping

fcntl.ioctl(0, termios.TIOCSCTTY)  # its controlling terminal
if sys.argv[2:] == ["nohup"]:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
with stopping() as asked:
    print("here", flush=True)
    deadline = time.monotonic() + 2
    while not asked() and time.monotonic() < deadline:
        time.sleep(0.01)
    if asked():
        print("more", flush=True)
pathlib.Path(sys.argv[1]).write_text(f"{asked()}")
"""


@pytest.mark.parametrize("how", ["", "nohup"])
def test_a_closed_terminal_stops_a_run_which_can_save(tmp_path, how):
    ours, its = os.openpty()
    file = tmp_path / "saved"
    process = subprocess.Popen(
        [sys.executable, "-c", ON_A_TERMINAL, str(file), *how.split()],
        start_new_session=True,
        stdin=its,
        stdout=its,
        stderr=subprocess.PIPE,
    )
    os.close(its)
    with process:
        with open(ours, "rb", 0) as shown:
            assert shown.readline() == b"here\r\n"
        error = process.communicate(timeout=60)[1]
    assert process.returncode == 0, error
    assert file.read_text() == f"{not how}"


WITH_A_THREAD = """
import atexit
import threading
import jax
from podracer.command import exits

wait = jax.jit(lambda n: jax.lax.fori_loop(0, n, lambda i, x: jax.numpy.sin(x), 0.5))
wait(1)

class Hanging(threading.Thread):
    may_hang = True

    def run(self):
        wait(30_000_000).block_until_ready()

atexit.register(print, "handled")

with exits("sebulba"):
    Hanging(daemon=True).start()
    {end}
"""


@pytest.mark.parametrize(
    ("end", "code", "line"),
    [
        ("pass", 0, ""),
        ("raise KeyboardInterrupt", 130, "sebulba: interrupted\n"),
        ("raise ValueError('a bug')", 1, "ValueError: a bug\n"),
    ],
)
def test_a_thread_that_hangs_changes_no_exit_code(end, code, line):
    """Python aborts where one returns from C++ while it ends."""
    ended = subprocess.run(
        [sys.executable, "-c", WITH_A_THREAD.format(end=end)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert ended.returncode == code and ended.stderr.endswith(line), ended.stderr
    assert (ended.stderr == line) == (code != 1)  # a traceback
    assert ended.stdout == "handled\n"


@dataclasses.dataclass(frozen=True)
class Numbers:
    steps: int = 1
    most: int | None = None
    rate: float = 1.0
    name: str = ""
    inner: Ppo = dataclasses.field(default_factory=Ppo)


def test_a_whole_number_may_have_an_exponent():
    argv = [
        "--steps",
        "1e6",
        "--most=2.5E3",
        "--rate",
        "1e-3",
        "--name",
        "1e6",
        "--inner.epochs",
        "3e0",
    ]
    assert parse(Numbers(), argv, "x") == Numbers(10**6, 2500, 1e-3, "1e6", Ppo(3))
    with pytest.raises(UserError, match="--steps"):
        parse(Numbers(), ["--steps", "1.5e0"], "x")


@dataclasses.dataclass(frozen=True)
class Many(Numbers):
    """Has many flags."""

    MAIN: ClassVar[tuple[str, ...]] = ("steps", "env")

    long: str = "x"
    """a sentence whose words are many, with learning-rate=1e-3,3e-3 among them that no line
    may break"""


def test_help_shows_the_flags_that_most_people_use_and_all_if_asked(
    capsys, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "80")
    choices = [make_choice("env", "catch", ["catch", "chase"])]

    def shown(*argv):
        with pytest.raises(SystemExit) as exit:
            parse(Many(), argv, "anakin train", choices)
        assert exit.value.code == 0
        out = capsys.readouterr().out
        assert all(len(line) < 80 for line in out.splitlines())
        return out

    short, whole = shown("--help"), shown("--help", "all")
    assert shown("--steps", "3", "-h").count("--") == short.count("--")
    assert short.startswith("usage: anakin train [OPTIONS]\n\nHas many flags.\n")
    assert "  --env {catch, chase}\n" in short and "  --steps INT\n" in short
    assert "anakin train --help all shows 8 flags" in short and "--most" not in short
    assert "  --most INT\n" in whole and "  --inner.epochs INT\n" in whole
    assert (
        "a sentence whose words are many, with learning-rate=1e-3,3e-3 among" in whole
    )


HELP = """
import sys
sys.argv = [sys.argv[1], "--help"]
__import__(f"{sys.argv[0]}.__main__").__main__.main()
assert "jax" not in sys.modules
"""


@pytest.mark.parametrize("program", ["anakin", "sebulba"])
def test_help_names_every_command_without_jax(program):
    said = subprocess.run(
        [sys.executable, "-c", HELP, program],
        env=os.environ | {"PYTHONPATH": os.getcwd()},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    lines = said.stdout.splitlines()[3:]
    listed = {name: line for name, line in (x.strip().split(maxsplit=1) for x in lines)}
    subcommands = importlib.import_module(f"{program}.command.subcommands").COMMANDS
    assert listed == {name: inspect.getdoc(x) for name, x in subcommands.items()}


@pytest.mark.parametrize("package", [podracer, anakin, sebulba])
def test_what_a_package_offers_is_there_and_completed_when_it_is_asked_for(package):
    assert dir(package) == sorted(package.__all__)
    for name in package.__all__:
        assert getattr(package, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        package.nothing  # noqa: B018
