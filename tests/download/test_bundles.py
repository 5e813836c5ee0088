"""Signature bundles: each part is protected, and what is malformed, damaged or ambiguous is refused."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from day0.strict_json import JsonFault
from day0.verdict import Verdict
from tasks.download.authenticity import Trust
from tasks.download.bundle import read_bundle
from tasks.download.signatures import find_signature
from tasks.download.verify import verify_folder
from tests.download.builder import TWO
from tests.download.signing import DATA, Signed, check, run


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAY0_HOME", str(tmp_path / "home"))


def tampered(root: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> None:
    """Rewrite the bundle: `change` is given it and its statement."""
    bundle = json.loads((root / "model.sig").read_text())
    statement = json.loads(base64.b64decode(bundle["dsseEnvelope"]["payload"]))
    change(bundle, statement)
    if isinstance(bundle.get("dsseEnvelope"), dict) and "payload" in bundle["dsseEnvelope"]:
        bundle["dsseEnvelope"]["payload"] = base64.b64encode(json.dumps(statement).encode()).decode()
    (root / "model.sig").write_text(json.dumps(bundle))


def adopt(bundle: dict[str, Any], statement: dict[str, Any]) -> None:
    """Put the digest of other weights into the statement, and make that agree with itself."""
    resources = statement["predicate"]["resources"]
    next(row for row in resources if row["name"] == TWO)["digest"] = hashlib.sha256(b"evil").hexdigest()
    together = hashlib.sha256(b"".join(bytes.fromhex(row["digest"]) for row in resources)).hexdigest()
    statement["subject"][0]["digest"]["sha256"] = together


def leave_out(bundle: dict[str, Any], statement: dict[str, Any]) -> None:
    statement["predicate"]["serialization"]["ignore_paths"].append("notes.json")


def swap_hint(bundle: dict[str, Any], statement: dict[str, Any]) -> None:
    bundle["verificationMaterial"]["publicKey"]["hint"] = "0" * 64


def swap_signature(bundle: dict[str, Any], statement: dict[str, Any]) -> None:
    bundle["dsseEnvelope"]["signatures"][0]["sig"] = base64.b64encode(b"\x30\x06\x02\x01\x01\x02\x01\x01").decode()


@pytest.mark.parametrize("change", [leave_out, swap_hint, swap_signature])
def test_each_part_of_a_bundle_is_protected(
    signed: Signed, keys: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]
) -> None:
    root = signed()
    tampered(root, change)
    answer = run(root, "--public-key", keys / "ours.pub")
    assert (answer.exit_code, check(answer)["verdict"]) == (1, "fail")
    assert "model.sig" in [fault["file"] for fault in json.loads(answer.stdout)["faults"]]


def test_other_weights_with_other_digests_in_the_bundle(signed: Signed, keys: Path) -> None:
    root = signed()
    tampered(root, adopt)
    (root / TWO).write_bytes(b"evil")
    signature = find_signature(root, trust=Trust(public_key=keys / "ours.pub"))
    assert signature is not None
    report = verify_folder(root, None, signature=signature)
    assert report.signature is not None
    assert report.signature.verdict is Verdict.FAIL
    assert [(fault.kind, fault.file) for fault in report.signature_faults] == [("digest", "model.sig")]


MALFORMED: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], object], str]] = {
    "media type": (lambda b, s: b.update(mediaType="x"), "has the media type 'x'"),
    "another field": (lambda b, s: b.update(dsse_envelope={}), "is no signature bundle"),
    "no envelope": (lambda b, s: b.pop("dsseEnvelope"), "is no signature bundle"),
    "no key": (lambda b, s: b.update(verificationMaterial={}), "verificationMaterial must have one of"),
    "two kinds": (lambda b, s: b["verificationMaterial"].update(certificate={}), "must have one of"),
    "two signatures": (lambda b, s: b["dsseEnvelope"].update(signatures=[{}, {}]), "must hold one signature"),
    "payload type": (lambda b, s: b["dsseEnvelope"].update(payloadType="x"), "has the payload type 'x'"),
    "statement": (lambda b, s: s.update(_type="x"), "has the statement type 'x'"),
    "predicate": (lambda b, s: s.update(predicateType="x"), "has the predicate 'x'"),
    "method": (lambda b, s: s["predicate"]["serialization"].update(method="x"), "was made by the method 'x'"),
    "resources": (lambda b, s: s["predicate"].update(resources=7), "lacks a field of the format"),
    "name": (lambda b, s: s["predicate"]["resources"][0].update(name="../../x"), "lists an unusable name"),
    "algorithm": (lambda b, s: s["predicate"]["resources"][0].update(algorithm="md5"), "has digests by 'md5'"),
    "digest": (lambda b, s: s["predicate"]["resources"][0].update(digest="zz"), "that is not hexadecimal"),
    "subject": (lambda b, s: s["predicate"]["resources"].pop(), "contradicts itself"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_malformed_bundles(signed: Signed, case: str) -> None:
    root = signed()
    change, says = MALFORMED[case]
    tampered(root, lambda bundle, statement: void(change(bundle, statement)))
    report = verify_folder(root, None)
    assert report.signature is not None
    assert report.signature.verdict is Verdict.FAIL
    assert says in report.signature.reason
    assert [(fault.kind, fault.file) for fault in report.faults] == [("digest", "model.sig")]


def void(_: object) -> None:
    """What a change returns is of no interest."""


def test_a_bundle_that_can_be_read_in_two_ways_is_refused(signed: Signed) -> None:
    root = signed()
    text = (root / "model.sig").read_text()
    (root / "model.sig").write_text(text.replace('"payloadType"', '"payload": "", "payloadType"', 1))
    with pytest.raises(JsonFault):
        read_bundle(root / "model.sig")


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_a_damaged_bundle_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    content = bytearray((DATA / "v1.1.0-elliptic-key.sig").read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 9))] = data.draw(st.binary(max_size=4))
    path = tmp_path_factory.getbasetemp() / "damaged.sig"
    path.write_bytes(content)
    with suppress(JsonFault):
        assert read_bundle(path).parts
