"""How a command starts and ends: its subcommands, exit codes and signals."""

import atexit
import contextlib
import errno
import gc
import importlib
import inspect
import io
import os
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from podracer import interrupts
from podracer.errors import UserError, nearest

FULL = (errno.ENOSPC, errno.EDQUOT)


class Terminated(BaseException):
    """A signal ends the command: its exit code. Nobody takes it for a SystemExit of theirs."""


def dispatch(
    commands: Mapping[str, Callable[[list[str]], None]], argv: list[str], program: str
) -> None:
    """Runs the command that `argv` names with the rest of `argv`.

    `--help` lists the commands with the first line of their docstrings. Raises UserError
    for an unknown command.
    """
    if not argv or argv[0] in ("-h", "--help"):
        width = max(map(len, commands))
        print(f"usage: {program} COMMAND [--help] ...\n\ncommands:")
        for name, function in commands.items():
            print(f"  {name:<{width}}  {_summary(function)}".rstrip())
    elif argv[0] in commands:
        commands[argv[0]](argv[1:])
    else:
        raise UserError(f"no such command: {argv[0]!r}{nearest(argv[0], commands)}")


def of_module(
    name: str, summaries: Mapping[str, str]
) -> dict[str, Callable[[list[str]], None]]:
    """The commands of a module that needs JAX: both are imported when one of them is called.

    Args:
      name: of the module; its `COMMANDS` holds their functions.
      summaries: a line of each, for `--help`, which then takes no time.
    """

    def of(key: str) -> Callable[[list[str]], None]:
        def run(argv: list[str]) -> None:
            interrupts.answer_early()
            from podracer import kernels

            function = importlib.import_module(name).COMMANDS[key]
            interrupts.answer_as_usual()
            kernels.install()
            function(argv)

        run.__doc__ = summaries[key]
        return run

    return {key: of(key) for key in summaries}


def _summary(function: Callable) -> str:
    """The first paragraph of a function's docstring, on one line."""
    return " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())


@contextlib.contextmanager
def exits(program: str) -> Iterator[None]:
    """Ends a command with one line on stderr and an exit code; also a decorator.

    UserError, a full disk, not enough memory and a JAX that cannot start are 2,
    FloatingPointError (a run that is no longer finite) 1, Ctrl-C 130, SIGTERM 143, SIGHUP (a
    closed terminal) 129, and 141 without a line where nobody reads the output any more (`| head`).
    The other hosts of a run end too, see `parallel.watch`, and threads that hang, see
    `_ending_threads`. Modules in the current folder can be imported, as with `python -m`.
    """
    # Python would search all that was traced for cycles at its end: 0.7 s.
    atexit.register(gc.freeze)
    with _ending_threads(), _saying_why(program):
        yield


