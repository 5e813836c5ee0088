from __future__ import annotations

from typing import Any

import pytest

from day0.verdict import Verdict
from tasks.service.task import _fenced

FENCED: dict[str, Any] = {
    "user": "10001:10001",
    "read_only_root": True,
    "no_new_privileges": True,
    "cap_drop": ["ALL"],
    "cap_add": [],
    "privileged": False,
    "memory_limit": 1 << 30,
    "mounts": [{"source": "/m", "target": "/model", "read_only": True}],
    "published": ["127.0.0.1:40000->8000/tcp"],
}


def test_a_fenced_container_passes() -> None:
    assert _fenced(FENCED).verdict is Verdict.PASS


@pytest.mark.parametrize(
    ("change", "lacks"),
    [
        ({"user": ""}, "a user that is not root"),
        ({"user": "0:0"}, "a user that is not root"),
        ({"read_only_root": False}, "a read-only root"),
        ({"privileged": True}, "no new privileges"),
        ({"cap_add": ["NET_ADMIN"]}, "no capabilities"),
        ({"memory_limit": 0}, "a memory limit"),
        ({"mounts": []}, "read-only mounts"),
        ({"published": ["0.0.0.0:40000->8000/tcp"]}, "the loopback only"),
        ({"published": []}, "the loopback only"),
    ],
)
def test_a_missing_fence_fails_and_is_named(change: dict[str, Any], lacks: str) -> None:
    check = _fenced(FENCED | change)
    assert check.verdict is Verdict.FAIL
    assert lacks in check.reason
