"""What made an artifact: the digest of a stage's code, and the versions of the packages that it uses."""

from __future__ import annotations

import ast
import functools
import hashlib
import platform
import threading
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

from day0.home import PROJECT

#: CPython's parser keeps its recursion depth for the whole interpreter: two threads in `ast.parse` at once can end in
#: `SystemError: AST constructor recursion depth mismatch` (seen on 3.11.7).
_parsing = threading.Lock()


def code_digest(folder: Path) -> str:
    """SHA-256 over every file of a stage's folder and every module of day0/ that they import, however indirectly.

    A stage whose code, or whose shared code, was mended therefore runs again.
    """
    with _parsing:
        return _code_digest(folder)


@functools.cache
def _code_digest(folder: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted({*_files(folder), *_imported(folder)}):
        relative = path.relative_to(PROJECT).as_posix()
        digest.update(f"{relative}\0{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()


def versions(packages: Sequence[str]) -> dict[str, str]:
    """Versions of day0, Python and the named packages; `absent` for one that is not installed."""
    found = {"python": platform.python_version()}
    for package in ("day0", *packages):
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    return found


def _files(folder: Path) -> Iterator[Path]:
    for path in folder.rglob("*"):
        if path.is_file() and "__pycache__" not in path.parts:
            yield path


def _imported(folder: Path) -> set[Path]:
    """The modules of day0/ that the stage's plain files import, and those that these import.

    `task.py` is left out: through it every stage would depend on the machinery of the stage contract.
    """
    queue = [path for path in folder.rglob("*.py") if path.name != "task.py"]
    found: set[Path] = set()
    while queue:
        for module in _day0_imports(queue.pop()):
            path = _module_path(module)
            if path and path not in found:
                found.add(path)
                queue.append(path)
    return found


def _day0_imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "day0":
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name.split(".")[0] == "day0")


def _module_path(module: str) -> Path | None:
    base = PROJECT.joinpath(*module.split("."))
    for path in (base.with_suffix(".py"), base / "__init__.py"):
        if path.is_file():
            return path
    return None
