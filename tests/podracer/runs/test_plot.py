"""The learning curve: a real PNG, whole or not at all, whatever the rows hold."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import podracer.__main__ as command
from podracer.errors import UserError
from podracer.runs import ancestry, lineage, members, plot
from tests import populations


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


def test_a_part_of_a_curve_is_smoothed_as_the_whole_would_be():
    """Also where the part is shorter than the window."""
    values, weights = np.array([1.0, 4.0]), np.array([2.0, 1.0])
    assert plot.smooth(values, weights, 1000).tolist() == [2.0, 2.0]
    assert plot.smooth(values, weights).tolist() == [1.0, 4.0]


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


def names(picture):
    """The texts of a picture's legend."""
    return [text.get_text() for text in picture.legends[0].get_texts()]


def points(values, x=None):
    x = range(1, len(values) + 1) if x is None else x
    return np.array([(at, value, 1.0) for at, value in zip(x, values)], float)


def test_the_mean_of_seeds_and_where_it_may_lie():
    runs = [points([level] * 20) for level in (1.0, 2.0, 6.0)]
    picture = plot.compare({"impala": runs, "ppo": [points([5.0] * 20)]})
    (axes,) = picture.axes
    assert axes.lines[0].get_ydata() == pytest.approx(3.0)
    (band,) = axes.collections  # one run has no interval
    low, high = band.get_paths()[0].get_extents().intervaly
    assert (low, high) == pytest.approx((1.0, 6.0))  # 1/27 of the resamples are all 1
    assert names(picture) == ["impala, 3 runs: 3", "ppo: 5"]


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
    picture = plot.profiles({"impala": many, "ppo": [points([3.0] * 20)]})
    (axes,) = picture.axes
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
    assert names(picture) == ["impala, 4 runs", "ppo, 1 run"]


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


def test_no_two_ticks_read_alike():
    run = points([1.0, 2.0], [1_000_000, 1_003_000])
    axes = plot.compare({"ppo": [run]}).axes[0]
    texts = [x.get_text() for x in axes.get_xticklabels()]
    assert len({*texts}) == len(texts) > 3 and "1.001M" in texts


def test_the_end_of_a_curve_is_on_it_and_its_number_that_of_the_runs():
    rising = points(np.arange(200.0))  # its last hundred episodes: 149.5
    picture = plot.compare({"ppo on catch": [rising, rising + 0.0]})
    (axes,) = picture.axes
    line, dot = axes.lines
    assert dot.get_xydata()[0] == pytest.approx(line.get_xydata()[-1])
    assert [x.get_text() for x in axes.texts] == ["150"]
    groups = {"a": [rising], "b": [rising]}
    several = plot.compare(groups, title="catch", ends={"b": 7.0})
    (axes,) = several.axes
    assert len(axes.lines) == 4 and axes.get_title() == "catch"  # no dots
    assert names(several) == ["a: 150", "b: 7"]


def test_a_legend_covers_no_curve_and_fits_into_its_picture(tmp_path):
    run, long = [points([1.0, 2.0])], "agents/of/mine.py:make_agent on gym:" + "x" * 150
    for groups in (
        {f"{x}: {long}": run for x in "AB"},
        {f"{x}: ppo": run for x in "ABCDEFGHIJKL"},
    ):
        picture = plot.compare(groups, title=long)
        plot.save(picture, tmp_path / "curve.png")
        (axes,), (legend,) = picture.axes, picture.legends
        low = axes.get_tightbbox().y0
        x0, y0, x1, y1 = legend.get_window_extent().extents
        assert 0 <= x0 < x1 <= picture.bbox.x1 and 0 <= y0 < y1 < low + 5
        assert axes.get_window_extent().height > 300
        x0, _, x1, _ = axes.title.get_window_extent().extents
        assert 0 <= x0 < x1 <= picture.bbox.x1


def test_many_groups_look_different():
    groups = {str(n): [points([n, n])] for n in range(20)}
    lines = plot.compare(groups).axes[0].lines[1::2]
    looks = {(line.get_color(), line.get_linestyle()) for line in lines}
    assert len(looks) == 20


def test_an_svg(tmp_path):
    plot.save(plot.compare({"a": [points([1.0])]}), tmp_path / "a.svg", "svg")
    assert "<svg" in (tmp_path / "a.svg").read_text()


def drawn(folder):
    """The panels of a population's picture."""
    return ancestry.population(lineage.read(folder), "impala on catch").axes


def curves(axes, color):
    """The curves of a panel in this colour, [N, 2] each, without single points."""
    every = [x.get_xydata() for x in axes.lines if x.get_color() == color]
    return [x.tolist() for x in every if len(x) > 1 and x[0, 0] <= x[-1, 0]]


@pytest.fixture(name="population")
def _population(tmp_path):
    """Member 1 takes over member 0, and is the best."""
    return populations.write(
        tmp_path / "population",
        [*populations.rows(0, mean_return=1.0), *populations.rows(1, mean_return=1.0)],
        [*populations.rows(0, rate=0.02), *populations.rows(1, 0, 0.05, mean_return=3)],
    )


def test_a_population_has_a_panel_for_returns_and_each_hyperparameter(population):
    returns, rates = drawn(population)
    assert returns.get_title() == (
        "impala on catch: 2 members; bold: lineage of the best, member-1"
    )
    assert [x.get_text() for x in returns.texts] == ["3", "in member", "0", "1"]
    assert (rates.get_ylabel(), rates.get_yscale()) == ("learning_rate", "log")
    low, high = rates.get_ylim()
    assert low <= 1e-4 and high >= 1e-1  # the whole range
    assert rates.texts[0].get_text() == "0.05"


