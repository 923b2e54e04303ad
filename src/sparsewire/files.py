"""Files that are written as a whole: readers see the old file or the new one, and never a part of it."""

from __future__ import annotations

import errno
import os
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from sparsewire.errors import InputError

__all__ = ["WriteError", "replaced_file", "require_writable"]

REMEDIES = {
    errno.ENOSPC: "free some space, or write to another disk",
    errno.EDQUOT: "free some space, or write to another disk",
    errno.EFBIG: "files are limited to this size (ulimit -f)",
    errno.ENOENT: "is there such a folder?",
    errno.ENOTDIR: "is there such a folder?",
    errno.EACCES: "are the file and its folder yours?",
    errno.EPERM: "are the file and its folder yours?",
}


class WriteError(InputError, OSError):
    """A file cannot be written; the message has its name, the reason and what to do."""

    @classmethod
    def of(cls, path: Path, error: OSError) -> WriteError:
        remedy = REMEDIES.get(error.errno or 0, "write to another place")
        return cls(f"{path} cannot be written: {error.strerror or error}; {remedy}")


@contextmanager
def replaced_file(
    path: str | os.PathLike[str], mode: str = "w", permissions: int | None = None
) -> Iterator[IO[Any]]:
    """A file that takes the place of ``path`` at the end of the block, and not after an exception.

    The new file has the permissions of the old one, unless others are given.  A link stays, and what it leads
    to is replaced.  What is no file on a disk, such as a pipe or /dev/stdout, is written to as it is.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with replaced_file(folder + "/greeting") as file:
    ...         _ = file.write("hello")
    ...     Path(folder, "greeting").read_text()
    'hello'
    """
    given = Path(path)
    try:
        target = Path(os.path.realpath(given))
        old = _status(target)
        if old is not None and not stat.S_ISREG(old.st_mode):
            with open(given, mode) as file:
                yield file
            return
        unfinished = target.with_name(f".{target.name}.{os.getpid()}.{threading.get_native_id()}")
        try:
            with open(
                unfinished, mode, opener=lambda name, flags: os.open(name, flags, permissions or 0o666)
            ) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())  # otherwise a new name may point to an empty file after a power cut
            if old is not None and permissions is None:
                os.chmod(unfinished, stat.S_IMODE(old.st_mode))
            os.replace(unfinished, target)
        except BaseException:
            with suppress(OSError):
                unfinished.unlink()
            raise
    except OSError as error:
        if isinstance(error, WriteError):  # of a file that was written inside the block
            raise
        raise WriteError.of(given, error) from error


def require_writable(path: str | os.PathLike[str]) -> None:
    """Raise WriteError if ``path`` cannot be written; called before long work, not after it."""
    target = Path(os.path.realpath(path))
    if target.is_dir():
        reason = errno.EISDIR
    elif not target.parent.is_dir():
        reason = errno.ENOENT
    elif not os.access(target.parent, os.W_OK):
        reason = errno.EACCES
    else:
        return
    raise WriteError.of(Path(path), OSError(reason, os.strerror(reason)))


def _status(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except FileNotFoundError:
        return None
