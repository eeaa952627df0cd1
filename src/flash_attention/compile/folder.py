# SPDX-License-Identifier: Apache-2.0
"""Folders by their descriptors, so that what was checked is what is used.

A path can be exchanged between a check and a use. So a folder or a file is opened once, no link is
followed, and owner, mode and kind are those of what was opened.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress

LARGEST_FILE = 256 * 2**20  # bytes; the largest kernel has less than one hundredth of it

_NO_LINKS = os.O_NOFOLLOW | os.O_CLOEXEC


class UntrustedError(PermissionError):
    """Someone else can change a folder or a file, or it is not what it should be."""

    def __init__(self, reason: str) -> None:
        super().__init__(errno.EACCES, reason)
        self.reason = reason


@contextmanager
def opened_folder(
    name: str, folder: int | None = None, *, called: str = "", trusted: bool = True
) -> Iterator[int]:
    """The descriptor of a folder; one that is to be trusted only this user, or root, can change."""
    descriptor = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _NO_LINKS, dir_fd=folder)
    try:
        if trusted:
            _check_owner_and_mode(os.fstat(descriptor), called or f"the folder {name}")
        yield descriptor
    finally:
        os.close(descriptor)


def read_file(name: str, folder: int) -> bytes:
    """A file that only this user, or root, can write to; nothing that is no file is waited for."""
    descriptor = os.open(name, os.O_RDONLY | os.O_NONBLOCK | _NO_LINKS, dir_fd=folder)
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        _check_owner_and_mode(status, name)
        if not stat.S_ISREG(status.st_mode):
            raise UntrustedError(f"{name} is not a regular file")
        if status.st_size > LARGEST_FILE:
            raise UntrustedError(f"{name} has {status.st_size} bytes, too many for a kernel")
        return file.read()


def write_file(name: str, data: bytes, folder: int) -> None:
    """A new file that others may read."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NO_LINKS
    with open(os.open(name, flags, 0o644, dir_fd=folder), "wb") as file:
        file.write(data)


def remove(name: str, folder: int) -> None:
    """Remove a file, or a folder with all that is in it; what cannot be removed stays."""
    with suppress(OSError):
        try:
            os.unlink(name, dir_fd=folder)
        except IsADirectoryError:
            inner = os.open(name, os.O_RDONLY | os.O_DIRECTORY | _NO_LINKS, dir_fd=folder)
            try:
                for each in os.listdir(inner):
                    remove(each, inner)
            finally:
                os.close(inner)
            os.rmdir(name, dir_fd=folder)


def rename(old: str, new: str, folder: int) -> None:
    """Rename something in a folder."""
    os.rename(old, new, src_dir_fd=folder, dst_dir_fd=folder)


def status_of(name: str, folder: int) -> os.stat_result:
    """Size, time and kind of something in a folder, of a link its own."""
    return os.stat(name, dir_fd=folder, follow_symlinks=False)


def _check_owner_and_mode(status: os.stat_result, called: str) -> None:
    if status.st_uid not in (os.geteuid(), 0):
        raise UntrustedError(f"{called} belongs to another user (uid {status.st_uid})")
    if status.st_mode & stat.S_IWOTH:
        raise UntrustedError(f"{called} can be written by every user; chmod go-w makes it yours")
    if status.st_mode & stat.S_IWGRP:
        raise UntrustedError(f"{called} can be written by its group; chmod g-w makes it yours")
