"""Faults planted in the artifact of one part of a program: the program with it in place is proven wrong.

From the recorded run to the live program: cut, built, saved, loaded, put in, and judged as a trial judges it. Four
kinds of faults in each of eighteen cases are seventy-two (``benchmarks/README.md``); the first case is in every run of
the tests.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import togi
from togi.artifact.installed import Installed, install
from togi.artifact.links import write_links
from togi.artifact.part_engine import PartEngine
from togi.artifact.save import write_manifest
from togi.core.records import Outcome, Trial
from togi.core.settings import Settings
from togi.decide.faithful import accept
from togi.program.cuts import find_cuts
from togi.program.parts import CutRequest
from togi.study.parts.assembly import Assembly, TunedPart, write_assembly
from togi.study.tuned_subject import TunedSubject
from togi.subject.inputs import Inputs, Subject
from togi.subject.nested import tensors_in
from togi.subject.program import as_module
from togi.subject.pure import pure
from togi.subject.signature import Signature
from togi.subject.stored_inputs import read_inputs
from togi.techniques import recipe
from togi.techniques.build import build, first_candidate
from togi.torch_internals.deferred import Deferred
from togi.verify.reference import make_truth
from togi.verify.verdict import verify
from togi.worker.forced import with_forced_calls
from togi.worker.job import part_of
from togi.worker.protocol import PartRef

NEW_TOKENS = 6
PROMPT = 7
Flat = Callable[[list[Tensor]], Any]
"""A call of the engine: ``(output, the tensors that are new in what the call changes)``, or the output alone."""
Fault = Callable[[Flat, Signature], Flat]


@dataclass(frozen=True)
class Program:
    make: Callable[[int], Callable[..., Any]]
    """Of a seed: what is called."""
    samples: Callable[[int], list[Inputs]]
    path: str
    """Of the part; of its forms, that with the most calls."""
    calls: int
    swap: Callable[[Any], None]
    """Two layers of the part."""
    stale: Fault
    at_one_size: Fault


def tokens(seed: int) -> Tensor:
    return torch.randint(3, 64, (2, PROMPT), generator=torch.Generator().manual_seed(seed))


def texts(seed: int, *, padded: slice) -> list[Inputs]:
    """Two prompts, the second padded."""
    mask = torch.ones(2, PROMPT, dtype=torch.long)
    mask[1, padded] = 0
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    return [Inputs((), {"input_ids": tokens(seed) * mask, "attention_mask": mask, **options})]


def gpt2(seed: int) -> Callable[..., Any]:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.GPT2Config(
        vocab_size=64,
        n_embd=32,
        n_layer=2,
        n_head=2,
        n_positions=32,
        initializer_range=0.2,
        eos_token_id=None,
        pad_token_id=0,
    )
    return transformers.GPT2LMHeadModel(config).eval().generate  # type: ignore[no-any-return]


def t5(seed: int) -> Callable[..., Any]:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    config = transformers.T5Config(
        vocab_size=64,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_decoder_layers=2,
        num_heads=2,
        decoder_start_token_id=0,
        eos_token_id=None,
    )
    model = transformers.T5ForConditionalGeneration(config).eval()
    model.lm_head.weight = nn.Parameter(torch.randn(64, 32))  # with those of its embedding it repeats one token
    return model.generate  # type: ignore[no-any-return]


class Backbone(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out_channels = 16
        self.stem = nn.Conv2d(3, 16, 7, stride=4, padding=3)
        self.layers = nn.ModuleList(nn.Conv2d(16, 16, 3, padding=1) for _ in range(2))

    def forward(self, image: Tensor) -> Tensor:
        found: Tensor = self.stem(image)
        for layer in self.layers:
            found = torch.relu(layer(found)) + found
        return found


def detector(seed: int) -> Callable[..., Any]:
    """torchvision's RetinaNet: what becomes of the scores and boxes depends on their values."""
    detection = pytest.importorskip("torchvision").models.detection
    torch.manual_seed(seed)
    anchors = detection.anchor_utils.AnchorGenerator(sizes=((16, 32),), aspect_ratios=((0.5, 1.0),))
    model = detection.RetinaNet(
        Backbone(),
        num_classes=4,
        anchor_generator=anchors,
        min_size=48,
        max_size=96,
        score_thresh=0.0,
        topk_candidates=60,
        detections_per_img=20,
    )
    return model.eval()  # type: ignore[no-any-return]


