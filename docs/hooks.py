"""Hooks of mkdocs: pages outside docs/, links as they are on GitHub, a complete reference."""

import ast
import posixpath
import re
import tomllib
from pathlib import Path

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

ROOT = Path(__file__).parents[1]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
REPOSITORY = PYPROJECT["project"]["urls"]["Repository"]
HAS_ADDRESS = "YOUR_ACCOUNT" not in REPOSITORY
PACKAGES = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
INTERNAL = {"podracer.command"}  # not in the reference
BOOST = {  # how much more a page, or those of a folder, count than others with the same words
    "README.md": 2,
    "own-code.md": 4,
    "runs.md": 2,
    "CHANGELOG.md": 0.2,
    "api": 0.5,
    "results": 0.5,
    "results/learning": 0.2,
}
GROUPS = "results/learning.md"  # on the site each of its groups is a page of its own
LINK = re.compile(r"(?<!!)\[([^\]\[]*)\]\(([^)#\s]+)(#[^)\s]*)?\)")
PICTURE = re.compile(r"(?<=\]\()[^)#\s]+(?=\))")
ANCHOR = re.compile(r"\]\(#([\w-]+)\)")
EXPORTS = re.compile(r"^__all__ = (\[.*?\])", re.DOTALL | re.MULTILINE)
COMMAND = re.compile(r"^- (.*): `(.*)`$", re.MULTILINE)
INLINE_CODE = re.compile(r"<code>([^<]*)</code>")
FLAG = re.compile(r"(?<![\w-])--?[a-z][\w.-]*")
FOLDER = re.compile(r"(?<=\w)/(?=\w)")


def on_config(config):
    """Sets the repository's address, which only pyproject.toml has, once it is known."""
    if HAS_ADDRESS:
        config.repo_url, config.repo_name = REPOSITORY, REPOSITORY.split("/", 3)[-1]


def on_files(files, config):
    """Adds the pages that are not in docs/, and one for each group of GROUPS."""
    for name in PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))
    for group, text in groups().items():
        title, body = f"# What agents learn: {group}", text.replace("](learning/", "](")
        back = "All groups: [What agents learn](../learning.md)"
        page = File.generated(
            config, group_page(group), content=f"{title}\n{body}\n{back}\n"
        )
        files.append(page)


def on_page_markdown(markdown, page, **_):
    """Makes links to files of the repository lead to pages, or to the repository."""
    name = page.file.src_uri
    boost = BOOST.get(name) or BOOST.get(posixpath.dirname(name))
    if boost:
        page.meta.setdefault("search", {})["boost"] = boost
    if name == GROUPS:
        markdown = overview(markdown)
    if name.startswith("results/"):
        markdown = COMMAND.sub(r"\1:\n\n```\n\2\n```\n", markdown)
    source = name if name in PAGES else f"docs/{name}"
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    for i in range(0, len(parts), 2):  # all but blocks of code
        parts[i] = LINK.sub(
            lambda match: site_link(source, *match.groups("")), parts[i]
        )
        parts[i] = PICTURE.sub(lambda match: site_path(source, match[0]), parts[i])
    return "".join(parts)


def on_page_content(html, **_):
    """Keeps lines from breaking inside a flag, and lets them break after a folder of a path.

    In a table GitHub wants a bar in code to be escaped, and Python-Markdown shows how it is.
    """

    def broken(match):
        code = match[1].replace(r"\|", "|")
        flags = FLAG.sub(r'<span class="flag">\g<0></span>', code)
        return f"<code>{FOLDER.sub('/<wbr>', flags)}</code>"

    return INLINE_CODE.sub(broken, html)


def site_link(source, text, link, anchor):
    """What the link in the file `source` is on the site; dead links stay as they are.

    A file of the repository is its path in words as long as the repository has no address.
    """
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if path == f"docs/{GROUPS}" and anchor[1:] in groups():
        link, anchor = site_path(source, f"{link[:-3]}/{anchor[1:]}.md", made=True), ""
        return f"[{text}]({link})"
    target = site_path(source, link)
    if target.startswith(REPOSITORY) and not HAS_ADDRESS:
        return text if " " in text else f"`{path}`"
    return f"[{text}]({target}{anchor})"


def site_path(source, link, made=False):
    """Where a file is on the site; `made`: it is there only."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if ":" in link or not (made or (ROOT / path).exists()):
        return link
    if path in PAGES or path.startswith("docs/"):
        target, page = path.removeprefix("docs/"), source.removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(page) or ".")
    return f"{REPOSITORY}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"


def groups():
    """The sections of GROUPS by their headings."""
    _, *parts = re.split(
        r"^## ", (ROOT / "docs" / GROUPS).read_text(), flags=re.MULTILINE
    )
    return {name: text for name, _, text in (part.partition("\n") for part in parts)}


def group_page(group):
    return f"{GROUPS.removesuffix('.md')}/{group}.md"


def overview(markdown):
    """The page GROUPS with a row for each task in place of its groups."""
    rows = [
        "| group | environment | agent | steps | mean return | 95 % interval | seeds |"
    ]
    rows.append("|---" * 7 + "|")
    for group, text in groups().items():
        table = re.findall(r"^\| (.*) \|$", text, re.MULTILINE)
        for line in table[1:]:
            env, agent, steps, _, mean, spread, _, seeds, *_ = line.split(" | ")
            link = f"[{group}](learning/{group}.md)"
            count = len(seeds.split(", "))
            rows.append(
                f"| {link} | {env} | {agent} | {steps} | {mean} | {spread} | {count} |"
            )
    head = markdown.partition("\n## ")[0]
    head = ANCHOR.sub(r"](learning/\1.md)", head)
    return "\n".join([head, "", *rows, ""])


def on_post_build(config):
    """Fails if the reference lacks a public name: one in the `__all__` of a package."""
    reference = config.plugins["mkdocstrings"].handlers.inventory
    for path in (x for name in PACKAGES for x in (ROOT / name).rglob("__init__.py")):
        package = ".".join(path.parent.relative_to(ROOT).parts)
        exports = EXPORTS.search(path.read_text())
        public = ast.literal_eval(exports[1]) if exports else []
        missing = [name for name in public if f"{package}.{name}" not in reference]
        if missing and package not in INTERNAL:
            raise PluginError(f"docs/api/ lacks {', '.join(missing)} of {package}")
