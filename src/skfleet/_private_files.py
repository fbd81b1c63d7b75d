"""Folders and files that nobody else can read, and checks that nobody else has written one."""

from __future__ import annotations

import os
import stat
import tempfile
from contextlib import suppress
from pathlib import Path

_IS_POSIX = os.name == "posix"
_FOREIGN = stat.S_IRWXG | stat.S_IRWXO
_FOREIGN_WRITE = stat.S_IWGRP | stat.S_IWOTH


def scratch_directory(parent: str | None) -> str | None:
    """Return a folder of this user's in a parent, by default that of temporary files.

    None stands for the default of Windows, whose folder of temporary files is that of the user.
    """
    if not _IS_POSIX:
        return None
    path = os.path.join(parent or tempfile.gettempdir(), f"skfleet-{os.getuid()}")
    try:
        os.makedirs(path, 0o700)
    except FileExistsError:
        status = os.lstat(path)
        is_own = stat.S_ISDIR(status.st_mode) and status.st_uid == os.getuid()
        if not is_own or status.st_mode & _FOREIGN:  # another user was there first
            return tempfile.mkdtemp(prefix=f"{os.path.basename(path)}-", dir=parent)
    return path


def make_private_directory(path: str) -> None:
    """Make a folder that its owner alone can open; one that exists stays as it is."""
    os.makedirs(path, 0o700, exist_ok=True)


def write_private_file(path: str, content: bytes) -> None:
    """Write a file that its owner alone can read, in the place of one of that name."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)


def check_private(path: str) -> None:
    """Raise for a file that another user can read or write."""
    mode = stat.S_IMODE(os.stat(path).st_mode)
    if _IS_POSIX and mode & _FOREIGN:
        raise PermissionError(
            f"file must be one that you alone can read. Got {path!r} of mode {mode:o} instead. If "
            f"nobody else has read it: chmod 600 {path}"
        )


def check_trusted(path: str) -> None:
    """Raise for a file or its folder that another user than this one or root can have written.

    Root may open any.
    """
    if not _IS_POSIX or os.getuid() == 0:
        return
    for part in (Path(path), Path(path).parent):
        status = part.stat()
        if status.st_uid not in (os.getuid(), 0):
            reason, advice = f"of user {status.st_uid}", "Copy what you trust to a folder of yours"
        elif status.st_mode & _FOREIGN_WRITE and not status.st_mode & stat.S_ISVTX:
            reason, advice = f"of mode {stat.S_IMODE(status.st_mode):o}", f"chmod go-w {part}"
        else:
            continue
        raise PermissionError(
            "file must be one that only you or root can write, for it may run code. Got "
            f"{str(part)!r} {reason} instead. {advice}, or use config_context(trust_files=True) "
            "for a folder that you share."
        )
