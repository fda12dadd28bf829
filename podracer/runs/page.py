"""A comparison of runs as one HTML page that needs nothing beside it."""

import base64
import html
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from string import Template

from podracer import files
from podracer.errors import UserError
from podracer.runs import comparison, plot, videos
from podracer.runs.comparison import Compared, Group
from podracer.runs.listing import printable

MOST_CURVES = 12  # in one picture
MOST_VIDEOS = 32 * 2**20  # bytes of all videos of a page
MOST_COMMAND = 2000  # letters

# Run folders may come from anyone: all text is escaped, and the policy forbids a browser to run
# or fetch anything even so.
PAGE = Template("""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
img-src data:; media-src data:; style-src 'unsafe-inline'">
<title>$title</title>
<style>
:root { color-scheme: light dark; --line: #d0d0d0; --head: #f2f2f2 }
@media (prefers-color-scheme: dark) { :root { --line: #444; --head: #262626 } }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 68rem; margin: 0 auto; padding: 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.2rem; margin-top: 2rem }
.box { overflow-x: auto }
table { border-collapse: collapse; font-size: .9rem }
th, td { border: 1px solid var(--line); padding: .3rem .6rem; text-align: left; \
white-space: nowrap }
th { background: var(--head) }
figure { margin: 1rem 0 }
figure img.curves { min-width: 34rem; width: 100%; max-width: 56rem; background: white }
figure img, video { max-width: 100% }
pre { overflow-x: auto; padding: .6rem; background: var(--head); font-size: .85rem }
</style>
</head>
<body>
<h1>$title</h1>
$body
</body>
</html>
""")


def write(groups: Sequence[Group], path: Path) -> list[str]:
    """Writes the page; returns a line about each video that is left out.

    Raises UserError where it cannot write.
    """
    count = sum(len(group.runs) for group in groups)
    shown, left_out = _videos(run for group in groups for run in group.runs)
    parts = [
        _section("Groups", _table(comparison.group_table(groups)), GROUPS),
        *_curves(groups),
        _section("Hyperparameters that differ", _differences(groups)),
        _section("Runs", _table(comparison.run_table(groups))),
        _list(comparison.notes(groups)),
        _section("Videos", shown + _list(left_out)) if shown or left_out else "",
        _section("Commands and versions", "\n".join(map(_origin, groups))),
    ]
    title = f"Comparison of {count} run{'s'[: count > 1]}"
    text = PAGE.substitute(title=title, body="\n".join(filter(None, parts)))
    with files.writing(path), files.atomic(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return left_out


GROUPS = (
    "Runs that differ in the seed alone are one group. A return is the mean of the runs' last "
    "100 episodes, with the 95 % interval over the runs (a percentile bootstrap) where there "
    "are two or more; an evaluation of a single run has its interval over episodes."
)


def _curves(groups: Sequence[Group]) -> Iterable[str]:
    """A picture for each environment, or several: returns of others are no comparison."""
    envs: dict[str, list[Group]] = {}
    for group in groups:
        envs.setdefault(group.runs[0].env, []).append(group)
    for env, inside in envs.items():
        for first in range(0, len(inside), MOST_CURVES):
            part = inside[first : first + MOST_CURVES]
            curves = {x.title: [run.points for run in x.runs] for x in part}
            png = io.BytesIO()
            plot.compare(curves).savefig(png, format="png")
            letters = f"{part[0].letter} to {part[-1].letter}"
            about = (
                f"Learning curves of {_text(letters if part[1:] else part[0].letter)}"
            )
            image = (
                f'<figure class="box"><img class="curves" alt="{about}" '
                f'src="{_data("image/png", png.getvalue())}"></figure>'
            )
            yield _section(f"Curves on {_short(env)}", image)


def _differences(groups: Sequence[Group]) -> str:
    rows = comparison.differences(groups)
    return _table(rows) if len(rows) > 1 else "<p>None.</p>"


def _origin(group: Group) -> str:
    """The commands and versions of a group's runs, those that are equal once."""
    lines = dict.fromkeys(
        (
            _text(run.command[:MOST_COMMAND]),
            _text(
                ", ".join(f"{k} {v}" for k, v in run.versions.items())[:MOST_COMMAND]
            ),
        )
        for run in group.runs
    )
    return "\n".join(
        f"<h3>{_text(group.title)}</h3>\n<pre>{command}</pre>\n<p>{versions}</p>"
        for command, versions in lines
    )


def _videos(runs: Iterable[Compared]) -> tuple[str, list[str]]:
    """The videos in the folders of runs, and a line about each that is left out."""
    shown, left_out, size = [], [], 0
    for path in (path for run in runs for path in videos.find(run.folder)):
        try:
            video = videos.read(path)
            if size + len(video.data) > MOST_VIDEOS:
                most = f"more than {MOST_VIDEOS:,} bytes of videos in one page"
                raise UserError(f"{printable(str(path))}: {most}")
        except UserError as error:
            left_out.append(f"{error}; left out")
            continue
        size += len(video.data)
        shown.append(_video(video))
    return "\n".join(shown), left_out


def _video(video: videos.Video) -> str:
    source, name = _data(video.kind, video.data), _text(str(video.path))
    if video.kind.startswith("image"):
        shown = f'<img alt="{name}" src="{source}">'
    else:
        shown = f'<video controls loop muted playsinline src="{source}"></video>'
    return f"<figure>{shown}<figcaption>{name}</figcaption></figure>"


def _data(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _section(title: str, content: str, about: str = "") -> str:
    about = f"<p>{_text(about)}</p>\n" if about else ""
    return f"<h2>{_text(title)}</h2>\n{about}{content}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    head, *others = rows
    lines = [_row("th", head), *(_row("td", row) for row in others)]
    return '<div class="box"><table>\n' + "\n".join(lines) + "\n</table></div>"


def _row(tag: str, cells: Sequence[str]) -> str:
    return "<tr>" + "".join(f"<{tag}>{_text(x)}</{tag}>" for x in cells) + "</tr>"


def _list(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{_text(line)}</li>" for line in lines)
    return f"<ul>{items}</ul>" if lines else ""


def _short(text: str) -> str:
    return printable(text[: comparison.MOST_LETTERS])


def _text(text: str) -> str:
    """Text of a run for the page, with nothing in it that a browser or an encoding would obey."""
    return html.escape(printable(text))
