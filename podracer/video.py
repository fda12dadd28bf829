"""Videos of an agent at play: .gif, or .mp4 with ffmpeg."""

import dataclasses
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import tyro

from podracer import run_folder
from podracer.errors import UserError, check_at_least_one, check_range

SMALLEST = 240  # pixels of a video's longer side: smaller pictures are enlarged


@dataclasses.dataclass(frozen=True)
class Config:
    """Plays one episode with a trained agent and writes it as a video."""

    run: tyro.conf.Positional[Path | None] = None
    """folder of the run"""
    out: tyro.conf.Positional[Path] = Path("episode.gif")
    """the video, a .gif or .mp4 file, which is replaced"""
    fps: float = 20.0
    """environment steps shown in a second"""
    sampled: bool = False
    """act as in training, with exploration, instead of greedily"""
    checkpoint: int | None = None
    """updates of the checkpoint to play, by default the newest"""
    max_steps: int = 1_000
    """environment steps after which the video ends, if the episode does not before"""
    seed: int = 0
    """of the environment and sampled actions"""

    def __post_init__(self):
        check_at_least_one(max_steps=self.max_steps)
        check_range("fps", self.fps, 0.1, 100.0)
        if self.out.suffix not in WRITERS:
            raise UserError(f"out is {self.out}; it must end in .gif or .mp4")


def write(frames: Sequence[np.ndarray], path: Path, fps: float) -> str:
    """Writes pictures (uint8 [H, W], [H, W, 1] or [H, W, 3]); returns a line on it.

    Raises UserError where it cannot.
    """
    frames = [_enlarged(_rgb(frame)) for frame in frames]
    with run_folder.writing(path), run_folder.atomic(path) as temporary:
        WRITERS[path.suffix](frames, temporary, fps)
    height, width, _ = frames[0].shape
    return f"{path}: {len(frames)} pictures, {width} x {height}"


def _rgb(frame: np.ndarray) -> np.ndarray:
    frame = np.asarray(frame)
    if frame.ndim == 2:
        frame = frame[..., None]
    return np.broadcast_to(frame, (*frame.shape[:2], 3))


def _enlarged(frame: np.ndarray) -> np.ndarray:
    """Each pixel as a square of them; sides are even, as video formats want."""
    times = max(1, -(-SMALLEST // max(frame.shape[:2])))
    frame = frame.repeat(times, 0).repeat(times, 1)
    height, width, _ = frame.shape
    return np.pad(frame, ((0, height % 2), (0, width % 2), (0, 0)), "edge")


def _gif(frames: list[np.ndarray], path: Path, fps: float) -> None:
    from PIL import Image

    first, *rest = map(Image.fromarray, frames)
    first.save(
        path, "GIF", save_all=True, append_images=rest, duration=1_000 / fps, loop=0
    )


def _mp4(frames: list[np.ndarray], path: Path, fps: float) -> None:
    try:
        import imageio_ffmpeg
    except ModuleNotFoundError as error:
        raise UserError(
            f"{error}: write a .gif, or pip install 'podracer[video]'"
        ) from error
    height, width, _ = frames[0].shape
    options = ["-f", "mp4"]  # the temporary file's name does not say
    video = imageio_ffmpeg.write_frames(
        path, (width, height), fps=fps, output_params=options, macro_block_size=2
    )
    with warnings.catch_warnings():  # the process that forks becomes ffmpeg at once
        warnings.filterwarnings("ignore", "os.fork", RuntimeWarning)
        video.send(None)
    for frame in frames:
        video.send(np.ascontiguousarray(frame))
    video.close()


WRITERS = {".gif": _gif, ".mp4": _mp4}
