"""The learning curve: a real PNG, whole or not at all, whatever the rows hold."""

import math
import os

import numpy as np
import pytest
from PIL import Image

from podracer.errors import UserError
from podracer.runs import plot


def row(steps, mean_return, episodes=1):
    return {"steps": steps, "episode_return": mean_return, "episodes": episodes}


def lines(picture):
    """The raw line's and the smooth line's points."""
    return [line.get_xydata() for line in picture.axes[0].lines][:2]


def draw(path, rows):
    plot.save(plot.curve(rows, "impala on catch"), path)
    with Image.open(path) as image:
        image.load()
        assert image.format == "PNG"
        return image.convert("L")


def test_a_png_with_a_curve_in_it(tmp_path):
    image = draw(tmp_path / "curve.png", [row(i * 1000, i) for i in range(100)])
    assert min(image.size) >= 500
    assert image.getextrema() == (0, 255)
    assert os.listdir(tmp_path) == ["curve.png"]


@pytest.mark.parametrize("rows", [[], [row(1, math.nan, 0)], [row(1, None, 0)] * 3])
def test_no_episode_yet(tmp_path, rows):
    picture = plot.curve(rows)
    assert [text.get_text() for text in picture.axes[0].texts] == [
        "no episode has finished"
    ]
    draw(tmp_path / "curve.png", rows)


def test_rows_without_episodes_are_left_out():
    raw, smooth = lines(plot.curve([row(1, 5.0), row(2, None, 0), row(3, math.nan, 0)]))
    assert raw.tolist() == smooth.tolist() == [[1, 5]]


def test_the_smooth_line_weighs_episodes():
    rows = [row(i, 0.0, episodes=9) for i in range(100)]
    rows[50] = row(50, 100.0, episodes=1)
    _, smooth = lines(plot.curve(rows))
    assert smooth[50, 1] == pytest.approx(100 / (4 * 9 + 1))
    assert smooth[[40, 60], 1].tolist() == [0, 0]


def test_a_constant_stays_constant_to_both_ends():
    _, smooth = lines(plot.curve([row(i, 3.0, 1 + i % 7) for i in range(300)]))
    assert smooth[:, 1] == pytest.approx(3.0)


def test_a_week_is_drawn_in_few_points(tmp_path):
    rows = [row(i * 10**6, i % 1000) for i in range(100_000)]
    raw, _ = lines(plot.curve(rows))
    assert len(raw) == plot.MOST_POINTS
    assert raw[-1, 0] == rows[-1]["steps"]
    assert raw[:, 1].mean() == pytest.approx(499.5)
    draw(tmp_path / "curve.png", rows)


def test_the_old_picture_stays_if_the_new_one_fails(tmp_path, monkeypatch):
    path = tmp_path / "curve.png"
    path.write_bytes(b"old")

    def no_space(file, **_):
        file.write_bytes(b"half a")
        raise OSError(28, "No space left on device")

    picture = plot.curve([])
    monkeypatch.setattr(picture, "savefig", no_space)
    with pytest.raises(UserError, match=r"curve\.png: cannot write: No space left"):
        plot.save(picture, path)
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["curve.png"]


def test_a_notebook_shows_it_without_pyplot():
    from IPython.core.formatters import PNGFormatter

    png = PNGFormatter()(plot.curve([row(1, 1.0)]))
    assert png.startswith(b"\x89PNG\r\n")


def points(values, x=None):
    x = range(1, len(values) + 1) if x is None else x
    return np.array([(at, value, 1.0) for at, value in zip(x, values)], float)


def test_the_mean_of_seeds_and_where_it_may_lie():
    runs = [points([level] * 20) for level in (1.0, 2.0, 6.0)]
    axes = plot.compare({"impala": runs, "ppo": [points([5.0] * 20)]}).axes[0]
    assert axes.lines[0].get_ydata() == pytest.approx(3.0)
    (band,) = axes.collections  # one run has no interval
    low, high = band.get_paths()[0].get_extents().intervaly
    assert (low, high) == pytest.approx((1.0, 6.0))  # 1/27 of the resamples are all 1
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["impala, 3 runs: 3", "ppo: 5"]


def test_the_interval_narrows_with_more_seeds():
    rng = np.random.default_rng(0)
    few, many = (rng.normal(size=(seeds, 50)) for seeds in (5, 80))
    low, high = plot.interval(many)
    assert (low <= many.mean(0)).all() and (many.mean(0) <= high).all()
    # 95 % of a normal distribution are within 1.96 standard deviations.
    assert high - low == pytest.approx(2 * 1.96 / np.sqrt(80), rel=0.25)
    assert np.mean(high - low) < np.mean(np.subtract(*plot.interval(few)[::-1]))


def test_the_interquartile_mean_forgets_a_quarter_at_each_end():
    levels = [-1e3, *range(1, 19), 1e6]
    axes = plot.compare(
        {"impala": [points([level] * 20) for level in levels]}, statistic="iqm"
    ).axes[0]
    assert axes.lines[0].get_ydata() == pytest.approx(9.5)  # of 5 to 14
    assert axes.get_ylabel().endswith("IQM of runs")
    low, high = axes.collections[0].get_paths()[0].get_extents().intervaly
    assert 1 < low < 9.5 < high < 18  # the mean's would reach 100,000
    assert plot.iqm(np.array([0.0, 1.0, 5.0])) == 2.0  # of three, none is left out


def test_a_profile_is_the_share_of_runs_above_each_score():
    many = [points([level] * 20) for level in (1.0, 2.0, 2.0, 5.0)]
    axes = plot.profiles({"impala": many, "ppo": [points([3.0] * 20)]}).axes[0]
    at, above = axes.lines[0].get_xydata().T
    assert at[0] < 1.0 and at[-1] > 5.0
    for score, share in (
        (0.95, 1.0),
        (1.5, 0.75),
        (2.5, 0.25),
        (4.9, 0.25),
        (5.06, 0.0),
    ):
        assert np.interp(score, at, above) == share
    (band,) = axes.collections  # one run has no interval
    x, y = band.get_paths()[0].vertices.T
    there = y[abs(x - 1.5) < 0.01]
    assert there.min() < 0.75 < there.max()
    assert np.interp(2.9, *axes.lines[1].get_xydata().T) == 1.0
    names = [text.get_text() for text in axes.get_legend().get_texts()]
    assert names == ["impala, 4 runs", "ppo, 1 run"]


def test_a_profile_of_equal_scores_is_drawn(tmp_path):
    runs = [points([2.0] * 5)] * 3
    plot.save(plot.profiles({"impala": runs}, "kl"), tmp_path / "profile.png")
    assert (tmp_path / "profile.png").stat().st_size > 10_000


def test_a_mean_ends_with_its_shortest_run():
    long, short = points([1.0] * 100), points([3.0] * 40)
    x, values = plot.on_one_axis([long, short])
    assert (x[0], x[-1]) == (1, 40)
    assert values.mean(0) == pytest.approx(2.0)


def test_runs_that_never_meet_are_drawn(tmp_path):
    groups = {"x": [points([1.0, 2.0]), points([3.0, 4.0], x=(10, 11))]}
    plot.save(plot.compare(groups), tmp_path / "curve.png")


def test_many_groups_look_different():
    groups = {str(n): [points([n, n])] for n in range(20)}
    lines = plot.compare(groups).axes[0].lines[1::3]
    looks = {(line.get_color(), line.get_linestyle()) for line in lines}
    assert len(looks) == 20


def test_an_svg(tmp_path):
    plot.save(plot.compare({"a": [points([1.0])]}), tmp_path / "a.svg", "svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()
