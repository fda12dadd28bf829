"""The examples of the pages run; the pages are whole.

`make docs` checks the site that is built from them.
"""

import dataclasses
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

import envs_jax
from anakin import adaptation
from anakin.command.flags import Train as AnakinTrain
from envs_jax import adapters
from podracer import networks
from podracer.agents import batch_ppo, dqn, impala, ppo, sac, td3
from podracer.runs import sinks
from podracer.transformations import interface, replay
from sebulba.command.flags import Train as SebulbaTrain
from sebulba.host_environments import options
from tests.interruptions import said_by_python

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
WITH_EXAMPLES = [DOCS / "environments.md", DOCS / "interface.md"]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
AT_ROOT = sorted(ROOT.glob("*.md"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())

# What GitHub takes for a list, and Python-Markdown, which makes the site, does not.
MISREAD = {
    r"\n\n {1,3}\S": "indent the paragraphs of a list item by four spaces",
    r"\n {1,3}([-*]|\d+\.) ": "indent a list in a list by four spaces",
    r"\n\n {4}.*(\n {4}.*)*\n([-*]|\d+\.) ": "put an empty line before the next item",
    r"\n(?!([-*]|\d+\.) |[ |#>]).+\n([-*]|1\.) ": "put an empty line before a list",
}

# for each example: the module that it needs if any, its code
EXAMPLE = re.compile(r"(?:<!-- needs (\w+) -->\n)?```python\n(.*?)```", re.DOTALL)
EXAMPLES = [
    pytest.param(
        *match.groups(),
        id=re.findall(r"^#+ (.*)", text[: match.start()], re.MULTILINE)[-1],
        marks=pytest.mark.shows(page),
    )
    for page in WITH_EXAMPLES
    for text in [page.read_text()]
    for match in EXAMPLE.finditer(text)
]


@pytest.mark.parametrize("needs, code", EXAMPLES)
def test_an_example_runs(needs, code, tmp_path):
    if needs:
        pytest.importorskip(needs)
    shorter = code.replace("1_000_000", "4_000")
    assert shorter != code
    printed = said_by_python(
        *("-c", shorter),
        folder=ROOT,
        output=tmp_path / "said",
        rank_promotion="allow",  # in other libraries
    )
    assert len(printed.splitlines()) >= 3


def test_examples_fit_on_a_screen():
    assert len(EXAMPLES) >= 6
    for example in EXAMPLES:
        lines = len(example.values[1].splitlines())
        assert lines <= 40, f"{example.id}: {lines} lines"


def test_a_call_of_the_readme_needs_no_other_import():
    call = "podracer.parallel.use_cpu_cores"
    assert f"`{call}(n)`" in (ROOT / "README.md").read_text()
    code = f"import podracer; {call}(1)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)


@pytest.mark.parametrize("page", PAGES, ids=[page.name for page in PAGES])
def test_links_point_to_files_and_headings(page):
    links = re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text())
    headings = re.findall(r"^#+ (.*)", page.read_text(), re.MULTILINE)
    anchors = {heading.lower().replace(" ", "-") for heading in headings}
    for link in links:
        file, _, anchor = link.partition("#")
        assert (page.parent / file).exists(), link
        assert file or anchor in anchors, link


@pytest.mark.parametrize("page", PAGES + AT_ROOT, ids=lambda page: page.name)
def test_lists_are_lists_on_the_site_too(page):
    text = re.sub(r"(?ms)^```.*?^```$", "", page.read_text())
    found = {hint: re.search(wrong, text) for wrong, hint in MISREAD.items()}
    assert not {hint: match[0] for hint, match in found.items() if match}


def test_the_site_has_every_page_once():
    nav = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]
    listed = []
    for part in nav:
        ((_, inner),) = part.items()
        pages = (
            [inner]
            if isinstance(inner, str)
            else [y for x in inner for y in x.values()]
        )
        listed += pages
    pages = [page.relative_to(ROOT / "docs").as_posix() for page in PAGES]
    assert sorted(listed) == sorted(pages + [page.name for page in AT_ROOT])


def test_the_notebooks_name_our_repository():
    repository = PYPROJECT["project"]["urls"]["Repository"]
    name = repository.removeprefix("https://github.com/")
    colab = f"https://colab.research.google.com/github/{name}/blob/main/colab/"
    for notebook in (ROOT / "colab").glob("*.ipynb"):
        text = notebook.read_text()
        assert colab + notebook.name in text
        assert {*re.findall(r"git\+([\w/:.-]+)", text)} == {repository}


def test_every_environment_of_ours_is_described():
    rows = re.findall(
        r"^\| `([^`]+)` ", (ROOT / "docs/built-in.md").read_text(), re.MULTILINE
    )
    assert rows == ["--env", *envs_jax.ENVIRONMENTS]


def test_the_flags_for_newcomers_exist():
    """Those in the right column of each table, by the names of the fields behind them."""
    text = (ROOT / "docs/coming-from.md").read_text()
    right = re.findall(r"^\|[^|]*\|(.*)\|$", text, re.MULTILINE)
    flags = {flag for cell in right for flag in re.findall(r"--([a-z][a-z.-]+)", cell)}
    configs = AnakinTrain, SebulbaTrain, impala.Config, ppo.Config, batch_ppo.Config
    configs += options.Options, adapters.PlaygroundOptions
    configs += dqn.Config, dqn.NetworkConfig, replay.Config, interface.Interface
    configs += sac.Config, sac.NetworkConfig, td3.Config, adaptation.Config
    fields = {
        field.name
        for config in (*configs, networks.Config, sinks.Config)
        for field in dataclasses.fields(config)
    }
    names = {flag.rpartition(".")[2].replace("-", "_") for flag in flags}
    names = {name.removeprefix("no_") for name in names}
    assert len(names) > 30
    assert names - fields == {"run"}  # the folder, of every command


