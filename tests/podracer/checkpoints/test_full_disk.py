"""A disk that is full while a checkpoint is written: one line, and nothing else."""

import pytest

from tests.interruptions import checkpoints, ended, lines, start

SMALL = (
    *("train", "--env=catch", "--agent=ppo", "--batch-size=8", "--unroll-length=8"),
    *("--cores=1", "--quiet", "--network.hidden-sizes", "1024"),
)
FULL = 80_000  # bytes of a file; less than the first layer has (200 KB), more than the metrics


def said(folder, *arguments, code, **options):
    process = start("anakin", *arguments, output=folder / "said", **options)
    assert ended(process) == code, (folder / "said").read_text()
    return lines(folder / "said")


@pytest.mark.slow
def test_a_full_disk_at_the_first_checkpoint_is_one_line(tmp_path):
    run = tmp_path / "run"
    new = *SMALL, "--total-steps=640", f"--run={run}"
    (line,) = said(tmp_path, *new, code=2, most_bytes=FULL)
    assert line == (
        f"anakin: error: {run}/checkpoints/10: cannot write: File too large; there is no "
        "earlier checkpoint"
    )
    assert not checkpoints(run)
    assert not said(tmp_path, *new, "--overwrite", code=0)
    assert "10" in checkpoints(run)


def test_a_full_disk_is_one_line_which_promises_nothing_that_is_not_there(tmp_path):
    run = tmp_path / "run"
    assert not said(tmp_path, *SMALL, "--total-steps=640", f"--run={run}", code=0)
    more = f"--resume={run}", "--allow-changes", "--total-steps=1280", "--quiet"
    (line,) = said(tmp_path, "train", *more, code=2, most_bytes=FULL)
    assert line == (
        f"anakin: error: {run}/checkpoints/20: cannot write: File too large; --resume "
        "continues from checkpoint 10"
    )
    assert not said(tmp_path, "train", *more, code=0)
    assert {"10", "20"} <= checkpoints(run)
