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
PACKAGES = PYPROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")
INTERNAL = {"podracer.command"}  # not in the reference
LINK = re.compile(r"(?<=\]\()[^)#\s]+")
EXPORTS = re.compile(r"^__all__ = (\[.*?\])", re.DOTALL | re.MULTILINE)


def on_config(config):
    """Sets the repository's address, which only pyproject.toml has."""
    config.repo_url, config.repo_name = REPOSITORY, REPOSITORY.split("/", 3)[-1]


def on_files(files, config):
    """Adds the pages that are not in docs/."""
    for name in PAGES:
        files.append(File.generated(config, name, abs_src_path=str(ROOT / name)))


def on_page_markdown(markdown, page, **_):
    """Makes links to files of the repository lead to pages, or to the repository."""
    name = page.file.src_uri
    source = name if name in PAGES else f"docs/{name}"
    return LINK.sub(lambda match: site_link(source, match[0]), markdown)


def site_link(source, link):
    """What the link in the file `source` is on the site; dead links stay as they are."""
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), link))
    if ":" in link or not (ROOT / path).exists():
        return link
    if path in PAGES or path.startswith("docs/"):
        target, page = path.removeprefix("docs/"), source.removeprefix("docs/")
        return posixpath.relpath(target, posixpath.dirname(page) or ".")
    return f"{REPOSITORY}/{'tree' if (ROOT / path).is_dir() else 'blob'}/main/{path}"


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
