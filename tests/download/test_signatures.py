"""Signatures: published ones of every kind and version, and our own. What can be wrong with one: test_bundles.py."""

from __future__ import annotations

import datetime
import hashlib
import json
from pathlib import Path

import pytest
import sigstore
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID
from model_signing import hashing, signing

from day0.errors import InputError
from day0.verdict import Verdict
from tasks.download import signatures
from tasks.download.authenticity import Trust, authenticate
from tasks.download.bundle import read_bundle
from tasks.download.signatures import find_signature
from tasks.download.verify import verify_folder
from tests.download.builder import TWO, two_shards
from tests.download.signing import DATA, KEY, Signed, check, run

SIGNER, PROVIDER = "stefanb@us.ibm.com", "https://sigstore.verify.ibm.com/oauth2"


@pytest.fixture(autouse=True)
def own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAY0_HOME", str(tmp_path / "home"))


def published(root: Path, name: str, first: bytes = b"signme-1") -> Path:
    """A folder that the published bundle `name` signs."""
    root.mkdir()
    (root / "signme-1").write_bytes(first)
    (root / "signme-2").write_bytes(b"signme-2")
    (root / "model.sig").write_bytes((DATA / f"{name}.sig").read_bytes())
    return root


def public_sigstore(folder: Path) -> Path:
    """The trust configuration of the public Sigstore, as its library ships it: no network is needed."""
    store = Path(sigstore.__file__).parent / "_store" / "https%3A%2F%2Ftuf-repo-cdn.sigstore.dev"
    config = {
        "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
        "trustedRoot": json.loads((store / "trusted_root.json").read_text()),
        "signingConfig": json.loads((store / "signing_config.v0.2.json").read_text()),
    }
    (folder / "trust.json").write_text(json.dumps(config))
    return folder / "trust.json"


@pytest.mark.parametrize(
    ("name", "first", "trust"),
    [
        ("v0.2.0-certificate", b"signme-1", Trust(certificate_chain=(DATA / "ca-cert.pem",))),
        ("v1.1.0-certificate", b"signme-1", Trust(certificate_chain=(DATA / "ca-cert.pem",))),
        ("v1.1.0-elliptic-key", b"signme-1\n", Trust(public_key=KEY)),
        ("v1.1.0-sigstore", b"signme-1", Trust(identity=SIGNER, identity_provider=PROVIDER)),
    ],
)
def test_published_signatures(tmp_path: Path, name: str, first: bytes, trust: Trust) -> None:
    root = published(tmp_path / "m", name, first)
    if trust.kind == "sigstore":
        trust = Trust(identity=SIGNER, identity_provider=PROVIDER, trust_config=public_sigstore(tmp_path))
    report = verify_folder(root, None, signature=find_signature(root, trust=trust))
    assert report.signature is not None
    assert (report.signature.verdict, report.signature.measured) == (Verdict.PASS, {"kind": trust.kind, "files": 2})
    assert not report.signature_faults

    (root / "signme-2").write_bytes(b"signme-3")
    report = verify_folder(root, None, signature=find_signature(root, trust=trust))
    assert report.signature is not None
    assert (report.signature.verdict, report.signature.reason) == (Verdict.FAIL, "signme-2 is not what was signed")


def test_a_published_signature_of_a_single_file_is_none_of_a_folder(tmp_path: Path) -> None:
    root = published(tmp_path / "m", "v0.3.1-elliptic-key", b"signme-1\n")
    report = verify_folder(root, None)
    assert report.signature is not None
    assert report.signature.reason == "model.sig signs a single file, not a folder"
    assert report.verdict is Verdict.FAIL


def test_another_identity_did_not_sign(tmp_path: Path) -> None:
    bundle = read_bundle(DATA / "v1.1.0-sigstore.sig")
    trust = Trust(identity="eve@us.ibm.com", identity_provider=PROVIDER, trust_config=public_sigstore(tmp_path))
    verdict, reason = authenticate(bundle, trust)
    assert verdict is Verdict.FAIL
    assert "not by the identity given" in reason


def test_without_the_network_sigstore_is_inconclusive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTPS_PROXY", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bundle = read_bundle(DATA / "v1.1.0-sigstore.sig")
    verdict, reason = authenticate(bundle, Trust(identity=SIGNER, identity_provider=PROVIDER))
    assert verdict is Verdict.INCONCLUSIVE
    assert "--trust-config" in reason