@pytest.mark.shows(DOCS / "runs.md")
def test_the_examples_of_runs_follow_one_another(tmp_path):
    """A script and what uses its run, in a folder of their own."""
    text = (DOCS / "runs.md").read_text()
    code = "\n".join(re.findall(r"```python\n(.*?)```", text, re.DOTALL))
    shorter = code.replace("1_000_000", "8_000").replace("500_000", "4_000")
    assert shorter.count("8_000") == 1 == shorter.count("4_000")
    for _ in range(2):  # the second time it resumes, with nothing left to do
        printed = python("-c", shorter, folder=tmp_path)
    assert "nothing was left to do" in printed
    assert (tmp_path / "runs" / "mine" / "curve.png").exists()


def test_the_evaluation_of_runs_closes_its_environments(tmp_path, monkeypatch):
    """Those of other processes end no sooner than Python collects them, and with tracebacks."""
    text = (DOCS / "runs.md").read_text()
    (code,) = re.findall(r"```python\n([^`]*sebulba\.evaluate.*?)```", text, re.DOTALL)
    closed = []
    environment = SimpleNamespace(close=lambda: closed.append(True))
    monkeypatch.setattr("sebulba.evaluate", lambda *args, **options: (args, options))
    (tmp_path / "mine.py").write_text(code)
    evaluate = runpy.run_path(tmp_path / "mine.py")["evaluate"]
    found = evaluate("agent", "params", lambda thread: environment, episodes=3)
    assert found == (("agent", "params", environment), {"episodes": 3})
    assert closed == [True]


@pytest.mark.shows(DOCS / "tuning.md")
def test_the_examples_of_tuning_follow_one_another(tmp_path):
    """Its commands, a study of its own loop, and another tuner, in one folder."""
    text = (DOCS / "tuning.md").read_text()
    for command in re.findall(r"^anakin (tune .*)$", text, re.MULTILINE):
        shorter = command.replace("200000", "8000")
        shorter = re.sub(r"trials \d+", "trials 2", shorter).replace("her 8", "her 2")
        cores = () if "--resume" in command else ("--cores", "1")
        printed = python("-m", "anakin", *shorter.split(), *cores, folder=tmp_path)
        assert "train the best: anakin train --agent ppo --env catch" in printed
    backend, *others = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    python("-c", backend.partition("print(")[0], folder=tmp_path)
    code = "\n".join(others).replace("1_000_000", "8_000")
    shorter = code.replace("trials=20", "trials=2").replace("range(20)", "range(2)")
    printed = python("-c", shorter, folder=tmp_path)
    assert printed.count("'learning_rate': ") == 2
    assert (tmp_path / "runs" / "mine" / "trial-1" / "curve.png").exists()


@pytest.mark.shows(DOCS / "tour.md")
def test_the_loop_of_the_tour_runs(tmp_path):
    text = (DOCS / "tour.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    losses = [
        float(line.split()[1])
        for line in python("-c", code, folder=tmp_path).splitlines()
    ]
    assert len(losses) == 3 == len({*losses})


@pytest.mark.shows(DOCS / "update-rules.md")
def test_the_example_of_an_update_rule_trains(tmp_path):
    text = (DOCS / "update-rules.md").read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (tmp_path / "my_rule.py").write_text(code)
    command, *_ = re.findall(r"^anakin (.*--agent my_rule .*)$", text, re.MULTILINE)
    arguments = "-m", "anakin", *command.split(), "--total-steps=8000"
    assert "my_rule on catch: mean return" in python(*arguments, folder=tmp_path)


OWN_CODE = (DOCS / "own-code.md").read_text()
OWN_FILES = re.findall(
    r'```python\n("""(\w+)\.py: .*?)```\n\n```\n(.*?)```', OWN_CODE, re.DOTALL
)


@pytest.mark.shows(DOCS / "own-code.md")
@pytest.mark.parametrize(
    "code, name, commands", OWN_FILES, ids=[name for _, name, _ in OWN_FILES]
)
def test_a_file_of_your_own_trains(code, name, commands, tmp_path):
    """Saved as it is, with each of its commands, of which training is shorter."""
    if "import gymnasium" in code:
        pytest.importorskip("gymnasium")
    (tmp_path / f"{name}.py").write_text(code)
    lines = commands.splitlines()
    assert lines and all(name in line for line in lines)
    for line in lines:
        command, *words = shlex.split(re.sub(r" --total-steps \S+", "", line))
        shorter = ["--total-steps=4000"] if words[0] == "train" else []
        printed = python("-m", command, *words, *shorter, folder=tmp_path)
        if words[0] == "train":
            assert re.search(r"mean return -?\d", printed), line
        if words[0] == "evaluate":
            assert "succeeded" in printed
    assert (tmp_path / "runs").is_dir()


def test_the_page_of_own_code_has_every_kind():
    names = [name for _, name, _ in OWN_FILES]
    assert names == ["my_env", "reinforce_example", "my_network", "my_gym"]


def python(*arguments, folder):
    """What Python prints in a folder."""
    return said_by_python(*arguments, folder=folder, output=folder / "said")
