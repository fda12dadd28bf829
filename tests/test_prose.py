"""Language rules for docstrings, comments, strings and pages: spelling, and plain words.

The spelling is British with -ize (Oxford): behaviour and colour, but normalize, so that
prose agrees with our identifiers. Code and `quoted names` are not checked.
"""

import io
import itertools
import json
import pathlib
import re
import tokenize
from collections.abc import Callable, Iterator

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PATTERNS = (
    *("*.md", "docs/**/*.md", "colab/*.ipynb", "Makefile", "Dockerfile", "*.toml"),
    *("*.yml", "docs/*.py", "docs/*.css"),
    *("podracer/**/*.py", "anakin/**/*.py", "sebulba/**/*.py", "envs_jax/**/*.py"),
    *("benchmarks/**/*.py", "tests/**/*.py"),
)
FILES = sorted(
    path
    for pattern in PATTERNS
    for path in ROOT.glob(pattern)
    if path != pathlib.Path(__file__)  # quotes what it forbids
)

# What stands before "ise" in words that have no form in -ize.
ISE = re.compile(
    r"\w*w|(un|im|re|de)?(adv|rev|dev|superv|telev|improv|prov|v|r|ar|ra|pra|appra|no|po"
    r"|prec|conc|exc|inc|exerc|prom|comprom|prem|dem|surpr|enterpr|repr|appr|compr|pr|desp"
    r"|chast|advert|expert|treat|disgu|gu|cru|bru|merchand|franch|parad|m|cr|s)"
)
ISE_FORM = re.compile(
    r"(?<![a-z])([a-z]+?)is(e|ed|es|er|ers|ing|ation|ations)(?![a-z])", re.IGNORECASE
)
AMERICAN = {
    "analyz": "analys",
    "behavior": "behaviour",
    "cancel(?=ed|ing)": "cancell",
    "catalog(?!ue)": "catalogue",
    "center": "centre",
    "color": "colour",
    "favor": "favour",
    "fiber": "fibre",
    "flavor": "flavour",
    "gray": "grey",
    "honor": "honour",
    "label(?=ed|ing)": "labell",
    "model(?=ed|ing)": "modell",
    "neighbor": "neighbour",
}
PLAIN = {  # what not to write, and what to write instead
    r"(go|goes|going|gone|went) on (with|from)": "resume",
    r"goes on(?! (with|from))": "continues, or resumes",
    r"for ever": "deadlocks, hangs, or without a time limit",
    r"pretend(s|ed|ing)?|(CPU|cores) makes? up|to make up": "virtual CPU devices",
    r"(is|are|was|were|be) worth(?! \w+ing)": "mean return, or 'evaluates'",
    r"everything random": "random seed; equal seeds give identical runs",
    r"(published|its|their|our|own|\w+'s) numbers(?! of)": (
        "hyperparameters (of an algorithm), values, measurements"
    ),
    r"(?<!standard )(?<!absolute )deviations?": "standard deviation",
    r"told": "given, passed, reported, recorded",
    r"tells? of": "covers, reports",
    r"whoever": "name it: the caller, the thread, the environments that are ready",
    r"shall": "must, will, should",
    r"in (its|their) own time": "at its own pace, at different times",
    r"what (lies|sits|stands) between (an |the )?(agent|environment)s?": (
        "pre- and post-processing"
    ),
    r"cut in two": "interrupted",
    r"ends? well": "ends with exit code 0",
    r"(\w+s) made of \1": "functions from agent to agent, wrappers around environments",
    r"where (that|it|they) lies?": "the confidence interval, or 'where it is'",
    r"those that are names": "discrete",
    r"of one's own": "your own",
    r"steps down (a|the|them)": "update rules",
    r"an? (bit|file|folder|line|picture|row) an? \w+": "one ... per ...",
    r"keeps? the protocol": "follows the protocol",
    r"how (a|the|it|they|each) (run )?stands?": "status",
}
PLAIN = {
    re.compile(rf"(?<!\w)(?:{wrong})(?!\w)", re.IGNORECASE): right
    for wrong, right in PLAIN.items()
}


def spelling(text: str) -> Iterator[tuple[int, str]]:
    """British spelling with -ize; yields (position, message)."""
    for match in ISE_FORM.finditer(text):
        if not ISE.fullmatch(match[1].lower()):
            yield match.start(), f"{match[0]!r}: spell it {match[1]}iz{match[2]}"
    for wrong, right in AMERICAN.items():
        for match in re.finditer(rf"(?<![a-z]){wrong}", text, re.IGNORECASE):
            yield match.start(), f"{match[0]!r}: spell it {right}"


def plain(text: str) -> Iterator[tuple[int, str]]:
    """Plain technical English; yields (position, message)."""
    for wrong, right in PLAIN.items():
        for match in wrong.finditer(text):
            yield match.start(), f"{match[0]!r}: write {right}"


# The prose of a file is a text of the same length in which code is replaced by NOT_PROSE,
# so that words on both sides of code make no phrase, but words on two lines do.
NOT_PROSE = "\0"
NAMES = re.compile(r"`[^`\n]*`|https?://\S+|\]\([^)\n]*\)")
QUOTES = re.compile(
    r"""^[a-zA-Z]{0,2}("{3}|'{3}|"|')|("{3}|'{3}|"|')$|\\.""", re.DOTALL
)
BRACES = re.compile(r"\{[^{}]*\}")
PROSE = {"COMMENT", "STRING", "FSTRING_MIDDLE"}
QUOTE = {"FSTRING_START", "FSTRING_END"}  # from Python 3.12 on


