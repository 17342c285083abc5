"""Who made an artifact: signed by a trusted key, it loads; unsigned, by another key or changed since, it does not."""

from __future__ import annotations

import hashlib
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

import togi
from togi import api
from togi.artifact.manifest import MANIFEST, PartEntry, document_hash, part_folder, read_manifest
from togi.artifact.save import publish, write_manifest
from togi.artifact.signing import SIGNATURE
from togi.cli.app import run
from togi.core.errors import ArtifactError, TogiError
from togi.core.recipe import PartKey
from togi.subject.effects import Effects

OLD = Path(__file__).parent / "data" / "no_grad.togi"
X = torch.linspace(-1, 1, 8).reshape(2, 4)


def written(key: Ed25519PrivateKey | rsa.RSAPrivateKey, path: Path, password: str = "") -> Path:
    encryption = BestAvailableEncryption(password.encode()) if password else NoEncryption()
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    return written(Ed25519PrivateKey.generate(), tmp_path / "team.pem")


@pytest.fixture
def artifact(tmp_path: Path) -> Path:
    return Path(shutil.copytree(OLD, tmp_path / "net.togi"))


@pytest.fixture
def public(artifact: Path, key: Path, tmp_path: Path) -> Path:
    """The artifact is signed by then."""
    path = tmp_path / "team.pub"
    path.write_text(api.sign(artifact, key=key), encoding="utf-8")
    return path


@pytest.fixture
def other(tmp_path: Path) -> Path:
    """The public key of somebody else."""
    elsewhere = Path(shutil.copytree(OLD, tmp_path / "other.togi"))
    path = tmp_path / "other.pub"
    signer = written(Ed25519PrivateKey.generate(), tmp_path / "other.pem")
    path.write_text(api.sign(elsewhere, key=signer), encoding="utf-8")
    return path


def test_what_a_trusted_key_signed_is_loaded_and_answers(artifact: Path, public: Path, other: Path) -> None:
    expected = togi.load(OLD)(x=X)["y"]
    for trusted in (public, str(public), [other, public]):
        torch.testing.assert_close(togi.load(artifact, trusted=trusted)(x=X)["y"], expected)
    assert togi.load(artifact).engine == "eager"  # who does not ask need not have keys


