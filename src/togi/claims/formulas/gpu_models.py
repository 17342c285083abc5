"""The models of ``claims.formulas.models`` at the size of a GPU, under the same names.

On an H100 each kernel of theirs takes 50 us and more on average by its data sheet: ten times what a launch costs. What
saves no launch would otherwise show no difference. Those whose claim is about launches are not here.
"""

from __future__ import annotations

from functools import partial

from togi.claims.formulas import models

BATCH = 32
convolutions = partial(models.convolutions, batch=BATCH, size=224)
odd_channels = partial(models.odd_channels, batch=BATCH, size=224)
branches = partial(models.branches, batch=BATCH, size=224)
upsampled = partial(models.upsampled, batch=BATCH, size=56)
skips = partial(models.skips, batch=BATCH, size=112)
volumes = partial(models.volumes, batch=8, size=(32, 64, 64))
early_exit = partial(models.early_exit, batch=BATCH, channels=64, size=112)
transformer = partial(models.transformer, batch=4, tokens=2048, width=1024)
classified = partial(models.classified, batch=4, tokens=2048, width=1024)
handwritten = partial(models.handwritten, batch=2, tokens=2048, width=1024)
standardised = partial(models.standardised, batch=8, channels=2048)
growing = partial(models.growing, columns=1 << 22)
copies = partial(models.copies, rows=4096)
