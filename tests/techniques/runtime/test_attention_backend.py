"""The kernel of attention is the one that was chosen, as torch says what can run; overlapping calls put it back."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from togi.core.errors import Refused
from togi.core.records import Stage
from togi.core.settings import Settings
from togi.graph.candidate import Candidate
from togi.search.space import Space
from togi.techniques import Applies, Refuses, all_techniques, compatible, conformance, technique
from togi.techniques.runtime.attention_backend import BACKENDS, AttentionBackend

BACKEND = AttentionBackend()
MASK = torch.zeros(8, 8)


class Attends(nn.Module):
    def __init__(self, *, learned_mask: bool = False) -> None:
        super().__init__()
        self.mask = nn.Parameter(MASK.clone()) if learned_mask else None

    def forward(self, x: Tensor) -> Tensor:
        return scaled_dot_product_attention(x, x + 1, x, attn_mask=self.mask)


def candidate(module: nn.Module | None = None, **changes: Any) -> Candidate:
    made = conformance.candidate_of(module or Attends(), [torch.randn(1, 2, 8, 16)])
    return made.with_(facts=made.facts.model_copy(update=changes))


class Operators(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.name())
        return func(*args, **(kwargs or {}))


def fused(call: Any, x: Tensor) -> bool:
    with torch.no_grad(), Operators() as seen:
        call(x)
    return "aten::_scaled_dot_product_flash_attention_for_cpu" in seen.names


@pytest.mark.parametrize(("name", "is_fused"), [("math", False), ("flash", True)])
def test_the_chosen_kernel_runs_and_torchs_own_choice_is_put_back(name: str, is_fused: bool) -> None:
    start = candidate()
    (x,) = start.flat_samples()[0]
    applied = BACKEND.apply(start, {"backend": name})
    assert fused(applied.runnable(), x) is is_fused
    assert fused(start.runnable(), x)


def test_a_cpu_has_one_other_kernel() -> None:
    assert BACKEND.options(candidate().facts) == [{"backend": "math"}]


@pytest.mark.parametrize(
    ("dtypes", "offered", "lowered"),
    [
        (("float32",), ["efficient", "flash", "cudnn", "math"], ["flash", "cudnn"]),
        (("bfloat16",), ["flash", "cudnn", "efficient", "math"], []),
        (("float32", "float16"), ["flash", "cudnn", "efficient", "math"], []),
        (("float64",), ["math"], []),
        ((), ["efficient", "flash", "cudnn", "math"], ["flash", "cudnn"]),  # by its inputs, which are float32
    ],
)
def test_a_gpu_has_the_kernels_that_take_the_types(
    dtypes: tuple[str, ...], offered: list[str], lowered: list[str]
) -> None:
    facts = candidate(device="cuda", parameter_dtypes=dtypes).facts
    if dtypes:
        inputs = tuple(one.model_copy(update={"dtype": dtypes[0]}) for one in facts.inputs)
        facts = facts.model_copy(update={"inputs": inputs})
    options = BACKEND.options(facts)
    assert [each["backend"] for each in options] == offered
    assert [each["backend"] for each in options if BACKEND.needs_with(facts, each)] == lowered
    same = [each["backend"] for each in options if BACKEND.expected_speedup(facts, each) == 1]
    assert same == (["efficient"] if lowered else []), "it is torch's own choice in float32"


@pytest.mark.parametrize("bound", [None, 0.01])
def test_a_module_in_float32_meets_16_bit_kernels_in_16_bits_alone(bound: float | None) -> None:
    facts = candidate(device="cuda").facts
    space = Space.of(facts, Settings(max_error=bound), all_techniques())
    around = [*space.neighbours(space.reference), *itertools.islice(space.recipes(), 3000)]
    found = {
        (str(choice.options["backend"]), any(one.stage is Stage.PRECISION and one.technique != "tf32" for one in all_))
        for all_ in (recipe.choices for recipe in around)
        for choice in all_
        if choice.technique == "attention_backend"
    }
    in_float32 = {("efficient", False), ("math", False)}
    assert {pair for pair in found if not pair[1]} == in_float32
    assert {name for name, low in found if low} == (set() if bound is None else set(BACKENDS))


def test_what_torch_cannot_run_is_refused_in_its_words() -> None:
    with pytest.raises(Refused, match="torch cannot run its attention with cudnn: No viable backend"):
        BACKEND.apply(candidate(), {"backend": "cudnn"})
    with pytest.raises(Refused, match=r"flash: No available kernel.* kernel not used because"):
        BACKEND.apply(candidate(Attends(learned_mask=True)), {"backend": "flash"})
    with pytest.raises(Refused, match="one of flash, cudnn, efficient, math, not 'quick'"):
        BACKEND.apply(candidate(), {"backend": "quick"})


def test_on_a_gpu_the_others_follow_the_chosen_one(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[list[str], bool]] = []

    @contextmanager
    def recorded(backends: Any, set_priority: bool = False) -> Iterator[None]:
        asked.append(([one.name for one in backends] if isinstance(backends, list) else [backends.name], set_priority))
        yield

    monkeypatch.setattr("torch.nn.attention.sdpa_kernel", recorded)
    start = candidate(device="cuda")
    BACKEND.apply(start, {"backend": "efficient"}).runnable()(*start.flat_samples()[0])
    assert asked == [
        (["EFFICIENT_ATTENTION"], False),
        (["EFFICIENT_ATTENTION", "FLASH_ATTENTION", "CUDNN_ATTENTION", "MATH"], True),
    ]


def test_where_there_is_nothing_to_choose() -> None:
    plain = conformance.candidate_of(nn.Linear(2, 2), [torch.ones(1, 2)])
    assert isinstance(BACKEND.applies(plain.facts), Refuses)
    assert isinstance(BACKEND.applies(candidate().facts), Applies)
    for engine, allowed in {
        "openvino": False,
        "ncnn": False,
        "aot_inductor": False,
        "torch_compile": True,
        "cuda_graph": True,
    }.items():
        assert compatible([BACKEND, technique(engine)]) is allowed


def test_a_saved_program_is_not_called_when_it_is_loaded() -> None:
    loaded = candidate().with_(module=nn.Identity(), samples=())
    assert len(BACKEND.apply(loaded, {"backend": "cudnn"}).contexts) == 1


def test_conformance() -> None:
    conformance.check(BACKEND, [candidate, lambda: conformance.candidate_of(nn.Linear(2, 2), [torch.ones(1, 2)])])