def test_openssl_verifies_the_signature(artifact: Path, public: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("there is no openssl")
    command = ["openssl", "pkeyutl", "-verify", "-rawin", "-pubin", "-inkey", str(public)]
    command += ["-sigfile", str(artifact / SIGNATURE), "-in", str(artifact / MANIFEST)]
    assert subprocess.run(command, capture_output=True).returncode == 0


def test_unsigned_or_signed_by_another_is_refused(artifact: Path, key: Path, other: Path) -> None:
    with pytest.raises(ArtifactError, match=r"net\.togi is not signed.*togi sign .*net\.togi --key"):
        togi.load(artifact, trusted=other)
    api.sign(artifact, key=key)
    with pytest.raises(ArtifactError, match=r"was not signed with the key of .*other\.pub, or it was changed"):
        togi.load(artifact, trusted=[other])


@pytest.mark.usefixtures("public")
def test_nobody_is_trusted_by_an_empty_list(artifact: Path) -> None:
    with pytest.raises(TogiError, match=r"names no key.*or None"):
        togi.load(artifact, trusted=[])


def files_of(artifact: Path) -> list[str]:
    return sorted(path.relative_to(artifact).as_posix() for path in artifact.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", files_of(OLD))
def test_every_file_is_covered_also_where_all_hashes_are_made_right(artifact: Path, public: Path, name: str) -> None:
    data = bytearray((artifact / name).read_bytes())
    data[len(data) // 2] ^= 1
    document = json.loads((artifact / MANIFEST).read_text(encoding="utf-8"))
    if name == MANIFEST:
        document["subject"] = "Another"
    else:
        (artifact / name).write_bytes(data)
        (entry,) = [entry for entry in document["files"] if entry["path"] == name]
        entry["sha256"] = hashlib.sha256(data).hexdigest()
    text = json.dumps(document | {"sha256": document_hash(document)}, indent=1)
    (artifact / MANIFEST).write_text(text, encoding="utf-8")
    read_manifest(artifact)  # nothing that its hashes could tell
    with pytest.raises(ArtifactError, match="or it was changed after that"):
        togi.load(artifact, trusted=public)


def test_a_file_that_no_longer_fits_the_signed_manifest(artifact: Path, public: Path) -> None:
    path = artifact / next(name for name in files_of(OLD) if name != MANIFEST)
    path.write_bytes(path.read_bytes() + b"x")
    with pytest.raises(ArtifactError, match="cut or changed"):
        togi.load(artifact, trusted=public)


def test_parts_are_covered_too(tmp_path: Path, key: Path) -> None:
    folder, old = tmp_path / "parts.togi", read_manifest(OLD)
    shutil.copytree(OLD, part_folder(folder, 0))
    part = PartEntry(key=PartKey(path="body"), module="Body", effects=Effects(), weights="")
    about = {name: getattr(old, name) for name in ("subject", "recipe", "signature", "facts", "proof", "environment")}
    write_manifest(folder, **about, parts=(part,))
    (tmp_path / "team.pub").write_text(api.sign(folder, key=key), encoding="utf-8")
    togi.load(folder, trusted=tmp_path / "team.pub")
    inside = part_folder(folder, 0) / MANIFEST
    inside.write_bytes(inside.read_bytes().replace(b'"subject"', b'"Subject"'))
    with pytest.raises(ArtifactError, match=r"parts/0/manifest\.json has changed"):
        togi.load(folder, trusted=tmp_path / "team.pub")


@pytest.mark.parametrize("change", [lambda data: data[:0], lambda data: data[:-1], lambda data: data + b"\0"])
def test_a_damaged_signature_is_refused(artifact: Path, public: Path, change: Callable[[bytes], bytes]) -> None:
    path = artifact / SIGNATURE
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ArtifactError, match="was not signed with the key"):
        togi.load(artifact, trusted=public)


def test_a_symbolic_link_is_not_a_signature(artifact: Path, public: Path, tmp_path: Path) -> None:
    (artifact / SIGNATURE).rename(tmp_path / "elsewhere")
    (artifact / SIGNATURE).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ArtifactError, match="is not signed"):
        togi.load(artifact, trusted=public)


def test_keys_that_cannot_be_used(
    artifact: Path, key: Path, public: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_rsa = written(rsa.generate_private_key(65537, 2048), tmp_path / "rsa.pem")
    with pytest.raises(TogiError, match=r"rsa\.pem cannot be used: .*another kind than Ed25519.*openssl genpkey"):
        api.sign(artifact, key=of_rsa)
    with pytest.raises(TogiError, match=r"absent\.pem cannot be read: No such file.*openssl genpkey"):
        api.sign(artifact, key=tmp_path / "absent.pem")
    with pytest.raises(TogiError, match=r"team\.pub cannot be used"):
        api.sign(artifact, key=public)
    with pytest.raises(TogiError, match=r"team\.pem cannot be used: .*openssl pkey -in KEY\.pem -pubout"):
        togi.load(artifact, trusted=key)
    monkeypatch.setitem(sys.modules, "cryptography.hazmat.primitives.serialization", None)
    with pytest.raises(TogiError, match=r"cryptography, which is not installed here: pip install 'togi\[sign\]'"):
        togi.load(artifact, trusted=public)


def test_an_encrypted_key_needs_its_password(artifact: Path, tmp_path: Path) -> None:
    key = written(Ed25519PrivateKey.generate(), tmp_path / "team.pem", password="süß")
    with pytest.raises(TogiError, match=r"cannot be used: Password was not given.*encrypted"):
        api.sign(artifact, key=key)
    with pytest.raises(TogiError, match=r"cannot be used: .*Incorrect password"):
        api.sign(artifact, key=key, password="sour")
    assert not (artifact / SIGNATURE).exists()
    public = api.sign(artifact, key=key, password="süß")
    assert public.startswith("-----BEGIN PUBLIC KEY-----\n")


def test_what_is_damaged_is_not_signed(artifact: Path, key: Path) -> None:
    (artifact / "extra.bin").write_bytes(b"x")
    with pytest.raises(ArtifactError, match="does not list"):
        api.sign(artifact, key=key)
    assert not (artifact / SIGNATURE).exists()


def test_copies_stay_signed_and_other_commands_ask_for_it_too(
    artifact: Path, public: Path, other: Path, tmp_path: Path
) -> None:
    copy = publish(artifact, tmp_path / "copy.togi")
    api.export(copy, to="pt2", out=tmp_path / "out", trusted=public)
    with pytest.raises(ArtifactError, match="was not signed with the key"):
        api.export(copy, to="pt2", out=tmp_path / "again", trusted=other)
    with pytest.raises(ArtifactError, match="was not signed with the key"):
        api.verify(copy, trusted=other)


def test_the_commands_sign_and_verify(
    artifact: Path, key: Path, other: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["sign", str(artifact), "--key", str(key)]) == 0
    told = capsys.readouterr()
    assert "net.togi is signed" in told.err
    public = key.with_suffix(".pub")
    public.write_text(told.out, encoding="utf-8")
    assert run(["sign", str(artifact), "--key", str(key), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["kind"] == "signature"
    assert document["public_key"] == told.out
    out = ["--to", "pt2", "--out", str(artifact.parent / "out")]
    assert run(["export", str(artifact), *out, "--trusted", str(other)]) == 2
    assert "was not signed" in capsys.readouterr().err
    assert run(["export", str(artifact), *out, "--trusted", str(other), "--trusted", str(public)]) == 0
    assert run(["verify", str(artifact), "--trusted", str(other)]) == 2
    assert "was not signed" in capsys.readouterr().err