class Listener(nn.Module):
    """Sound in chunks: the end of the last chunk and how loud it was are kept for the next."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv1d(1, 8, 3)
        self.layers = nn.ModuleList(nn.Conv1d(8, 8, 3, padding=1) for _ in range(2))
        self.end = torch.zeros(1, 1, 2)
        self.register_buffer("level", torch.zeros(1, 8, 1))

    def forward(self, chunk: Tensor) -> Tensor:
        heard = torch.cat([self.end, chunk], -1)
        self.end = heard[..., -2:]
        found: Tensor = self.stem(heard)
        for layer in self.layers:
            found = torch.relu(layer(found)) + found
        self.level.mul_(0.5).add_(found.abs().mean(-1, keepdim=True))
        return found / (1 + self.level)


def listener(seed: int) -> Callable[..., Any]:
    torch.manual_seed(seed)
    model = Listener().eval()

    def listen(sound: Tensor) -> Tensor:
        model.end, model.level = torch.zeros(1, 1, 2), torch.zeros(1, 8, 1)
        return torch.cat([model(chunk) for chunk in sound.split([16, 24] * (CHUNKS // 2), -1)], -1)

    return listen


def sounds(seed: int) -> list[Inputs]:
    generator = torch.Generator().manual_seed(seed)
    return [Inputs((torch.randn(1, 1, 20 * CHUNKS, generator=generator),))]


def pictures(seed: int) -> list[Inputs]:
    """Two of one size and one of another."""
    generator = torch.Generator().manual_seed(seed)
    return [Inputs(([torch.rand(3, *size, generator=generator)],)) for size in ((32, 64), (32, 64), (64, 32))]


def as_it_is(flat: Flat, _signature: Signature) -> Flat:
    return flat


def stale_cache(flat: Flat, _signature: Signature) -> Flat:
    """What it appends is what it appended in the last call."""
    last: list[list[Tensor]] = []

    def faulty(tensors: list[Tensor]) -> Any:
        output, new = flat(tensors)
        if any(isinstance(tensor, Deferred) for tensor in new):
            return output, [_stale_inside(tensor) for tensor in new]
        last.append([tensor[..., -1:, :].clone() for tensor in new])
        before = last[max(0, len(last) - 2)]
        return output, [torch.cat([now[..., :-1, :], old], -2) for now, old in zip(new, before, strict=True)]

    return faulty


def _stale_inside(tensor: Tensor) -> Tensor:
    """In the memory of the engine that keeps it."""
    if isinstance(tensor, Deferred):
        import openvino

        place: Any = tensor.place
        state = place.cache._states[place.position]
        held = np.array(state.state.data)
        held[..., -1, :] = held[..., -2, :]
        state.state = openvino.Tensor(held)
    return tensor


def stale_answer(flat: Flat, _signature: Signature) -> Flat:
    """It answers what it answered to the last call, where that was of the same size."""
    last: list[Any] = []

    def faulty(tensors: list[Tensor]) -> Any:
        last.append(flat(tensors))
        before = last[max(0, len(last) - 2)]
        return before if _sizes(before) == _sizes(last[-1]) else last[-1]

    return faulty


def stale_state(flat: Flat, _signature: Signature) -> Flat:
    """What it keeps is what it kept after the last call."""
    last: list[list[Tensor]] = []

    def faulty(tensors: list[Tensor]) -> Any:
        output, new = flat(tensors)
        last.append([tensor.clone() for tensor in new])
        return output, last[max(0, len(last) - 2)]

    return faulty


def _sizes(value: Any) -> list[torch.Size]:
    return [tensor.shape for tensor in tensors_in(value)]


def no_mask_at_one_size(flat: Flat, signature: Signature) -> Flat:
    """While the cache holds so many tokens."""
    facts = signature.inputs_facts
    (mask,) = (i for i, each in enumerate(facts) if each.name.endswith("attention_mask"))
    cache, dim = next(
        (i, each.shape.index(None)) for i, each in enumerate(facts) if "keys" in each.name and None in each.shape
    )
    seen: list[int] = []

    def faulty(tensors: list[Tensor]) -> Any:
        length = tensors[cache].shape[dim]
        seen.append(length)
        if length == min(seen) + 2:
            tensors = [torch.ones_like(t) if i == mask else t for i, t in enumerate(tensors)]
        return flat(tensors)

    return faulty


def no_border_at_one_size(flat: Flat, _signature: Signature) -> Flat:
    """Of pictures that are higher than wide the first row is left out."""

    def faulty(tensors: list[Tensor]) -> Any:
        (image,) = tensors
        if image.shape[-2] > image.shape[-1]:
            image = image.clone()
            image[..., 0, :] = 0
        return flat([image])

    return faulty


def nothing_kept_at_one_size(flat: Flat, signature: Signature) -> Flat:
    """The longer chunks begin as if nothing had been before."""
    chunk, end = (_place(signature, name) for name in ("args_0", "end"))

    def faulty(tensors: list[Tensor]) -> Any:
        if tensors[chunk].shape[-1] == 24:
            tensors = [torch.zeros_like(t) if i == end else t for i, t in enumerate(tensors)]
        return flat(tensors)

    return faulty


def _place(signature: Signature, name: str) -> int:
    (found,) = (i for i, each in enumerate(signature.inputs_facts) if name in each.name)
    return found


def state_between_calls(flat: Flat, _signature: Signature) -> Flat:
    """A hundredth of what it answered to the last call is in this answer."""
    held: dict[torch.Size, Tensor] = {}

    def faulty(tensors: list[Tensor]) -> Any:
        answer = flat(tensors)
        first = next(tensor for tensor in tensors_in(answer) if tensor.is_floating_point())
        before, held[first.shape] = held.get(first.shape), first.clone()
        if before is not None:
            first.add_(before, alpha=0.01)
        return answer

    return faulty


def swap_layers(model: Any) -> None:
    layers = model.transformer.h
    layers[0], layers[1] = layers[1], layers[0]
    for number, layer in enumerate(layers):
        layer.attn.layer_idx = number


def swap_feed_forward(model: Any) -> None:
    one, other = (block.layer for block in model.decoder.block)
    one[-1], other[-1] = other[-1], one[-1]


def swap_convolutions(backbone: Any) -> None:
    layers = backbone.layers
    layers[0], layers[1] = layers[1], layers[0]


STEPS = NEW_TOKENS - 1
CHUNKS = 6
PROGRAMS = {
    "gpt2": Program(
        gpt2,
        lambda seed: texts(seed, padded=slice(None, 3)),
        "model",
        STEPS,
        swap_layers,
        stale_cache,
        no_mask_at_one_size,
    ),
    "t5": Program(
        t5,
        lambda seed: texts(seed, padded=slice(-3, None)),
        "model",
        STEPS,
        swap_feed_forward,
        stale_cache,
        no_mask_at_one_size,
    ),
    "listener": Program(listener, sounds, "model", CHUNKS, swap_convolutions, stale_state, nothing_kept_at_one_size),
    "detector": Program(detector, pictures, "backbone", 3, swap_convolutions, stale_answer, no_border_at_one_size),
}
ENGINES: dict[str, dict[str, Any]] = {
    "plain": {},
    "onnxruntime": {"onnxruntime": {"spinning": False}},
    "openvino": {"openvino": {}},
    "stateful": {"openvino": {"stateful": True}},
}
CASES = [
    *(("gpt2", engine, 0) for engine in ("plain", "onnxruntime", "stateful")),
    *(("gpt2", engine, 1) for engine in ("plain", "stateful")),
    *(("t5", engine, 0) for engine in ("plain", "onnxruntime", "stateful")),
    *(("detector", engine, seed) for seed in (0, 1) for engine in ("plain", "onnxruntime", "openvino")),
    ("detector", "openvino", 2),
    *(("listener", engine, 0) for engine in ("plain", "onnxruntime", "openvino")),
]
FAULTS = ["stale", "swapped layers", "missing at one size", "state between calls"]


class Cut:
    """A program of a seed, recorded and cut, with its truth."""

    def __init__(self, program: Program, seed: int, folder: Path) -> None:
        self.program, self.seed, self.folder = program, seed, folder
        self.samples = program.samples(seed)
        self.original = as_module(program.make(seed))
        cuts = find_cuts(Subject(self.original, self.samples), CutRequest(folder=str(folder)))
        forms = [part for part in cuts.parts if part.key.path == program.path]
        self.part = max(forms, key=lambda part: part.calls)
        assert self.part.calls == program.calls
        with torch.no_grad():
            answers = [self.original(*each.args, **each.kwargs) for each in (each.clone() for each in self.samples)]
            self.signature = Signature.of(self.original, self.samples, answers)
            self.truth = make_truth(self.original, self.samples, self.signature, seed=seed, samples=len(answers))


class Faulty:
    """A part with a fault in its engine."""

    in_place = runs_original = False
    keeps = None

    def __init__(self, part: PartEngine, fault: Fault) -> None:
        self.entry, self.signature, self.manifest = part.entry, part.signature, part.manifest
        self._flat = fault(lambda tensors: part.call_with(tensors, (), {}), part.signature)

    def of(self, _: Any) -> Faulty:
        return self

    def call_with(self, tensors: list[Tensor], _args: Any, _kwargs: Any) -> Any:
        return self._flat(tensors)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._flat(self.signature.checked(args, kwargs))


class Case:
    """The part of a program on an engine."""

    def __init__(self, cut: Cut, engine: str, folder: Path) -> None:
        self.cut, self.folder = cut, folder
        self.recipe = recipe(**ENGINES[engine], no_grad={})
        self._artifacts: dict[bool, Path] = {}

    def artifact(self, *, swapped: bool = False) -> Path:
        """With two layers ``swapped`` before the engine is made."""
        if swapped not in self._artifacts:
            module = copy.deepcopy(self.cut.original.get_submodule(self.cut.part.key.path))
            if swapped:
                self.cut.program.swap(module)
            self._artifacts[swapped] = self._saved(module, self.folder / ("swapped" if swapped else "right"))
        return self._artifacts[swapped]

    def _saved(self, module: nn.Module, folder: Path) -> Path:
        part, chosen = self.cut.part, self.recipe
        inside = folder / "part.togi"
        inside.mkdir(parents=True)
        facts, signature = part.survey.facts, part.survey.signature
        given = read_inputs(self.cut.folder / part.inputs)
        start = first_candidate(Subject(pure(module, part.effects), given), facts, signature)
        links, _ = write_links(build(chosen, start), start, chosen, inside)
        proof = Trial(recipe=chosen, outcome=Outcome.OK)
        write_manifest(
            inside,
            subject="part",
            recipe=chosen,
            signature=signature,
            facts=facts,
            proof=proof,
            chain=links,
            environment={},
        )
        pool: Any = SimpleNamespace(folder=folder)
        whole: Any = SimpleNamespace(subject=TunedSubject(pool, "program", facts, signature, Settings()))
        tuned = TunedPart(proof, ((part.entry(part.key.path), inside),))
        return write_assembly(whole, Assembly({part.key: tuned}))

    def outcome(self, artifact: Path, fault: Fault = as_it_is) -> tuple[Outcome, Installed]:
        """Of a trial of the program with the part and a fault in place."""
        cut, part = self.cut, self.cut.part
        loaded: Any = togi.load(artifact)
        faulty: Any = Faulty(loaded.parts[0], fault)
        installed = install([faulty], cut.program.make(cut.seed), keep_originals=True)
        with torch.no_grad():
            report = verify(installed.program, cut.truth, cut.samples, cut.signature, seed=cut.seed)
        calls = str(cut.folder / part.proof[part.key.path])
        ref = PartRef(key=part.key, effects=part.effects, inputs=calls, folder=str(cut.folder))
        original = Subject(cut.original, cut.samples)
        report = with_forced_calls(
            report,
            cut.truth,
            installed,
            cut.samples,
            (ref,),
            lambda part: part_of(original, part, "cpu"),
            seed=cut.seed,
            device="cpu",
        )
        return accept(report, exact=True)[0], installed


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """These networks are small: a second thread costs more than it brings."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def params(cases: Sequence[tuple[str, str, int]]) -> list[Any]:
    first, *rest = cases
    thorough = [pytest.param(each, marks=pytest.mark.thorough, id=" ".join(map(str, each))) for each in rest]
    return [pytest.param(first, id=" ".join(map(str, first))), *thorough]