def test_a_member_branches_off_where_it_took_over(population):
    returns, rates = drawn(population)
    whole, before, after, branch = curves(rates, ancestry.GREY)
    assert whole == [[0, 0.1], [100, 0.1], [100, 0.1], [200, 0.1]]
    assert before == [[0, 0.02], [100, 0.02]]
    assert after == [[100, 0.05], [200, 0.05]]
    assert branch == [[100, 0.1], [100, 0.05]]
    branch = curves(returns, ancestry.GREY)[-1]
    assert branch == [[100, 1], [150, 3]]


def test_the_lineage_is_that_of_the_best(population):
    returns, rates = drawn(population)
    assert curves(rates, ancestry.COLOR)[-1] == [
        [0, 0.1],
        [100, 0.1],
        [100, 0.05],
        [200, 0.05],
    ]
    assert curves(returns, ancestry.COLOR)[-1] == [
        [50, 1],
        [100, 1],
        [150, 3],
        [200, 3],
    ]


def test_a_control_has_no_lineage(tmp_path):
    alone = [row(x, x) for x in range(50, 301, 50)]
    folder = populations.write(tmp_path / "x", alone, alone, exploit=False)
    returns, rates = drawn(folder)
    assert returns.get_title().endswith("2 members; bold: the best, member-0")
    assert [x.get_text() for x in returns.texts] == ["300"]
    first, second = curves(rates, ancestry.GREY)
    assert {y for _, y in first} == {0.1} and {y for _, y in second} == {0.01}


def test_no_member_is_the_best_before_an_episode_finished(tmp_path):
    rows = populations.rows(0, mean_return=None, episodes=0)
    folder = populations.write(tmp_path / "x", rows, rows)
    returns, rates = drawn(folder)
    assert returns.get_title() == "impala on catch: 2 members"
    assert not curves(rates, ancestry.COLOR) and len(curves(rates, ancestry.GREY)) == 2


def test_a_hyperparameter_that_is_no_number(tmp_path):
    """As a user's own rule may have it."""
    rows = populations.rows(0, rate=None)
    history = lineage.read(populations.write(tmp_path / "x", rows))
    picture = ancestry.population(history, "impala on catch")
    plot.save(picture, tmp_path / "x.png")
    assert not curves(picture.axes[1], ancestry.COLOR)


def test_a_linear_range_has_a_linear_axis(population):
    path = population / "together.json"
    path.write_text(path.read_text().replace("1e-4..1e-1", "-1..1"))
    assert drawn(population)[1].get_yscale() == "linear"


def test_members_that_took_over_all_the_time_stay_few_points(tmp_path):
    """A single report in each interval would be no line."""
    parents = [-1] + [1] * 19
    one, other = (
        [
            populations.row(100 * i + 100, i, parent, mean_return=i)
            for i, parent in enumerate(every)
        ]
        for every in (parents, [-1] * 20)
    )
    returns, _ = drawn(populations.write(tmp_path / "x", one, other))
    branches = curves(returns, ancestry.GREY)[1:]
    assert branches == [[[100 * i, i - 1], [100 * i + 100, i]] for i in range(1, 20)]


def test_a_lineage_that_moved_too_often_has_no_names(tmp_path):
    """Two members that take over each other, in each interval."""
    both = [
        [
            *populations.rows(0),
            *(x for i in range(1, 60) for x in populations.rows(i, j)),
        ]
        for j in (1, 0)
    ]
    returns, rates = drawn(populations.write(tmp_path / "x", *both))
    assert [x.get_text() for x in returns.texts] == ["0"]  # the last return
    assert len(curves(rates, ancestry.COLOR)) == 1
    assert len(curves(rates, ancestry.GREY)) == 2 * (1 + 2 * 59)


def test_the_command_draws_a_population(population, monkeypatch, capsys):
    monkeypatch.chdir(population.parent)
    command.plot([population.name, "--out", "x.svg"])
    best, *others = capsys.readouterr().out.splitlines()
    assert best.startswith(
        "best: member-1, mean return 3 in the last interval; learners"
    )
    assert others == ["at the end: learning_rate 0.05", "drawn in x.svg"]
    assert "lineage of the best" in Path("x.svg").read_text()


@pytest.mark.parametrize("flags", [["--y", "episodes"], ["--x=seconds"], ["--profile"]])
def test_curves_of_members_are_not_presented_as_independent(
    population, flags, monkeypatch, capsys
):
    monkeypatch.chdir(population.parent)
    line = "of a population whose members took over one another's learners: not indep"
    command.plot([population.name, *flags])
    assert f"impala on catch: 2 runs, 2 {line}" in capsys.readouterr().out
    command.plot([f"{population.name}/member-1"])
    assert f"1 run, 1 {line}" in capsys.readouterr().out
    populations.write(Path("control"), populations.rows(0), exploit=False)
    command.plot(["control/member-0"])
    assert line not in capsys.readouterr().out


def test_what_a_population_leaves_in_its_folders(population, monkeypatch):
    """Pictures of the members, which say what they are, and one of all."""
    pictures = {}
    monkeypatch.setattr(plot, "save", lambda x, path: pictures.update({path: x}))
    folders = [population / f"member-{i}" for i in range(2)]
    members._draw(population, folders, "impala on catch")
    _, other, whole = pictures.values()
    assert [*pictures] == [x / "curve.png" for x in (*folders, population)]
    title = "impala on catch, member-1 of a population of 2"
    assert other.axes[0].get_title() == title
    assert len(whole.axes) == 2 and "lineage" in whole.axes[0].get_title()