def test_a_release_signed_by_whom_the_user_trusts(signed: Signed, keys: Path) -> None:
    root = signed()
    count = sum(path.name != "model.sig" for path in root.iterdir())
    answer = run(root, "--public-key", keys / "ours.pub")
    assert answer.exit_code == 0
    assert check(answer) == {
        "name": "signature",
        "verdict": "pass",
        "reason": f"signed by the key given: {count} files",
        "measured": {"kind": "key", "files": count},
    }
    assert json.loads(answer.stdout)["contents"] == {"checked_files": count, "compared_with": "manifest"}


def test_digests_are_compared_also_where_nobody_is_named(signed: Signed) -> None:
    root = signed()
    answer = run(root)
    assert (answer.exit_code, check(answer)["verdict"]) == (0, "skipped")
    assert "give --public-key" in check(answer)["reason"]
    assert [warning["file"] for warning in json.loads(answer.stdout)["warnings"]] == ["model.sig"]

    content = bytearray((root / TWO).read_bytes())
    content[-1] ^= 1
    (root / TWO).write_bytes(content)
    answer = run(root)
    assert (answer.exit_code, check(answer)["verdict"]) == (1, "fail")
    (fault,) = json.loads(answer.stdout)["faults"]
    assert (fault["kind"], fault["file"]) == ("digest", TWO)
    assert hashlib.sha256(content).hexdigest() in fault["detail"]


def test_nothing_is_hashed_for_the_signature_that_is_known(signed: Signed, monkeypatch: pytest.MonkeyPatch) -> None:
    root = signed()
    monkeypatch.setattr(signatures, "_hasher", lambda _: pytest.fail("it was read again"))
    report = verify_folder(root, None, hash_all=True)
    assert report.signature is not None
    assert report.signature.verdict is Verdict.SKIPPED


def test_another_key_did_not_sign(signed: Signed, keys: Path) -> None:
    answer = run(signed(), "--public-key", keys / "eve.pub")
    assert (answer.exit_code, check(answer)["verdict"]) == (1, "fail")
    (fault,) = json.loads(answer.stdout)["faults"]
    assert (fault["kind"], fault["file"]) == ("digest", "model.sig")
    assert "not by the key given" in fault["detail"]


def test_a_file_that_nobody_signed(signed: Signed, keys: Path) -> None:
    root = signed()
    (root / "notes.json").write_text("{}")
    answer = run(root, "--public-key", keys / "ours.pub")
    assert (answer.exit_code, check(answer)["reason"]) == (1, "notes.json is not covered by the signature")
    assert [fault["file"] for fault in json.loads(answer.stdout)["faults"]] == ["notes.json"]
    answer = run(root)
    assert answer.exit_code == 0
    assert "notes.json is not covered by it" in check(answer)["reason"]


def test_a_signer_may_leave_out_files_but_no_weights(signed: Signed, keys: Path) -> None:
    root = signed(ignored=("README.md", TWO))
    (root / "README.md").write_text("of whatever kind")
    answer = run(root, "--public-key", keys / "ours.pub")
    assert answer.exit_code == 1
    assert {fault["file"] for fault in json.loads(answer.stdout)["faults"]} == {TWO}


def test_a_signed_file_that_is_gone(signed: Signed, keys: Path) -> None:
    root = signed()
    (root / "config.json").unlink()
    answer = run(root, "--public-key", keys / "ours.pub")
    assert answer.exit_code == 1
    assert [(f["kind"], f["file"]) for f in json.loads(answer.stdout)["faults"]] == [("missing_shard", "config.json")]


def test_a_signature_that_was_taken_away(signed: Signed, keys: Path) -> None:
    root = signed()
    (root / "model.sig").unlink()
    answer = run(root, "--public-key", keys / "ours.pub")
    assert (answer.exit_code, check(answer)["reason"]) == (1, "model.sig is not there: the release is not signed")
    assert "signature" not in {each["name"] for each in json.loads(run(root).stdout)["checks"]}


def test_a_signature_beside_the_release(signed: Signed, keys: Path, tmp_path: Path) -> None:
    root = signed()
    (root / "model.sig").rename(tmp_path / "release.sig")
    assert run(root, "--signature", tmp_path / "release.sig", "--public-key", keys / "ours.pub").exit_code == 0
    assert run(root, "--signature", tmp_path / "none.sig").exit_code == 2


def test_a_fault_of_another_kind_does_not_hide_behind_a_good_signature(signed: Signed, keys: Path) -> None:
    root = signed()
    listing = {"files": {TWO: {"sha256": "0" * 64}}}
    (root.parent / "manifest.json").write_text(json.dumps(listing))
    answer = run(root, "--manifest", root.parent / "manifest.json", "--public-key", keys / "ours.pub")
    assert (answer.exit_code, check(answer)["verdict"]) == (1, "pass")


