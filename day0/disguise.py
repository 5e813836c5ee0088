"""What a file really is when it is not what its name says, told from its first bytes."""

from __future__ import annotations

LFS_POINTER = b"version https://git-lfs"

_KINDS = (
    (LFS_POINTER, "a git-LFS pointer: the file itself was never fetched (git lfs pull)"),
    (b"<!doctype", "an HTML page, such as a server's error page: fetch the file again"),
    (b"<html", "an HTML page, such as a server's error page: fetch the file again"),
    (b"<?xml", "an XML text, such as a storage server's error: fetch the file again"),
    (b"pk\x03\x04", "a zip archive, as torch.save writes it (pickle inside): it is not loaded"),
    (b"\x1f\x8b", "a gzip archive"),
    (b"(\xb5/\xfd", "a zstd archive"),
    (b"\xfd7zxz", "an xz archive"),
    (b"\x89hdf", "an HDF5 file"),
    (b"\x93numpy", "a NumPy array file"),
    (b"gguf", "a GGUF file"),
    *((bytes([0x80, protocol]), "a Python pickle: it is not loaded") for protocol in range(2, 6)),
)


def disguise(start: bytes) -> str | None:
    """The kind of file that begins with these (about 64) bytes, as the end of "this is …"; None: not one of those."""
    text = start.lstrip().lower()
    return next((what for magic, what in _KINDS if text.startswith(magic)), None)
