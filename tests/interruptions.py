"""Commands in processes of their own, which end when a test wants it."""

import json
import multiprocessing
import os
import resource
import runpy
import signal
import sys
import time
import types
from importlib import import_module
from pathlib import Path

import jax
import numpy as np

from podracer.checkpoints import finding

LIMIT = 400.0  # seconds for any process: only a hang takes as long
TIMES = ("second", "waiting")  # in the names of metrics that two runs may not share

# Each process is a fresh one, forked from one that has imported everything.
processes = multiprocessing.get_context("forkserver")
processes.set_forkserver_preload(
    [
        "anakin.command.subcommands",
        "sebulba.command.subcommands",
        "podracer.runs.plot",
        "orbax.checkpoint",
        "rlax",
    ]
)


def command(program, arguments, output, most_bytes=None):
    """What a process does: the command, with what it says in a file."""
    say_in(output)
    if most_bytes:  # in a file, as if the disk were full
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, most_bytes))
    run(program, arguments)


def say_in(path, *streams):
    """What this process prints, by default in both streams, goes into a file."""
    file = open(path, "w")  # noqa: SIM115 it is open until the process ends
    for stream in streams or (sys.stdout, sys.stderr):
        os.dup2(file.fileno(), stream.fileno())


def run(program, arguments):
    """Runs a command in this process, which receives all signals, as from a shell.

    The server that forks it may have been started with workers, from which signals are kept.
    """
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    sys.argv = [program, *arguments]
    import_module(f"{program}.__main__").main()


def python(arguments, folder, output, rank_promotion):
    """What a process does: `python -c CODE` or `python -m MODULE ...`, in a folder."""
    say_in(output, sys.stdout)
    say_in(errors(output), sys.stderr)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    os.chdir(folder)
    sys.path.insert(0, str(folder))
    jax.config.update("jax_numpy_rank_promotion", rank_promotion)
    how, what, *rest = arguments
    sys.argv = [how, *rest]
    if how == "-c":
        main = types.ModuleType("__main__")
        sys.modules["__main__"] = main
        exec(compile(what, "<string>", "exec"), main.__dict__)  # noqa: S102 as Python does
    else:
        runpy.run_module(what, run_name="__main__", alter_sys=True)


def errors(output):
    return output.with_suffix(".errors")


def said_by_python(*arguments, folder, output, rank_promotion="raise"):
    """What Python prints in a folder, as a user of the library starts it there."""
    process = processes.Process(
        target=python, args=(arguments, folder, output, rank_promotion)
    )
    process.start()
    code = ended(process)
    assert code == 0, errors(output).read_text()
    return output.read_text()


def start(program, *arguments, output, **options):
    """The process of a command, `anakin` or `sebulba`."""
    process = processes.Process(
        target=command, args=(program, arguments, output), kwargs=options
    )
    process.start()
    return process


def ended(process):
    """Its exit code."""
    process.join(LIMIT)
    if process.is_alive():
        process.kill()
        raise AssertionError("it hangs")
    return process.exitcode


def lines(said):
    """What a command wrote to the file `said`, without what JAX says of the tests' own cache.

    A process that is killed leaves a half-written program there, of which others warn.
    """
    ours = ("persistent compilation cache", "  warnings.warn(")
    found = said.read_text().splitlines()
    return [line for line in found if not any(x in line for x in ours)]


def interrupted(folder, program, *how, seconds, number=signal.SIGKILL):
    """The exit code of a process that is ended so long after it began to train."""
    process = start(program, *how, output=folder.parent / "said")
    metrics = folder / "metrics.jsonl"
    before = size(metrics)
    until(lambda: process.exitcode is not None or size(metrics) > before)
    process.join(seconds)
    if process.is_alive():
        os.kill(process.pid, number)
    return ended(process)


def until(condition):
    deadline = time.monotonic() + LIMIT
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def run_with_kills(folder: Path, program, *arguments, moments, verb="train"):
    """A run that is killed so many seconds after each start, and resumed; then it ends.

    Returns the moments that are left if it ends before.
    """
    moments = list(moments)
    while True:
        fresh = (*arguments, f"--run={folder}", "--overwrite")
        how = verb, *((f"--resume={folder}",) if checkpoints(folder) else fresh)
        said = folder.parent / "said"
        if moments:
            code = interrupted(folder, program, *how, seconds=moments[0])
        else:
            code = ended(start(program, *how, output=said))
        assert code in (0, -signal.SIGKILL), said.read_text()
        if code == 0:
            return moments
        del moments[0]


def size(path):
    return path.stat().st_size if path.exists() else 0


def checkpoints(folder):
    return {
        path.name for path in folder.glob("checkpoints/[0-9]*") if path.name.isdigit()
    }


def rows(folder):
    """The metrics of a run, but for times."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    return [without_times(json.loads(line)) for line in lines]


def without_times(row):
    """Metrics that two runs can share."""
    return {
        name: x for name, x in row.items() if not any(time in name for time in TIMES)
    }


def final(folder):
    """The arrays of the last checkpoint, and the updates that they are after."""
    from orbax import checkpoint

    newest = next(finding.find_whole(folder / "checkpoints"))
    path = (folder / "checkpoints" / str(newest) / "state").absolute()
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    state = checkpoint.Checkpointer(checkpoint.StandardCheckpointHandler()).restore(
        path, args=checkpoint.args.StandardRestore(fallback_sharding=here)
    )
    return newest, [
        np.asarray(
            jax.random.key_data(x)
            if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)
            else x
        )
        for x in jax.tree.leaves(state)
    ]


def assert_equal(folder, whole):
    """Two runs ended in the same bits, and reported the same metrics."""
    (newest, mine), (last, theirs) = final(folder), final(whole)
    assert newest == last
    for x, y in zip(mine, theirs, strict=True):
        np.testing.assert_array_equal(x, y)
    assert rows(folder) == rows(whole)
