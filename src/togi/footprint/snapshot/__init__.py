"""CUDA memory snapshots (``torch.cuda.memory._dump_snapshot``), read without running anything that they contain."""

from togi.footprint.snapshot.account import is_snapshot, snapshot_account

__all__ = ["is_snapshot", "snapshot_account"]
