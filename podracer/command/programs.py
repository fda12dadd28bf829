"""Compiled programs are kept from run to run, by JAX's persistent cache."""

import contextlib
import hashlib
import os
import platform
import time
import zlib
from pathlib import Path

MINIMUM_SECONDS = 0.1  # of compiling: what takes less is not worth a file
DAYS = 30  # after which an unused program is removed
CPU = Path("/proc/cpuinfo")
ZSTANDARD = b"\x28\xb5\x2f\xfd"  # how what it compressed starts


def keep_programs() -> None:
    """Lets JAX keep what it compiles in the user's cache folder, and find it there again.

    Nothing happens where the user has chosen a folder (`JAX_COMPILATION_CACHE_DIR`) or none
    (`JAX_ENABLE_COMPILATION_CACHE=false`), where several processes run one program, or
    without a folder that only the user can write to: what is in it is executed. Each kind
    of CPU has a folder of its own, for home folders that several machines share.
    """
    import jax  # which commands that train nothing do not need

    from podracer.parallel import hosts

    chosen = jax.config.jax_compilation_cache_dir is not None
    if chosen or not jax.config.jax_enable_compilation_cache or hosts.number_of() > 1:
        return
    with contextlib.suppress(OSError, RuntimeError):  # RuntimeError: there is no home
        folder = _folder()
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        if status.st_uid == os.getuid() and not status.st_mode & 0o022:
            jax.config.update("jax_compilation_cache_dir", str(folder))
            name = "jax_persistent_cache_min_compile_time_secs"
            if name.upper() not in os.environ:
                jax.config.update(name, MINIMUM_SECONDS)
            remove_unused(folder)
            remove_damaged(folder)


def remove_unused(folder: Path, days: float = DAYS) -> None:
    """Removes the files that nobody has read or written for `days`."""
    oldest = time.time() - days * 24 * 3600
    for path in folder.iterdir():
        status = path.stat()
        if max(status.st_atime, status.st_mtime) < oldest:
            path.unlink(missing_ok=True)


def remove_damaged(folder: Path) -> None:
    """Removes programs that a killed process or a full disk left half-written.

    JAX would warn of them at each start, and never replace them. Each program is checked
    once, by its checksum, unless the optional package zstandard compressed it.
    """
    checked = folder / "checked"
    since = checked.stat().st_mtime if checked.exists() else 0.0
    checked.touch()  # first: what is written from now on is checked next time
    for path in folder.glob("*-cache"):
        if path.stat().st_mtime >= since and _is_damaged(path.read_bytes()):
            path.unlink(missing_ok=True)


def _is_damaged(program: bytes) -> bool:
    try:
        zlib.decompress(program)
    except zlib.error:
        return not program.startswith(ZSTANDARD)
    return False


def _folder() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache, "podracer", "programs", _cpu())


def _cpu() -> str:
    """Differs between CPUs that cannot run each other's programs."""
    if CPU.exists():
        lines = CPU.read_text().splitlines()
        known = {line for line in lines if line.startswith(("flags", "Features"))}
    else:
        known = {platform.processor()}
    text = "".join(sorted(known))
    return f"{platform.machine()}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
