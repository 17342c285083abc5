"""Artifacts: load, sign, and export them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from togi.core.needs_torch import need_torch

if TYPE_CHECKING:
    from togi.artifact.export import Export
    from togi.artifact.optimized import OptimizedModule
    from togi.artifact.signing import Trusted


def load(
    path: str | Path,
    *,
    device: str | None = None,
    native: bool = True,
    trusted: Trusted | None = None,
    keep_memory: bool = True,
) -> OptimizedModule:
    """Load an artifact (``NAME.togi``); nothing in it is unpickled. See ``togi.artifact.load.load``.

    Args:
        device: what it is to run on, which has to be the device that it was tuned for. None: that one.
        native: the files of ``aot_inductor`` (machine code), ``torchscript`` and ``ncnn`` are programs, which may do
            whatever this process may. False takes an engine of its chain whose files are data.
        trusted: files of public keys, one of which has to have signed it (``togi sign``). None: it need not be signed.
        keep_memory: malloc keeps what this process frees for its next call, as where the artifact was proven; the
            process then does not shrink after a peak. False leaves malloc alone.

    Raises:
        ArtifactError: it is not signed by a trusted key, damaged, changed, unsafe, or nothing of it can run here.
    """
    need_torch("load")
    from togi.artifact.load import load as load_artifact

    return load_artifact(path, device=device, native=native, trusted=trusted, keep_memory=keep_memory)


def sign(artifact: str | Path, *, key: str | Path, password: str | None = None) -> str:
    """Sign an artifact, for ``togi.load(path, trusted=...)``. Returns the public key. See ``togi.artifact.save.sign``.

    Args:
        key: file of a private Ed25519 key (PEM, as OpenSSL writes it).
        password: of that file, where it is encrypted.

    Raises TogiError when the key cannot be used, or when the artifact is damaged.
    """
    from togi.artifact.save import sign as sign_artifact

    return sign_artifact(Path(artifact), key, password)


def export(
    artifact: str | Path, *, to: str, out: str | Path, trusted: Trusted | None = None, native: bool = True
) -> Export:
    """Write what a server loads without togi into the new folder ``out``. See ``togi.artifact.export.export``.

    Args:
        to: ``triton`` (a model repository), ``openvino``, ``onnx`` or ``pt2``.
        trusted, native: as for ``load``: what is exported is opened here.

    Raises:
        TogiError: there is no such form, the artifact has no engine for it, or ``out`` is there.
    """
    need_torch("export")
    from togi.artifact.export import export as export_artifact

    return export_artifact(artifact, to, Path(out), trusted, native=native)