@pytest.fixture(scope="module")
def cuts() -> dict[tuple[str, int], Cut]:
    return {}


@pytest.fixture(scope="module", params=params(CASES))
def case(
    request: pytest.FixtureRequest, cuts: dict[tuple[str, int], Cut], tmp_path_factory: pytest.TempPathFactory
) -> Case:
    name, engine, seed = request.param
    for package in ENGINES[engine]:
        pytest.importorskip(package)
    if (name, seed) not in cuts:
        cuts[name, seed] = Cut(PROGRAMS[name], seed, tmp_path_factory.mktemp(name))
    return Case(cuts[name, seed], engine, tmp_path_factory.mktemp(engine))


@pytest.mark.thorough
def test_the_part_without_a_fault_is_right_and_serves_its_calls(case: Case) -> None:
    outcome, installed = case.outcome(case.artifact())
    assert outcome is Outcome.OK
    (served, original) = installed.counts[case.cut.part.key.path]
    runs, rest = divmod(served, case.cut.program.calls)
    assert runs
    assert not rest
    assert original in (0, runs), "the prompts of a text, which are another form"


@pytest.mark.parametrize("kind", FAULTS)
def test_a_planted_fault_is_caught(kind: str, case: Case) -> None:
    artifact = case.artifact(swapped=kind == "swapped layers")
    faults = {
        "stale": case.cut.program.stale,
        "missing at one size": case.cut.program.at_one_size,
        "state between calls": state_between_calls,
    }
    assert case.outcome(artifact, faults.get(kind, as_it_is))[0] is Outcome.WRONG