@pytest.mark.parametrize(
    "config",
    [
        hashing.Config().use_shard_serialization(shard_size=100),
        hashing.Config().use_file_serialization(hashing_algorithm="blake2"),
        hashing.Config().use_file_serialization(hashing_algorithm="blake3"),
    ],
    ids=["shards", "blake2", "blake3"],
)
def test_other_ways_to_hash(signed: Signed, keys: Path, config: hashing.Config) -> None:
    root = signed(config)
    trust = Trust(public_key=keys / "ours.pub")
    report = verify_folder(root, None, signature=find_signature(root, trust=trust))
    assert report.signature is not None
    assert (report.signature.verdict, report.signature_faults) == (Verdict.PASS, ())
    with (root / "config.json").open("a") as file:
        file.write(" ")  # beyond all that was signed
    report = verify_folder(root, None)
    assert report.signature is not None
    assert report.signature.reason == "config.json is not what was signed"
    (fault,) = report.signature_faults
    assert (fault.kind, fault.file) == ("digest", "config.json")


@pytest.fixture(scope="module")
def authority(keys: Path) -> dict[str, Path]:
    """A certificate authority, `signer` with its key `ours.pem`, and `clerk` with the same, but not for signing."""
    ca_key = ec.generate_private_key(ec.SECP256R1())
    paths = {}
    key = serialization.load_pem_private_key((keys / "ours.pem").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    for name, subject_key, signs, is_ca in (
        ("ca", ca_key, True, True),
        ("signer", key, True, False),
        ("clerk", key, False, False),
    ):
        now = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)
        usage = x509.KeyUsage(signs, False, not signs, False, False, is_ca, is_ca, False, False)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)]))
            .issuer_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "ca")]))
            .public_key(subject_key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now)
            .not_valid_after(now + datetime.timedelta(days=3650))
            .add_extension(x509.BasicConstraints(ca=is_ca, path_length=None), critical=True)
            .add_extension(usage, critical=True)
            .sign(ca_key, hashes.SHA256())
        )
        paths[name] = keys / f"{name}.crt"
        paths[name].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    return paths


@pytest.mark.parametrize(
    ("signer", "trusted", "verdict"),
    [("signer", "ca.crt", "pass"), ("signer", "ca-cert.pem", "fail"), ("clerk", "ca.crt", "fail")],
)
def test_certificates(
    tmp_path: Path, keys: Path, authority: dict[str, Path], signer: str, trusted: str, verdict: str
) -> None:
    root = two_shards(tmp_path / "m")
    config = signing.Config().use_certificate_signer(
        private_key=keys / "ours.pem", signing_certificate=authority[signer], certificate_chain=[authority["ca"]]
    )
    config.sign(root, root / "model.sig")
    chain = authority["ca"] if trusted == "ca.crt" else DATA / trusted
    answer = run(root, "--certificate-chain", chain)
    assert check(answer)["verdict"] == verdict
    assert check(run(root, "--public-key", keys / "ours.pub"))["verdict"] == "fail"  # signed by another kind


@pytest.mark.parametrize(
    "options",
    [
        ["--public-key", KEY, "--identity", "me"],
        ["--identity", "me"],
        ["--identity-provider", "https://x"],
        ["--trust-config", KEY],
        ["--public-key", DATA / "none.pem"],
        ["--public-key", DATA / "ca-cert.pem"],
    ],
)
def test_unusable_options(signed: Signed, options: list[object]) -> None:
    assert run(signed(), *options).exit_code == 2


def test_without_the_library_it_is_inconclusive(
    signed: Signed, keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = signed()
    blocked = tmp_path / "blocked"
    blocked.mkdir()
    (blocked / "sitecustomize.py").write_text("import sys; sys.modules['model_signing'] = None")
    monkeypatch.setenv("PYTHONPATH", str(blocked))
    answer = run(root, "--public-key", keys / "ours.pub")
    assert (answer.exit_code, check(answer)["verdict"]) == (3, "inconclusive")
    assert "pip install 'day0[signing]'" in check(answer)["reason"]


def test_a_damaged_file_and_a_bad_signature_are_both_told(signed: Signed, keys: Path) -> None:
    root = signed()
    (root / "config.json").write_text("{}")
    answer = run(root, "--public-key", keys / "eve.pub")
    assert {fault["file"] for fault in json.loads(answer.stdout)["faults"]} == {"config.json", "model.sig"}


def test_a_key_that_cannot_be_read_is_told_before_anything_is_hashed(signed: Signed) -> None:
    with pytest.raises(InputError, match="--public-key cannot be used"):
        find_signature(signed(), trust=Trust(public_key=DATA / "README.md"))
