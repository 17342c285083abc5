"""Faults planted in the artifact of a GPT-2's decoding step: the program with it in place is proven wrong.

From the recorded run to the live program: cut, exported, saved, loaded, put in, and judged as a trial judges it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import togi
from togi.artifact.links import write_links
from togi.artifact.manifest import PartEntry
from togi.artifact.program import Installed
from togi.artifact.save import write_manifest
from togi.core.records import Outcome, Trial
from togi.decide.faithful import accept
from togi.program.cuts import find_cuts
from togi.program.parts import CutRequest, Part
from togi.study.composed import Made, Tried, compose
from togi.subject.inputs import Inputs, Subject
from togi.subject.program import ProgramModule
from togi.subject.pure import Pure
from togi.subject.signature import Signature
from togi.subject.stored_inputs import read_inputs
from togi.techniques import recipe
from togi.techniques.build import build, first_candidate
from togi.verify.reference import make_truth
from togi.verify.verdict import verify
from togi.worker.child import _Worker
from togi.worker.protocol import Job, PartRef

transformers = pytest.importorskip("transformers")

NEW_TOKENS = 6
Flat = Callable[[list[Tensor]], Any]
"""A call of the engine: ``(output, the tensors that are new in what the call changes)``."""


def generator() -> Any:
    torch.manual_seed(0)
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
    return transformers.GPT2LMHeadModel(config).eval()


def sample() -> Inputs:
    """Two prompts, the second padded on the left."""
    mask = torch.ones(2, 7, dtype=torch.long)
    mask[1, :3] = 0
    tokens = torch.randint(3, 64, (2, 7), generator=torch.Generator().manual_seed(0)) * mask
    options = {"max_new_tokens": NEW_TOKENS, "do_sample": False, "output_logits": True, "return_dict_in_generate": True}
    return Inputs((), {"input_ids": tokens, "attention_mask": mask, **options})


def as_it_is(flat: Flat, _signature: Signature) -> Flat:
    return flat


def stale_cache(flat: Flat, _signature: Signature) -> Flat:
    """What it appends is what it appended in the last call."""
    last: list[list[Tensor]] = []

    def faulty(tensors: list[Tensor]) -> Any:
        output, new = flat(tensors)
        last.append([tensor[..., -1:, :].clone() for tensor in new])
        before = last[max(0, len(last) - 2)]
        return output, [torch.cat([now[..., :-1, :], old], -2) for now, old in zip(new, before, strict=True)]

    return faulty


def no_mask_at_one_size(flat: Flat, signature: Signature) -> Flat:
    (place,) = (i for i, facts in enumerate(signature.inputs_facts) if "attention_mask" in facts.name)

    def faulty(tensors: list[Tensor]) -> Any:
        if tensors[place].shape[-1] == 10:
            tensors = [torch.ones_like(t) if i == place else t for i, t in enumerate(tensors)]
        return flat(tensors)

    return faulty


def state_between_calls(flat: Flat, _signature: Signature) -> Flat:
    held: list[Tensor] = []

    def faulty(tensors: list[Tensor]) -> Any:
        output, new = flat(tensors)
        logits = output["logits"].clone()
        if held:
            output["logits"] = logits + 0.01 * held[-1]
        held.append(logits)
        return output, new

    return faulty


def swapped_layers(model: Any) -> Any:
    model = copy.deepcopy(model)
    layers = model.transformer.h
    layers[0], layers[1] = layers[1], layers[0]
    for number, layer in enumerate(layers):
        layer.attn.layer_idx = number
    return model


def unchanged(model: Any) -> Any:
    return model


class Case:
    def __init__(self, folder: Path, made_of: Callable[[Any], Any] = unchanged) -> None:
        self.folder = folder
        original = generator()
        self.program = ProgramModule(original.generate)
        cuts = find_cuts(Subject(self.program, [sample()]), CutRequest(folder=str(folder)))
        self.part = max(cuts.parts, key=lambda part: part.calls)
        assert (self.part.path, self.part.calls) == ("model", NEW_TOKENS - 1)
        self.artifact = self._saved(self.part, made_of(original))

    def _saved(self, part: Part, module: nn.Module) -> Path:
        inside, chosen = self.folder / "part.togi", recipe(no_grad={})
        inside.mkdir()
        given = read_inputs(self.folder / part.inputs)
        start = first_candidate(Subject(Pure(module, part.effects), given), part.survey.facts, part.survey.signature)
        links, _ = write_links(build(chosen, start), start, chosen, inside)
        proof = Trial(recipe=chosen, outcome=Outcome.OK)
        facts, signature = part.survey.facts, part.survey.signature
        write_manifest(
            inside,
            subject="step",
            recipe=chosen,
            signature=signature,
            facts=facts,
            proof=proof,
            chain=links,
            environment={},
        )
        whole: Any = SimpleNamespace(
            pool=SimpleNamespace(folder=self.folder), subject="generate", signature=signature, facts=facts
        )
        weights = part.weights[part.path]
        entry = PartEntry(path=part.path, module=part.module, folder="", effects=part.effects, weights=weights)
        return compose(whole, Tried({"model": Made(proof, {})}).recipe, [(entry, inside)])

    def outcome(self, fault: Callable[[Flat, Signature], Flat]) -> tuple[Outcome, Installed]:
        """Of a trial of the program with the part and its fault in place."""
        loaded: Any = togi.load(self.artifact)
        optimized = loaded.parts[0].optimized
        flat = optimized._flat
        optimized._flat = fault(flat, optimized.signature)
        optimized._call = lambda *args, **kwargs: optimized._flat(optimized.signature.checked(args, kwargs))
        installed = loaded.into(generator().generate)
        given = [sample()]
        with torch.no_grad():
            first = self.program(**given[0].clone().kwargs)
            signature = Signature.of(self.program, given, [first])
            truth = make_truth(self.program, given, signature, seed=0, samples=1)
            report = verify(installed.program, truth, given, signature, seed=0)
        if not report.faithful:
            path = self.part.path
            ref = PartRef(
                path=path,
                effects=self.part.effects,
                inputs=str(self.folder / self.part.proof[path]),
                folder=str(self.folder),
            )
            worker = _Worker(
                Job(kind="artifact", log="", proven_on=(ref,)),
                SimpleNamespace(seed=0, device="cpu", folder=str(self.folder), callers=1),  # type: ignore[arg-type]
                Subject(self.program, given),
                None,  # type: ignore[arg-type]
            )
            worker.samples = tuple(given)
            report = worker._with_forced_calls(report, installed)
        return accept(report, exact=True)[0], installed


@pytest.fixture(scope="module")
def case(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(tmp_path_factory.mktemp("gpt2"))


def test_the_part_without_a_fault_is_right_and_serves_the_steps(case: Case) -> None:
    outcome, installed = case.outcome(as_it_is)
    assert outcome is Outcome.OK
    (served, original) = installed.counts["model"]
    assert served % (NEW_TOKENS - 1) == 0
    assert original == served // (NEW_TOKENS - 1), "the prompts, which are another form"


@pytest.mark.parametrize("fault", [stale_cache, no_mask_at_one_size, state_between_calls])
def test_a_fault_of_the_engine_is_caught(fault: Callable[[Flat, Signature], Flat], case: Case) -> None:
    assert case.outcome(fault)[0] is Outcome.WRONG


def test_layers_that_were_swapped_are_caught(tmp_path: Path) -> None:
    assert Case(tmp_path, swapped_layers).outcome(as_it_is)[0] is Outcome.WRONG
