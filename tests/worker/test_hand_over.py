"""What a live subject is called in journals and reports."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from togi.artifact.settings import settings_of
from togi.subject.sources.live import unpickled
from togi.worker.hand_over import dump, handed_over


class Encoder(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 1

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        return self(x)


ENCODER = Encoder().eval()


def pipeline(x: torch.Tensor) -> torch.Tensor:
    return ENCODER(x)


@pytest.mark.parametrize(
    ("subject", "name"), [(ENCODER, "Encoder"), (ENCODER.encode, "Encoder.encode"), (pipeline, "pipeline")]
)
def test_a_program_goes_by_what_is_called(subject: object, name: str) -> None:
    with handed_over(subject, torch.ones(2), {}) as (_, found):
        assert found == name


def test_code_that_is_sent_along_is_known_as_before(tmp_path: Path) -> None:
    """Whose code it is decides what an artifact remembers of it, and what a message shows: by its file, which
    cloudpickle drops."""

    class Local(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return torch.stack([row + 1 for row in x])

    module = Local().eval()
    settings, file, line = (
        settings_of(module),
        Local.forward.__code__.co_filename,
        Local.forward.__code__.co_firstlineno,
    )
    dump(module, tmp_path / "module")
    again = unpickled(tmp_path / "module")
    code = type(again).forward.__code__
    assert (code.co_filename, code.co_firstlineno) == (file, line)
    assert settings_of(again) == settings
