"""gymnasium and dm_env environments by name: found, refused in one line, or failing."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import dm_env
import gymnasium
import numpy as np
import pytest

from podracer.errors import UserError
from sebulba import host_environments
from sebulba.host_environments.options import Options

LAST = dm_env.StepType.LAST

MODULE = """
    import os
    import sys

    import dm_env
    import gymnasium
    import numpy as np

    class Liar(gymnasium.Env):
        observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
        action_space = gymnasium.spaces.Discrete(2)

        def __init__(self, size=0):
            self.size = size

        def reset(self, *, seed=None, options=None):
            return np.float32([0, self.size]), {}

        def step(self, action):
            if self.size == 9:
                raise KeyboardInterrupt
            if self.size == 8:
                raise SystemExit(0)
            return np.float32([1, self.size]), 1.0, True, False, {}

    class Unknown(Liar):
        observation_space = gymnasium.spaces.Text(5)

    class Light(Liar):
        def __init__(self):
            super().__init__()
            assert "jax" not in sys.modules

    def light():
        assert "jax" not in sys.modules
        return Environment()

    gymnasium.register("Light-v0", Light)
    gymnasium.register("Liar-v0", lambda **given: Liar(**given))
    gymnasium.register("ByPath-v3", f"{__name__}:Liar", kwargs={"size": 1})
    gymnasium.register("Unknown-v0", f"{__name__}:Unknown")
    gymnasium.register("Nowhere-v0", "nowhere.at.all:Liar")

    class Environment(dm_env.Environment):
        def __init__(self, worth=1.0):
            self.worth = worth
        def reset(self):
            return dm_env.restart(np.float32(0))
        def step(self, action):
            return dm_env.termination(self.worth, np.float32(1))
        def observation_spec(self):
            return dm_env.specs.BoundedArray((), np.float32, 0, 1)
        def action_spec(self):
            return dm_env.specs.DiscreteArray(2)
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with a module that nobody has imported."""
    name = f"module_of_{tmp_path.name}"
    (tmp_path / f"{name}.py").write_text(textwrap.dedent(MODULE))
    (tmp_path / "broken_module.py").write_text("1 / 0")
    (tmp_path / "leaving_module.py").write_text("raise SystemExit('bye')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield name
    for key in ("Light-v0", "Liar-v0", "ByPath-v3", "Unknown-v0", "Nowhere-v0"):
        gymnasium.registry.pop(key, None)
    for module in (name, "broken_module", "leaving_module"):
        sys.modules.pop(module, None)


def make(name, arguments="{}", **options):
    options = {"step_seconds": 60.0, "start_seconds": 120.0} | options
    default = host_environments.default_options(name)
    options = type(default)(arguments=arguments, **options)
    return host_environments.make(name, 1, 3, 1, options)


def refused(name, arguments="{}"):
    """The one line that refuses it; none of it is what was typed."""
    with pytest.raises(UserError) as error:
        make(name, arguments).close()
    line = str(error.value)
    assert "\n" not in line
    return line.replace(name, "NAME")


WORKERS = """
from sebulba import host_environments

if __name__ == "__main__":
    for name in ("gym:{0}:Light-v0", "dm:{0}:light"):
        options = host_environments.default_options(name)
        host_environments.make(name, 1, 0, 1, options).close()
