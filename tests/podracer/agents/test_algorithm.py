"""What a module may offer: read once, and refused in one line where it is wrong."""

import dataclasses
from types import ModuleType

import pytest

from podracer import command, networks
from podracer.agents import AGENTS, algorithm, batch_ppo, from_flags, impala
from podracer.agents.algorithm import Preset
from podracer.errors import UserError
from podracer.metrics import VOCABULARY
from podracer.transformations.replay import Config as Replay


@dataclasses.dataclass(frozen=True)
class Config:
    step_size: float = 0.1
    total_steps: int | None = None


def module(**offered):
    """A user's module `mine` with these attributes."""
    mine = ModuleType("mine")
    vars(mine).update({"Config": Config, "make_agent": print} | offered)
    return mine


@pytest.fixture
def mine(monkeypatch):
    """Puts the module where `--agent mine` finds it."""

    def install(**offered):
        monkeypatch.setattr(from_flags.imports, "exists", lambda name: True)
        made = module(**offered)
        monkeypatch.setattr(from_flags.imports, "module", lambda name, flag: made)

    return install


def choose(agent, preset=None, network=None):
    return from_flags.choose(agent, preset, network, unroll_length=3, batch_size=5)


def test_config_and_make_agent_are_enough():
    offered = algorithm.of(module())
    assert (offered.name, offered.config) == ("mine", Config())
    assert not (offered.off_policy or offered.presets or offered.metrics)
    assert offered.make_network is None
    assert offered.pinned(Config(0.5), networks.Config()) == Config(0.5)
    assert offered.upgraded({"step_size": 1.0}) == {"step_size": 1.0}


@pytest.mark.parametrize("name", AGENTS)
def test_our_agents_are_modules_like_any_other(name):
    offered = algorithm.of(AGENTS[name])
    assert offered.presets and offered.name == f"podracer.agents.{name}"
    same = offered.metrics.keys() & VOCABULARY.keys()
    assert all(offered.metrics[x] != VOCABULARY[x] for x in same)


@pytest.mark.parametrize(
    ("offered", "line"),
    [
        ({"make_agent": 3}, "module 'mine' has no make_agent; it needs Config, a data"),
        ({"Config": dict}, "mine.Config is no dataclass"),
        ({"Config": lambda: 1 / 0}, r"mine.Config\(\) fails: ZeroDivisionError"),
        ({"make_network": 3}, "mine.make_network is 3; it must be a function"),
        ({"pinned": {}}, "mine.pinned is {}; it must be a function"),
        ({"OFF_POLICY": "no"}, "mine.OFF_POLICY is 'no'; it must be True or False"),
        ({"PRESETS": [1]}, r"mine.PRESETS is \[1\]; it must be a dictionary"),
        (
            {"PRESETS": {"a": Config()}},
            r"PRESETS\['a'\] is Config\(.*a podracer.agents",
        ),
        (
            {"PRESETS": {"a": Preset(impala.Config(), 1, 1)}},
            r"PRESETS\['a'\].config is Config\(discount.*must be mine.Config",
        ),
        ({"RENAMED": {"old": "new"}}, r"RENAMED\['old'\] is 'new', which is no preset"),
        ({"METRICS": {"q": "mean"}}, r"METRICS\['q'\] is 'mean'; it must be \(unit, m"),
        ({"METRICS": {"steps": ("", "")}}, "METRICS has 'steps', which a run measures"),
    ],
)
def test_what_is_wrong_is_one_line(offered, line):
    with pytest.raises(UserError, match=line) as error:
        algorithm.of(module(**offered))
    assert "\n" not in str(error.value)


def test_a_users_module_has_presets_as_ours_do(mine):
    none = Preset(Config(0.2), 7, 8, replay=Replay(64))
    fast = Preset(Config(0.9), 4, 2)
    mine(PRESETS={"none": none, "fast": fast}, RENAMED={"quick": "fast"})
    start = choose("mine").preset
    assert start == none._replace(network=networks.Config())
    assert start.replay.capacity == 64  # an agent that needs replay has it unasked
    for name in ("fast", "quick"):
        assert choose("mine", name).preset.config == Config(0.9)
    with pytest.raises(
        UserError, match="--preset: unknown name 'slow'; known: fast, n"
    ):
        choose("mine", "slow")


def test_without_presets_the_defaults_are_the_commands(mine):
    mine()
    assert choose("mine").preset[:3] == (Config(), 3, 5)


def test_former_names_of_presets_are_accepted_but_not_shown():
    former, latest = (choose("batch_ppo", x) for x in ("head-ant", "latest-ant"))
    assert former.preset == latest.preset
    assert [x.known for x in latest.flags if x.flag == "preset"] == [
        ("none", *batch_ppo.PRESETS)
    ]
    shown = command.parse(Config(), ["--preset", "head-ant"], "train", former.flags)
    assert shown == Config()


def test_a_sweep_makes_a_config_without_its_checks():
    """Values may be traced, which a check cannot compare."""
    config = dataclasses.replace(impala.Config(), total_steps=9)
    other = from_flags.with_numbers(config, {"learning_rate": -1.0})
    assert other.learning_rate == -1.0 and other.total_steps == 9
    assert config.learning_rate == impala.Config().learning_rate
