"""Keeps files that may run code when they are read: no other user may write them, and damaged ones are never returned.

folder        mode 0700, of this user
  NAME        SHA-256 of the contents (32 bytes), contents
"""

import contextlib
import dataclasses
import hashlib
import os
import stat
from collections.abc import Callable
from pathlib import Path

from jaxspec.io.files import write_bytes

_DIGEST = hashlib.sha256().digest_size
# No other user may read, write or enter.
_OTHERS = 0o077


@dataclasses.dataclass(frozen=True)
class PrivateFolder:
    """Reads and writes files of a folder that only its owner may use, and bounds their size.

    Attributes:
      path: the folder; made when the first file is written.
      max_bytes: the size limit of all files together; the least recently used are removed.

    Example:
        >>> import pathlib
        >>> from jaxspec.io.private_folder import PrivateFolder
        >>> kept = PrivateFolder(pathlib.Path(folder) / "programs", max_bytes=1000)
        >>> kept.write("a", b"contents")
        >>> kept.read("a"), kept.read("b")
        (b'contents', None)
    """

    path: Path
    max_bytes: int

    def read(self, name: str) -> bytes | None:
        """Returns the contents of a file; `None` if there is none, it is damaged, or another user may have written it.

        A damaged file is removed.
        """
        try:
            self._check(self.path.lstat(), stat.S_ISDIR)
            # A link could lead to a file of another folder.
            with os.fdopen(os.open(self.path / name, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0)), "rb") as file:
                self._check(os.fstat(file.fileno()), stat.S_ISREG)
                found = file.read()
        except OSError:
            return None
        data = found[_DIGEST:]
        with contextlib.suppress(OSError):
            if found[:_DIGEST] != hashlib.sha256(data).digest():
                (self.path / name).unlink()
                return None
            os.utime(self.path / name)  # the least recently used files are removed first
        return data

    def write(self, name: str, data: bytes) -> None:
        """Writes a file atomically, and removes others if the folder is too large.

        Raises:
          OSError: the folder cannot be written, or other users may use it.
        """
        if len(data) > self.max_bytes:
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            self.path.mkdir(mode=0o700)
        self._check(self.path.lstat(), stat.S_ISDIR)
        write_bytes(self.path / name, hashlib.sha256(data).digest() + data)
        (self.path / name).chmod(0o600)
        self._remove_oldest()

    def names(self) -> list[str]:
        """Returns the names of all files, the most recently used last."""
        return [path.name for _, _, path in self._files()]

    def size(self) -> int:
        """Returns the number of bytes of all files."""
        return sum(size for _, size, _ in self._files())

    def _files(self) -> list[tuple[int, int, Path]]:
        """Lists the files as (time of the last use, bytes, path), the least recently used first."""
        found = []
        with contextlib.suppress(OSError):
            for path in self.path.iterdir():
                with contextlib.suppress(OSError):  # another process removed it
                    about = path.lstat()
                    found.append((about.st_mtime_ns, about.st_size, path))
        return sorted(found)

    def _remove_oldest(self) -> None:
        files = self._files()
        excess = sum(size for _, size, _ in files) - self.max_bytes
        for _, size, path in files:
            if excess <= 0:
                break
            with contextlib.suppress(OSError):
                path.unlink()
            excess -= size

    def _check(self, about: os.stat_result, kind: Callable[[int], bool]) -> None:
        """Raises `PermissionError` unless a file is of this kind and of this user, and others may not use it."""
        mine = hasattr(os, "geteuid") and about.st_uid == os.geteuid()  # without users there is no cache
        if not (mine and kind(about.st_mode)) or about.st_mode & _OTHERS:
            raise PermissionError(f"{self.path} must belong to this user, with mode 0700")
