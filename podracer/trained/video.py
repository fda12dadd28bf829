"""Videos of an agent at play, with its score: .gif, or .mp4 with ffmpeg."""

import dataclasses
import functools
import itertools
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import tyro

from podracer import files, imports
from podracer.errors import UserError, check_range
from podracer.metrics import human
from podracer.trained import filming
from podracer.trained.filming import Film

SMALLEST = 320  # pixels of a video's longer side: smaller pictures are enlarged
HOLD_SECONDS = 1.0  # the last picture of an episode is shown for so long
FASTEST = 50  # pictures per second: viewers slow down a .gif that is faster
TEXT = 15  # pixels of the letters of the score
BACKGROUND, FOREGROUND = (24, 24, 28), (235, 235, 235)  # the bar's colours


@dataclasses.dataclass(frozen=True)
class Config:
    """Plays episodes with a trained agent and writes them as a video."""

    run: tyro.conf.Positional[Path | None] = None
    """run folder"""
    out: tyro.conf.Positional[Path] = Path("episode.gif")
    """video file to write or replace: .gif or .mp4"""
    episodes: int = 1
    """number of episodes"""
    fps: float | None = None
    """pictures (environment steps) per second; default: the environment's own pace"""
    sampled: bool = False
    """sample actions as in training instead of acting greedily"""
    checkpoint: int | None = None
    """updates of the checkpoint to load; default: the newest"""
    max_steps: int = 1_000
    """environment steps after which the video ends even if the episodes have not"""
    seed: int = 0
    """random seed of the environment and of sampled actions"""

    def __post_init__(self):
        filming.check(self.episodes, self.max_steps, self.seed)
        if self.fps is not None:
            check_range("fps", self.fps, 0.1, 100.0)
        if self.out.suffix not in WRITERS:
            raise UserError(f"out is {self.out}; it must end in .gif or .mp4")


class Shot(NamedTuple):
    """A picture of the video."""

    picture: np.ndarray  # uint8 [H, W, 3]
    held: bool  # the last one of an episode


def write(film: Film, path: Path, fps: float | None = None) -> str:
    """Writes a film with the score under each picture; returns a one-line summary.

    Args:
      film: of at least one picture.
      path: ends in a key of `WRITERS`.
      fps: pictures per second; default: the film's own, at most `FASTEST`. Of a .gif it
        is the nearest that the format has, which the summary says.

    Raises:
      UserError: the file cannot be written, or ffmpeg is missing.
    """
    wanted = min(film.fps, FASTEST) if fps is None else fps
    fps = _gif_fps(wanted) if path.suffix == ".gif" else wanted
    nearest = "" if fps == wanted else f", the nearest to {wanted:g} that a .gif has"
    first = next(make_shots(film))
    with files.writing(path), files.atomic(path) as temporary:
        WRITERS[path.suffix](make_shots(film), temporary, fps)
    height, width, _ = first.picture.shape
    ended = sum(bool(frame.timestep.last()) for frame in film.frames)
    return (
        f"{path}: {len(film.frames)} frames, {width} x {height}, {fps:.4g} per second"
        f"{nearest}, {ended} whole episode{'s' * (ended != 1)}"
    )


def make_shots(film: Film, caption: str = "", text: int = TEXT) -> Iterator[Shot]:
    """The pictures of the video, each above the caption and its score, in letters of `text`
    pixels."""
    for frame, score in zip(film.frames, scores(film), strict=True):
        picture = _enlarged(_rgb(frame.picture))
        held = bool(frame.timestep.last()) or frame is film.frames[-1]
        yield Shot(_with_bar(picture, caption + score, text), held)


def scores(film: Film) -> Iterator[str]:
    """The line under each picture: return so far and steps, and which episode it is."""
    episode, total, steps = 0, 0.0, 0
    several = sum(bool(frame.timestep.first()) for frame in film.frames) > 1
    for _, timestep in film.frames:
        if timestep.first():
            episode, total, steps = episode + 1, 0.0, 0
        else:
            total, steps = total + float(timestep.reward), steps + 1
        line = f"return {human(total)}   step {steps}"
        yield f"episode {episode}   {line}" if several else line


def _rgb(picture: np.ndarray) -> np.ndarray:
    picture = np.asarray(picture)
    if picture.ndim == 2:
        picture = picture[..., None]
    return np.broadcast_to(picture, (*picture.shape[:2], 3))


def _enlarged(picture: np.ndarray) -> np.ndarray:
    """Whole multiples of the size, so that pixels stay square and sharp."""
    times = max(1, -(-SMALLEST // max(picture.shape[:2])))
    return picture.repeat(times, 0).repeat(times, 1)


def _with_bar(picture: np.ndarray, text: str, letters: int) -> np.ndarray:
    """The picture above a bar of text; both sides are even, as video formats want."""
    from PIL import Image, ImageDraw

    height, width, _ = picture.shape
    full = max(SMALLEST, width + width % 2)
    bar = 2 * (4 * letters * (1 + text.count("\n")) // 5)
    image = Image.new("RGB", (full, height + height % 2 + bar), BACKGROUND)
    image.paste(Image.fromarray(picture), ((full - width) // 2, 0))
    place, font = (8, image.height - bar / 2), _font(letters)
    ImageDraw.Draw(image).text(place, text, FOREGROUND, font=font, anchor="lm")
    return np.asarray(image)


@functools.cache
def _font(letters: int) -> Any:
    """The letters of matplotlib, which is always there."""
    from matplotlib import font_manager
    from PIL import ImageFont

    return ImageFont.truetype(font_manager.findfont("DejaVu Sans"), letters)


def _gif_fps(fps: float) -> float:
    """The nearest pace of a .gif, whose delays are whole hundredths of a second."""
    return 100 / max(100 // FASTEST, round(100 / fps))


def _gif(shots: Iterable[Shot], path: Path, fps: float) -> None:
    from PIL import Image

    pictures, seconds = [], []
    for shot in shots:
        # Palettes of its own keep each picture's colours; bytes instead of three.
        pictures.append(Image.fromarray(shot.picture).quantize(dither=0))
        seconds.append(HOLD_SECONDS if shot.held else 1 / fps)
    first, *rest = pictures
    first.save(
        path,
        "GIF",
        save_all=True,
        append_images=rest,
        duration=[10 * round(100 * x) for x in seconds],  # ms, in its units
        loop=0,
        disposal=1,
    )


def _mp4(shots: Iterable[Shot], path: Path, fps: float) -> None:
    try:
        import imageio_ffmpeg
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error}: write a .gif, or {imports.install('video')}"
        ) from error
    shots = iter(shots)
    first = next(shots)
    height, width, _ = first.picture.shape
    video = imageio_ffmpeg.write_frames(
        path,
        (width, height),
        fps=fps,
        output_params=["-f", "mp4"],  # the temporary file's name does not say
        macro_block_size=2,
    )
    with warnings.catch_warnings():  # the forked process becomes ffmpeg at once
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        video.send(None)
    for shot in itertools.chain([first], shots):
        for _ in range(max(1, round(HOLD_SECONDS * fps)) if shot.held else 1):
            video.send(np.ascontiguousarray(shot.picture))
    video.close()


WRITERS = {".gif": _gif, ".mp4": _mp4}
