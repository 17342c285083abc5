"""Who made an artifact: an Ed25519 signature of its manifest, which holds the hash of every other file.

``manifest.sig`` is the bare signature of the manifest's bytes, so that OpenSSL can check it too (``pkeyutl -verify
-rawin``). Keys are PEM files, as OpenSSL writes them. Source: RFC 8032.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from os import PathLike, fspath
from pathlib import Path
from typing import TYPE_CHECKING

from togi.core.errors import ArtifactError, TogiError
from togi.core.quantities import first_line

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

SIGNATURE = "manifest.sig"
SIGNATURE_BYTES = 64

PathLikeOrStr = str | PathLike[str]
Trusted = PathLikeOrStr | Sequence[PathLikeOrStr]
"""PEM files of public keys."""


def check_signature(folder: Path, manifest: bytes, trusted: Trusted) -> None:
    """That one of the trusted keys has signed the artifact whose manifest these bytes are.

    Raises ArtifactError where none has, TogiError where no key is named or one cannot be used.
    """
    paths = [trusted] if isinstance(trusted, str | PathLike) else list(trusted)
    if not paths:
        raise TogiError(
            "trusted names no key, so nothing could be loaded: give the public keys of those whose artifacts are to be "
            "loaded, or None for anybody's"
        )
    keys = [public_key(path) for path in paths]
    path = folder / SIGNATURE
    if not path.is_file() or path.is_symlink():
        raise ArtifactError(
            f"{folder} is not signed (it holds no {SIGNATURE}), and only what a trusted key has signed is loaded: "
            f"whoever made it signs it with 'togi sign {folder} --key KEY.pem'"
        )
    from cryptography.exceptions import InvalidSignature

    with path.open("rb") as file:
        signature = file.read(SIGNATURE_BYTES + 1)
    for key in keys:
        try:
            key.verify(signature, manifest)
        except InvalidSignature:
            continue
        return
    raise ArtifactError(
        f"{folder} was not signed with the key of {' or '.join(fspath(path) for path in paths)}, or it was changed "
        "after that, so it is not loaded: get it again from whoever made it, and their public key"
    )


def public_key(path: PathLikeOrStr) -> Ed25519PublicKey:
    """Raises TogiError where it cannot be read or is not such a key, or where the package ``cryptography`` is
    missing."""
    with _key_file(path, "openssl pkey -in KEY.pem -pubout -out KEY.pub") as data:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
        from cryptography.hazmat.primitives.serialization import load_pem_public_key

        key = load_pem_public_key(data)
        if not isinstance(key, Ed25519PublicKey):
            raise TypeError("it is a public key of another kind than Ed25519")
        return key


def private_key(path: PathLikeOrStr, password: str | None = None) -> Ed25519PrivateKey:
    """``password``: of a file that is encrypted.

    Raises TogiError as ``public_key`` does, and where the password is missing or wrong.
    """
    with _key_file(path, "openssl genpkey -algorithm ed25519 -out KEY.pem") as data:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        key = load_pem_private_key(data, None if password is None else password.encode())
        if not isinstance(key, Ed25519PrivateKey):
            raise TypeError("it is a private key of another kind than Ed25519")
        return key


def public_pem(key: Ed25519PrivateKey) -> str:
    """The public key that belongs to it, as the text of a PEM file."""
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    return key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo).decode()


@contextmanager
def _key_file(path: PathLikeOrStr, make: str) -> Iterator[bytes]:
    """Its bytes; what reading them as a key raises becomes a TogiError. ``make``: a command that writes such a key."""
    try:
        yield Path(path).read_bytes()
    except ImportError:
        raise TogiError(
            "signatures need the package cryptography, which is not installed here: pip install 'togi[sign]'"
        ) from None
    except OSError as error:
        raise TogiError(f"the key {fspath(path)} cannot be read: {error.strerror}. '{make}' writes one") from None
    except Exception as error:  # foreign code: the parser raises several kinds
        why = first_line(error).rstrip(".")
        raise TogiError(f"the key {fspath(path)} cannot be used: {why}. '{make}' writes one") from None
