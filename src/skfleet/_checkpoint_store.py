"""Files of a checkpoint, each behind a checksum, at any location that fsspec knows."""

from __future__ import annotations

import logging
import os
import pickle
import zlib
from typing import Any
from urllib.parse import urlsplit
from uuid import uuid4

import cloudpickle
import fsspec
from fsspec.implementations.local import LocalFileSystem

from skfleet._config import get_config
from skfleet._private_files import check_trusted, make_private_directory, write_private_file

logger = logging.getLogger(__name__)


class CheckpointStore:
    """A directory of files, which any process may read and write; `folder` is one in it.

    A file of a known name is whole or is not there: it is written beside its place and then moved.
    What is damaged all the same is told by its checksum. On this machine's own disks, the directory
    and its files are for their owner alone, unless ``config_context(trust_files=True)`` says that
    they are shared: what others may have written is not read then. Other locations are as private
    as their store.
    """

    def __init__(self, location: str | os.PathLike[str], folder: str = "") -> None:
        self.location = os.fspath(location)
        _check_no_password(self.location)
        if "://" not in self.location:
            self.location = os.path.abspath(self.location)  # workers have another directory
        self.folder, self._is_shared = folder, get_config().trust_files

    def _files(self) -> tuple[Any, str]:
        files, root = fsspec.core.url_to_fs(self.location)
        return files, f"{root}/{self.folder}" if self.folder else root

    def _is_private(self, files: Any) -> bool:
        """Return whether the directory is on a disk of this machine, and not shared."""
        return isinstance(files, LocalFileSystem) and not self._is_shared

    def path(self, name: str) -> str:
        """Return the path of a file, for messages."""
        return f"{self._files()[1]}/{name}"

    def read(self, name: str) -> bytes | None:
        """Return the content of a file as it is; None where it is missing."""
        files, root = self._files()
        try:
            if self._is_private(files):
                check_trusted(f"{root}/{name}")
            return bytes(files.cat_file(f"{root}/{name}"))
        except FileNotFoundError:
            return None

    def add(self, name: str, content: bytes) -> None:
        """Write a file of a new name, whose readers know whether they see all of it."""
        files, root = self._files()
        if self._is_private(files):
            make_private_directory(root)
            write_private_file(f"{root}/{name}", content)
        else:
            files.makedirs(root, exist_ok=True)
            files.pipe_file(f"{root}/{name}", content)

    def write(self, name: str, content: bytes) -> None:
        """Write a file in the place of the one of that name, if there is one."""
        files, root = self._files()
        draft = f"draft-{uuid4().hex}"
        self.add(draft, content)
        files.mv(f"{root}/{draft}", f"{root}/{name}")

    def load(self, name: str) -> Any:
        """Return the object in a file; None where it is missing or damaged."""
        content = self.read(name)
        if content is None:
            return None
        try:
            return pickle.loads(without_checksum(content))
        except Exception:
            logger.warning("%s is damaged, and counts for nothing", self.path(name))
            return None

    def dump(self, name: str, value: Any) -> None:
        """Write an object in the place of the one of that name, if there is one."""
        self.write(name, with_checksum(cloudpickle.dumps(value)))

    def names(self, pattern: str) -> list[str]:
        """Return the names of the files that a pattern with `*` fits, as they are now."""
        files, root = self._files()
        # Other processes add files, and some filesystems remember what they have listed.
        files.invalidate_cache()
        return [path.rpartition("/")[2] for path in files.glob(f"{root}/{pattern}")]

    def remove(self, name: str) -> None:
        """Delete a file."""
        files, root = self._files()
        files.rm_file(f"{root}/{name}")


def _check_no_password(location: str) -> None:
    """Raise for a URL with a password, which messages, representations and tasks would have."""
    urls = (part for part in location.split("::") if "://" in part)  # of a cache, what it caches
    for url in map(urlsplit, urls):
        if url.password is not None:
            shown = location.replace(f":{url.password}@", ":***@")
            raise ValueError(
                f"checkpoint must be a location without a password. Got {shown!r} instead. Leave "
                "it out, and give it by fsspec's configuration: a file, or a variable "
                f"FSSPEC_{url.scheme.upper()}_... that is set before Python starts."
            )


def with_checksum(content: bytes) -> bytes:
    """Return a content behind its checksum."""
    return b"%08x %s" % (zlib.crc32(content), content)


def without_checksum(data: bytes) -> bytes:
    """Return the content behind a checksum; raise a ValueError where that is another one's."""
    checksum, _, content = data.partition(b" ")
    if int(checksum, 16) != zlib.crc32(content):
        raise ValueError("another checksum")
    return content
