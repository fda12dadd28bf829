"""A virtual environment for each peer, with pinned versions, created on first use.

They are in ~/.cache/podracer-benchmarks (about 1 GB each, 2 GB with torch). Nothing is ever
installed where podracer is. `PODRACER_BENCHMARKS_INSTALL=no` leaves out the peers whose
environment does not exist yet, with a line. On a GPU they are not used: there, peers are
measured where podracer is.
"""

import fcntl
import os
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

FOLDER = Path.home() / ".cache" / "podracer-benchmarks"
INSTALL = "PODRACER_BENCHMARKS_INSTALL"
SECONDS = 1_800  # to create one: a minute, or many on a slow network
JAX = ("jax==0.10.2", "jaxlib==0.10.2", "flax==0.12.8", "optax==0.2.8", "numpy==2.4.6")
PINS = {
    "rejax": (
        *("rejax==0.1.3", "gymnax==0.0.9", "distrax==0.1.9", "chex==0.1.92", *JAX),
        "tfp-nightly",  # through distrax; not pinned, the index drops old builds
    ),
    "brax": (
        *("brax==0.14.2", "orbax-checkpoint==0.12.8", "jaxopt==0.8.5", *JAX),
        *("mujoco==4.0.0", "mujoco-mjx==3.17.0", "gymnax==0.0.9", "six==1.17.0"),
    ),
    "jaxnasium": (
        *("jaxnasium[algs]==0.1.1", "gymnax==0.0.9", "distrax==0.1.9", *JAX),
        "six==1.17.0",  # which gymnax imports and does not ask for
    ),
    "sb3": (
        *("stable-baselines3==2.9.2", "sb3-contrib==2.9.2", "torch==2.13.0"),
        *("sbx-rl==0.28.0", *JAX),
        *("gymnasium==1.4.0", "envpool==1.2.5", "envpool-assets==0.3.0"),
    ),
    "sample-factory": (
        *("sample-factory==2.1.1", "torch==2.13.0", "numpy==1.26.4"),
        *("gymnasium==0.29.1", "envpool==1.2.5", "envpool-assets==0.3.0"),
    ),
}


def title(peer: str, package: str) -> str:
    """A package of its environment, with its version."""
    found = [pin.split("==") for pin in PINS[peer]]
    versions = {pin[0].partition("[")[0]: pin[-1] for pin in found}
    return f"{package} {versions[package]}"


def is_available(peer: str) -> bool:
    """Whether a peer can be measured; prints a line if it is left out."""
    if os.environ.get(INSTALL) != "no" or (FOLDER / peer / "pins.txt").exists():
        return True
    print(f"{peer}: not installed ({INSTALL} is no), left out", flush=True)
    return False


def is_here(peer: str) -> bool:
    """Whether the version of a peer is installed where podracer is."""
    package, _, pinned = PINS[peer][0].partition("==")
    try:
        return version(package.partition("[")[0]) == pinned
    except PackageNotFoundError:
        return False


def python_of(peer: str) -> Path:
    """The interpreter of a peer's environment, made first if it is not there as pinned."""
    folder = FOLDER / peer
    python, record = folder / "bin" / "python", folder / "pins.txt"
    pins = "\n".join((sys.version, *PINS[peer]))
    FOLDER.mkdir(parents=True, exist_ok=True)
    with open(FOLDER / f"{peer}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another seed may be making it
        if not record.exists() or record.read_text() != pins:
            print(f"installing {peer} into {folder} (minutes)", file=sys.stderr)
            shutil.rmtree(folder, ignore_errors=True)
            _run(sys.executable, "-m", "venv", folder)
            _run(
                *(python, "-m", "pip", "install", "--quiet", "--only-binary", ":all:"),
                *PINS[peer],
            )
            record.write_text(pins)
    return python


def enter(peer: str) -> None:
    """Restarts this program with the interpreter of a peer's environment, unless it has it.

    Exits if the peer is left out.
    """
    if sys.prefix == str(FOLDER / peer):
        return
    if not is_available(peer):
        sys.exit()
    python = str(python_of(peer))
    os.execv(
        python, [python, "-m", sys.modules["__main__"].__spec__.name, *sys.argv[1:]]
    )


def clean_environment(**settings: str) -> dict[str, str]:
    """This process's variables without those that change what a peer computes with."""
    prefixes = ("JAX_", "XLA_", "PYTHON", "OMP_", "MKL_")
    kept = {k: v for k, v in os.environ.items() if not k.startswith(prefixes)}
    return kept | settings


def _run(*command) -> None:
    result = subprocess.run(
        list(map(str, command)),
        env=clean_environment(PIP_DISABLE_PIP_VERSION_CHECK="1"),
        timeout=SECONDS,
        capture_output=True,
        text=True,
        check=False,
    )
    if result.returncode:
        raise RuntimeError(f"{' '.join(map(str, command))}\n{result.stderr[-2_000:]}")