@contextlib.contextmanager
def _saying_why(program: str) -> Iterator[None]:
    """All of `exits` but the end of threads."""

    terminal = _on_terminal()

    def terminated(number: int, _) -> None:
        if number == signal.SIGHUP:
            _to_nowhere(*terminal)
        raise Terminated(128 + number)  # so that files and threads are closed

    for number in _terminating():
        signal.signal(number, terminated)
    interrupts.answer_as_usual()
    _import_from_here()
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed, as by `>&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):  # a path may have any letters
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            print(end="", flush=True)  # where nobody reads, this is the place to know
    except UserError as error:
        line, code = f"error: {error}", 2
    except FloatingPointError as error:
        line, code = f"stopped: {error}", 1
    except KeyboardInterrupt:
        line, code = "interrupted", 130
    except Terminated as end:
        line, code = "terminated", end.args[0]
    except SystemExit as end:
        _leave(end.code, "terminated")
        raise
    except MemoryError as error:
        line, code = f"error: not enough memory: {error}", 2
    except (RuntimeError, AssertionError):
        if not (line := _without_device()):
            raise
        line, code = f"error: {line}", 2
    except BrokenPipeError:
        if _is_read():  # then it was another pipe
            raise
        _drop_output()
        _leave(128 + signal.SIGPIPE, "nobody reads the output")
        sys.exit(128 + signal.SIGPIPE)
    except OSError as error:
        if error.errno not in FULL:
            raise
        _drop_output()
        where = error.filename or "the output"
        line, code = f"error: {where}: cannot write: {error.strerror}", 2
    else:
        return
    line = f"{program}: {' '.join(line.split())}"
    print(line, file=sys.stderr)
    _leave(code, line)
    sys.exit(code)


@contextlib.contextmanager
def _ending_threads() -> Iterator[None]:
    """Ends the process itself where a thread with `may_hang` still runs.

    Python aborts (exit code 134) if a thread comes back from C++ while it ends.
    """
    code = 0
    try:
        yield
    except SystemExit as end:
        if not _hangs():
            raise
        code = end.code or 0
    except BaseException:
        if not _hangs():
            raise
        sys.excepthook(*sys.exc_info())
        code = 1
    if _hangs():
        run_exit_handlers()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def run_exit_handlers() -> None:
    """Runs what was registered with `atexit`, in a process that ends by `os._exit`.

    They are JAX's, our watchdog's and those of users' libraries, so no list of ours has them
    all. Python has no public name for it.
    """
    atexit._run_exitfuncs()


def _hangs() -> bool:
    return any(getattr(thread, "may_hang", False) for thread in threading.enumerate())


def _leave(code: Any, line: str) -> None:
    """Tells the other hosts of a run; there are none where JAX was never needed."""
    if watch := sys.modules.get("podracer.parallel.watch"):
        watch.leave(code, line)


def _without_device() -> str:
    """A line where JAX finds no device of the kind that it is asked for; else empty."""
    jax = sys.modules.get("jax")
    if jax is None or not (platforms := jax.config.jax_platforms):
        return ""
    try:
        jax.devices()  # known already, if there are any
    except (RuntimeError, AssertionError) as error:
        why = f" ({error})" if str(error) else ""
        return (
            f"JAX_PLATFORMS is {platforms}, where JAX finds no device{why}: unset it, or "
            "install what JAX needs there"
        )
    return ""


def _terminating() -> list[int]:
    """The signals that end a program, but for Ctrl-C."""
    hung_up = signal.getsignal(signal.SIGHUP)  # of a closed terminal
    return [signal.SIGTERM] + [signal.SIGHUP] * (hung_up != signal.SIG_IGN)  # nohup


def _drop_output() -> None:
    """Lets Python flush what is left when it exits."""
    _to_nowhere(sys.stdout.fileno())


def _on_terminal() -> list[int]:
    """The outputs that are lost when the terminal is closed: writing there fails."""
    return [*filter(os.isatty, (1, 2))]


def _to_nowhere(*files: int) -> None:
    for file in files:
        os.dup2(os.open(os.devnull, os.O_WRONLY), file)


def _is_read() -> bool:
    """Whether stdout is no pipe that its reader has closed."""
    ends = select.poll()
    ends.register(sys.stdout, 0)  # for errors alone
    return not ends.poll(0)


def _import_from_here() -> None:
    """Adds the current folder to the path of a console script: last, so that no file in
    it takes the place of an installed module."""
    with contextlib.suppress(FileNotFoundError):  # the current folder was removed
        here = os.getcwd()
        if not sys.flags.safe_path and not {"", here} & {*sys.path}:
            sys.path.append(here)


@contextlib.contextmanager
def stopping() -> Iterator[Callable[[], bool]]:
    """Yields a function that says whether the run was asked to stop: SIGTERM, Ctrl-C, or
    SIGHUP of a closed terminal.

    The caller can then save its work. After a Ctrl-C the block ends with
    KeyboardInterrupt, after a second Ctrl-C at once; after the others it ends normally.

    A block inside another shares what that was asked, so that whoever trains several runs
    knows of a signal that came during one.

    Only the main thread has signals in Python: in any other the function says no, and what
    a signal does is the program's own.
    """
    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    outer = signal.getsignal(signal.SIGINT)
    if isinstance(outer, _Ask):
        ask, before = outer, {}
    else:
        ask = _Ask()
        before = {n: signal.signal(n, ask) for n in (*_terminating(), signal.SIGINT)}
    try:
        yield lambda: bool(ask.signals)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if signal.SIGINT in ask.signals:
        raise KeyboardInterrupt


class _Ask:
    """The handler of signals in a `stopping` block."""

    def __init__(self):
        self.signals: list[int] = []  # that came
        self._terminal = _on_terminal()

    def __call__(self, number: int, _) -> None:
        self.signals.append(number)
        if number == signal.SIGHUP:
            _to_nowhere(*self._terminal)
        if self.signals.count(signal.SIGINT) > 1:
            raise KeyboardInterrupt
