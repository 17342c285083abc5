"""Which blocks of a program repeat."""

from __future__ import annotations

import torch
from torch import nn

from togi.program.repeated import CalledModule, repeated


class Mixer(nn.Sequential):
    pass


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.mixers = nn.ModuleList(Mixer(nn.Linear(width, width)) for _ in range(2))
        self.again = Block(width - 1) if width % 2 else None


def found(network: nn.Module, *paths: str) -> list[list[str]]:
    called = [CalledModule(network.get_submodule(path), path, 0.1, 1) for path in paths]
    return [[each.path for each in blocks] for blocks in repeated(called)]


def test_the_outermost_of_one_class_whatever_their_sizes() -> None:
    network = nn.ModuleDict({"first": Block(4), "second": Block(6), "third": Block(5), "mixer": Mixer(nn.Linear(2, 2))})
    inside = ["first.mixers.0", "first.mixers.1", "third.again"]
    assert found(network, "first", "second", "third", *inside) == [["first", "second", "third"]]
    assert found(network, "first", "mixer", *inside) == [["first", "third.again"]], "one mixer is left"
    assert found(network, "mixer", *inside) == [["mixer", "first.mixers.0", "first.mixers.1"]]


def test_what_is_called_in_two_forms_is_one() -> None:
    network = nn.ModuleDict({"first": Block(4), "second": Block(6)})
    assert found(network, "first", "first") == []
    assert found(network, "first", "second", "first") == [["first", "second", "first"]]


def test_layers_and_torchscript_are_not_blocks() -> None:
    network = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    assert found(network, "0", "1") == []
    scripted = nn.ModuleList(torch.jit.script(Mixer(nn.Linear(2, 2))) for _ in range(2))
    assert found(scripted, "0", "1") == []