def blank(text: str | re.Match) -> str:
    return re.sub(r"\S", NOT_PROSE, text if isinstance(text, str) else text[0])


def spaces(match: re.Match) -> str:
    return " " * len(match[0])


def comments(text: str) -> str:
    """What follows "# " in each line of a configuration file or a code block."""

    def comment(line: str) -> str:
        code, mark, rest = line.partition("# ")
        return blank(code) + " " * len(mark) + NAMES.sub(blank, rest)

    return "".join(map(comment, text.splitlines(keepends=True)))


def markdown(text: str) -> str:
    """All but names and, in code blocks, all but comments."""
    parts = re.split(r"(?ms)(^```.*?^```$)", text)  # the blocks have odd indices
    kept = [comments(x) if i % 2 else NAMES.sub(blank, x) for i, x in enumerate(parts)]
    return "".join(kept)


def python(text: str) -> str:
    """Comments and strings; a string without a space is a name."""
    text = re.sub(r"(?m)^ *%[a-z]+ .*", "", text)  # a notebook's commands
    lines = [*io.StringIO(text)]
    starts = [0, *itertools.accumulate(map(len, lines))]
    kept = [*blank(text)]
    for token in tokenize.generate_tokens(iter(lines).__next__):
        kind = tokenize.tok_name[token.type]
        if kind in QUOTE or (kind in PROSE and re.search(r"\s", token.string)):
            start, end = (starts[row - 1] + column for row, column in token[2:4])
            kept[start:end] = prose_of(text[start:end], kind)
    return NAMES.sub(blank, "".join(kept))


def prose_of(token: str, kind: str) -> str:
    """A comment without #; a string without quotes, escapes and what is in braces."""
    if kind == "COMMENT":
        return token.replace("#", " ")
    token = QUOTES.sub(spaces, token)
    while BRACES.search(token):
        token = BRACES.sub(blank, token)
    return token


def pieces(path: pathlib.Path) -> Iterator[tuple[str, str]]:
    """(where, prose) of a file, or of each cell of a notebook."""
    name, text = path.relative_to(ROOT).as_posix(), path.read_text()
    if path.suffix == ".ipynb":
        for i, cell in enumerate(json.loads(text)["cells"]):
            read = markdown if cell["cell_type"] == "markdown" else python
            yield f"{name} (cell {i})", read("".join(cell["source"]))
    else:
        yield name, {".py": python, ".md": markdown}.get(path.suffix, comments)(text)


def violations(rule: Callable, where: str, prose: str) -> Iterator[str]:
    words, lines = [], []
    for number, line in enumerate(prose.split("\n"), 1):
        for word in line.split():
            words.append(word)
            lines += [number] * (len(word) + 1)  # of each character, and the space
    for position, message in rule(" ".join(words)):
        yield f"{where}:{lines[position]} {message}"


@pytest.mark.parametrize("rule", [spelling, plain])
def test_our_prose_follows_the_rule(rule):
    found = [
        violation
        for path in FILES
        for where, prose in pieces(path)
        for violation in violations(rule, where, prose)
    ]
    assert not found, "\n".join([rule.__doc__, *found])


@pytest.mark.parametrize(
    "rule, read, text, place, wrong",
    [
        (spelling, python, "# a normalised reward", 1, "normalised"),
        (spelling, python, 'x = 1\n"""It\noptimises."""', 3, "optimises"),
        (spelling, python, 'f"a {x} colorful board"', 1, "color"),
        (spelling, markdown, "The neighbors\nof a center", 1, "neighbor"),
        (spelling, markdown, "```\nmake demo  # its behavior\n```", 2, "behavior"),
        (spelling, comments, "all:  # a catalog", 1, "catalog"),
        (plain, python, "# It goes on\n# with a run", 1, "goes on with"),
        (plain, python, '"""What an agent\nis worth."""', 2, "is worth"),
        (plain, python, 'x = ("The run " "goes on")', 1, "goes on"),
        (plain, python, 'x = (f"{y} runs for " f"ever, {z} says")', 1, "for ever"),
        (plain, python, "# the initial deviation", 1, "deviation"),
        (plain, markdown, "Agents are told\nfor ever", 2, "for ever"),
        (plain, markdown, "BatchPPO's numbers", 1, "BatchPPO's numbers"),
        (plain, markdown, "agents made of agents", 1, "agents made of agents"),
        (plain, markdown, "a row a step", 1, "a row a step"),
    ],
)
def test_a_rule_notices(rule, read, text, place, wrong):
    found = [*violations(rule, "here", read(text))]
    assert any(x.startswith(f"here:{place} {wrong!r}") for x in found), found


@pytest.mark.parametrize(
    "rule, read, text",
    [
        (spelling, python, 'plot(color="color", behavior=normalise)  # no `color`'),
        (spelling, python, "# otherwise, revise the precise noise of this exercise"),
        (spelling, python, "# normalize, optimizer, size; colour and behaviour"),
        (spelling, python, "%pip install catalog\nx = 1"),
        (
            spelling,
            markdown,
            "`normalise` https://center.org [here](color.md) catalogue",
        ),
        (spelling, markdown, "```python\ncolor = center\n```"),
        (plain, python, "told = shall  # the standard\n# deviation"),
        (plain, python, 'f"the {told} {x if {shall} else 0} value"'),
        (plain, python, '"the run goes"\nrun()\n"on with care"'),
        (plain, markdown, "The numbers of steps are worth reading; go on to `told`."),
    ],
)
def test_a_rule_lets_pass(rule, read, text):
    assert not [*violations(rule, "here", read(text))]
