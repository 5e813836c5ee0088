"""Blocks that two files share (reflinks), where the file system has them: XFS, btrfs, bcachefs, ZFS, NFS 4.2.

A range can be shared where its offsets in both files are multiples of the file system's block size.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import tempfile
from pathlib import Path

#: Alignment that sharing needs: the block size that XFS and btrfs have unless told otherwise.
BLOCK = 4096

_FICLONERANGE = 0x4020940D  # linux/fs.h: _IOW(0x94, 13, struct file_clone_range)
_NEVER = {errno.EXDEV, errno.EOPNOTSUPP, errno.ENOTTY, errno.ENOSYS}  # these file systems, whatever the range
_NOT_THIS = {errno.EINVAL, errno.EPERM, errno.ETXTBSY, errno.EBADF}


class NoReflinks(OSError):
    """The file systems of two files cannot share blocks with each other."""


def clone_range(source: int, begin: int, end: int, target: int, offset: int) -> bool:
    """Let the target share the source's bytes [begin, end) at `offset`; False where these cannot be.

    All offsets are multiples of the block size. Both files are given as open descriptors.

    Raises:
        NoReflinks: no range of the two can be shared: asking for each of thousands would cost more than they take.
    """
    request = struct.pack("qQQQ", source, begin, end - begin, offset)
    try:
        fcntl.ioctl(target, _FICLONERANGE, request)
    except OSError as error:
        if error.errno in _NEVER:
            raise NoReflinks(error.errno, error.strerror) from error
        if error.errno in _NOT_THIS:
            return False
        raise
    return True


def supports_reflink(folder: Path, source: Path | None = None) -> bool:
    """Whether files in `folder` can share blocks with each other, and with the file `source` where one is given.

    Tried with a small file that is there and gone again; a folder that cannot be written to says False.
    """
    try:
        with tempfile.TemporaryFile(dir=folder) as one, tempfile.TemporaryFile(dir=folder) as other:
            if source is not None and os.stat(source).st_dev != os.fstat(one.fileno()).st_dev:
                # A btrfs subvolume has a device number of its own and still shares: only trying tells.
                with open(source, "rb") as given:
                    if os.fstat(given.fileno()).st_size < BLOCK:
                        return False
                    return clone_range(given.fileno(), 0, BLOCK, other.fileno(), 0)
            one.write(bytes(BLOCK))
            one.flush()
            return clone_range(one.fileno(), 0, BLOCK, other.fileno(), 0)
    except OSError:
        return False
