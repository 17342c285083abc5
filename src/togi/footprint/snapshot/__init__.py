"""CUDA memory snapshots (``torch.cuda.memory._dump_snapshot``), read without running anything that they contain."""

from togi.footprint.snapshot.account import snapshot_account
from togi.footprint.snapshot.file import is_snapshot

__all__ = ["is_snapshot", "snapshot_account"]
