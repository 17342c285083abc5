"""What is compiled where it stands: which ways are tried, and what their artifacts hold."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from tests.study.parts.part_fakes import in_place
from togi.artifact.load import load
from togi.artifact.manifest import read_manifest
from togi.core.errors import TogiError
from togi.core.records import Facts
from togi.core.settings import Settings
from togi.machine.describe import machine
from togi.program.parts import Uncaptured
from togi.search.configurations import configurations_for
from togi.study.parts.in_place import InPlace
from togi.study.tuned_subject import TunedSubject
from togi.subject.inputs import Inputs
from togi.subject.signature import Signature
from togi.techniques import all_techniques, recipe


class Whole:
    """The study of a program with a compiler."""

    left_s = 0.0

    def __init__(self, folder: Path) -> None:
        here = machine("cpu").model_copy(update={"compiler": "g++"})
        facts = Facts(device="cpu", machine=here, module_class="Network")
        configurations, _ = configurations_for(facts, Settings(), all_techniques())
        layer, sample = nn.Linear(2, 2), Inputs((torch.ones(1, 2),))
        signature, pool = Signature.of(layer, [sample], [layer(*sample.args)]), SimpleNamespace(folder=folder)
        self.subject = TunedSubject(pool, "program", facts, signature, Settings())  # type: ignore[arg-type]
        self.search = SimpleNamespace(space=SimpleNamespace(configurations=configurations))
        self.budget = SimpleNamespace(explore_s=lambda **_: self.left_s)


def test_how_it_is_compiled_where_it_stands_is_its_whole_artifact(tmp_path: Path) -> None:
    """Each way is tried once, where there is time for it and its proof."""
    whole: Any = Whole(tmp_path)
    network = InPlace(whole, Uncaptured(path="", module="Network", share=1.0, calls=1, weights="hash"))
    assert network.holds("net.layers")
    whole.left_s = 7.0
    assert network.next() is None
    whole.left_s = 8.0
    ways = [network.next(), network.next()]
    assert network.next() is None
    for freezing, way in zip((True, False), ways, strict=True):
        assert way is not None
        ((entry, folder),) = way.artifacts
        (link,) = read_manifest(folder).chain
        assert (entry.key.path, entry.module, entry.weights) == ("", "Network", "hash")
        assert (link.engine, link.meta["options"]["freezing"]) == ("torch_compile", freezing)
        assert [choice.technique for choice in link.runtime] == ["no_grad"], "as the original was measured"
        with pytest.raises(TogiError, match=r"togi.load\(path\).into\(program\)"):
            load(folder)(torch.ones(1, 2))


def test_what_is_compiled_for_a_block_holds_no_weights(tmp_path: Path) -> None:
    """Or each would be compiled by itself. It takes less than the whole."""
    whole: Any = Whole(tmp_path)
    blocks = InPlace(
        whole,
        *(Uncaptured(path=path, module="Block", share=0.4, calls=1, weights="hash") for path in ("a", "b", "a")),
    )
    assert blocks.key.label == "a and 1 alike"
    whole.left_s = 3.0
    assert blocks.next() is None
    whole.left_s = 4.0
    way = blocks.next()
    assert blocks.next() is None
    assert way is not None
    assert way.recipe == recipe(torch_compile={"mode": "default", "freezing": False}, no_grad={})
    assert [entry.key.path for entry, _ in way.artifacts] == ["a", "b", "a"]


@pytest.mark.parametrize(
    ("path", "held"),
    [("net", [True, True, False]), ("", [True, True, True]), ("net.layers", [False, True, False])],
)
def test_which_parts_are_inside(path: str, held: list[bool]) -> None:
    assert [in_place(path).holds(part) for part in ("net", "net.layers", "network")] == held