"""


def test_a_worker_does_not_import_jax(folder, tmp_path):
    """It takes seconds of each of many processes.

    In a process of its own: the fork server of the tests may have imported JAX.
    """
    (tmp_path / "made.py").write_text(WORKERS.format(folder))
    root = str(Path(__file__).parents[3])
    done = subprocess.run(
        [sys.executable, "made.py"],
        env=os.environ | {"PYTHONPATH": root},
        timeout=120,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize(("key", "shown"), [("Liar-v0", 0.0), ("ByPath-v3", 1.0)])
def test_a_module_of_the_current_folder_registers_an_environment(folder, key, shown):
    environment = make(f"gym:{folder}:{key}")
    try:
        assert folder in sys.modules
        first = environment.reset()
        assert first.observation.tolist() == [[0.0, shown]]
        after = environment.step(np.zeros(1, np.int32))
        assert after.observation.tolist() == [[1.0, shown]]
        assert (after.step_type, after.reward, after.discount) == (LAST, 1.0, 0.0)
    finally:
        environment.close()


def test_a_dm_env_environment_of_the_current_folder(folder):
    environment = make(f"dm:{folder}:Environment", '{"worth": 2.5}')
    try:
        environment.reset()
        assert environment.step(np.zeros(1, np.int32)).reward == 2.5
    finally:
        environment.close()


def test_what_a_name_leads_to_is_checked(folder):
    of = f"gym:{folder}:"
    assert "gymnasium has no environment 'Lier-v0'; did you mean 'Liar" in refused(
        of + "Lier-v0"
    )
    unregistered = f"{folder} must call gymnasium.register with this id"
    assert unregistered in refused(of + "Lier-v0")
    assert "observations Text" in refused(of + "Unknown-v0")
    assert "supported are Box, Discrete, MultiDiscrete" in refused(of + "Unknown-v0")
    assert "cannot be made: No module named 'nowhere'" in refused(of + "Nowhere-v0")
    for name in (of + "ByPath-v3", f"dm:{folder}:Environment"):
        line = refused(name, '{"nope": 1}')
        assert "got an unexpected keyword argument 'nope'" in line


def test_a_module_that_fails_is_one_line(folder):
    line = refused("dm:broken_module:make")
    assert "importing broken_module raised ZeroDivisionError: division by" in line
    assert "broken_module.py, line 1)" in line
    assert "raised SystemExit: bye" in refused("gym:leaving_module:X-v0")


@pytest.mark.parametrize(
    ("name", "arguments", "line"),
    [
        (
            "dm:os:getcwd",
            "{}",
            "is no dm_env.Environment: name a function that returns",
        ),
        ("dm:os:system", "{}", "missing a required argument: 'command'"),
        ("dm:math:hypot", "{}", "0.0 is no dm_env.Environment"),
        ("dm:.:x", "{}", "'.' is no module's name"),
        ("dm::x", "{}", "'' is no module's name"),
        ("dm:math:", "{}", "write dm:MODULE:FUNCTION"),
        ("dm:math:pi", "{}", "math has no function 'pi'"),
        ("dm:math:sqrt", '{"nope": 1}', "--env.arguments is {'nope': 1}"),
        ("gym:a:b:c", "{}", "'a:b' is no module's name"),
        ("gym:", "{}", "gymnasium has no environment ''"),
        ("gym:CartPole-v1", '{"nope": 1}', "unexpected keyword argument 'nope'"),
        ("gym:CartPole-v1", "1", "arguments is '1'; it takes a JSON object"),
    ],
)
def test_bad_names_and_arguments_are_one_line(name, arguments, line):
    assert line in refused(name, arguments)


@pytest.mark.parametrize(
    ("size", "raised"), [(9, "KeyboardInterrupt"), (8, "SystemExit")]
)
def test_an_environment_cannot_end_the_run_as_the_user_does(folder, size, raised):
    name = f"gym:{folder}:Liar-v0"
    environment = make(name, f'{{"size": {size}}}', check_bounds=False)
    try:
        environment.reset()
        with pytest.raises(RuntimeError, match=f"environment raised {raised}") as error:
            environment.step(np.zeros(1, np.int32))
        assert environment.lost_episodes() == 0  # it was not taken for a dead process
    finally:
        environment.close()
    notes = "".join(error.value.__notes__)
    assert name in notes and f"raise {raised}" in notes  # the environment's line


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("gym:CartPol-v1", "did you mean 'CartPole-v1'"),
        ("gym:nowhere:CartPole-v1", "No module named 'nowhere'; is its package"),
        ("dm:nowhere:make", "No module named 'nowhere'"),
        ("dm:math:nothing", "math has no function 'nothing'"),
        ("dm:math", "write dm:MODULE:FUNCTION"),
    ],
)
def test_a_name_that_leads_nowhere_is_one_line(name, line):
    with pytest.raises(UserError, match=line) as error:
        host_environments.default_options(name)
    assert "\n" not in str(error.value)


def test_arguments_are_json():
    with pytest.raises(UserError, match="arguments is .*; it takes a JSON object"):
        host_environments.make("gym:CartPole-v1", 1, 0, 1, Options(arguments="size=5"))
