"""Storage identity of tensors, and the zip archives that torch writes storages to.

Behind it: ``UntypedStorage._cdata``, torch._C.PyTorchFileReader and PyTorchFileWriter (torch 2.9 to 2.15). When they
go: ``data_ptr`` names memory that exists (not fake and not empty storages); ``zipfile`` reads the archives, with an
alignment of 64 bytes when writing.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter

import torch

storage_key: Callable[[torch.UntypedStorage], int] = attrgetter("_cdata")
"""Identity of a storage while it lives, also of fake and empty ones: equal for tensors that share memory."""

ArchiveReader = torch._C.PyTorchFileReader
"""torch's own reader of ``.pt`` and ``.pt2`` archives: ``get_all_records()``, ``get_record(name)``."""
ArchiveWriter = torch._C.PyTorchFileWriter
"""torch's own writer: ``set_min_version``, ``write_record(name, data, size)``, ``write_end_of_file()``."""
