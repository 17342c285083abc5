"""Checks that every technique must pass; each raises AssertionError. Ships with togi, for third parties' tests:

    from togi.techniques import conformance

    def test_my_technique() -> None:
        conformance.check(MyTechnique(), [lambda: conformance.candidate_of(MyModel(), [torch.randn(1, 3, 8, 8)])])

``check`` runs all of them. They look at form and faithfulness on small candidates; speed is never asserted.
"""

from __future__ import annotations

import copy
import gc
import inspect
import json
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from togi.core.errors import Refused
from togi.core.records import STAGES, Facts, Machine, TensorFacts
from togi.decide.faithful import MAX_UNITS, within
from togi.graph.candidate import Candidate
from togi.subject.behaviour import SavedBuffers, same
from togi.subject.inputs import Dynamic, Inputs, Subject
from togi.subject.inventory import count_functions, count_modules, parameter_facts
from togi.subject.prepare import prepare
from togi.subject.signature import Signature
from togi.techniques.base import HEADINGS, Applies, Options, Refuses, Remedy, Technique
from togi.torch_internals.modules import in_training
from togi.verify.units import error_in_units

Builder = Callable[[], Candidate]


def check(technique: Technique, builders: Iterable[Builder]) -> None:
    """All checks. ``builders`` make small candidates, on at least one of which it should apply.

    Raises AssertionError saying what is not fulfilled.
    """
    check_declaration(technique)
    check_documentation(technique)
    candidates = [build() for build in builders]
    check_decisions(technique, [*odd_facts(), *(candidate.facts for candidate in candidates)])
    for candidate in candidates:
        for options in technique.options(candidate.facts):
            check_application(technique, candidate, options)


def check_declaration(technique: Technique) -> None:
    """Its id is its file's name, its stage exists, and needs, provisions and conflicts are sets of names."""
    path = inspect.getsourcefile(type(technique))
    assert path is not None, "the source of the technique cannot be found"
    assert technique.id == Path(path).stem, f"the id {technique.id!r} is not the name of its file, {Path(path).name}"
    assert technique.stage in STAGES, f"{technique.stage!r} is not a stage"
    for field in ("devices", "needs", "provides", "conflicts"):
        names = getattr(technique, field)
        assert isinstance(names, frozenset), f"{field} is a {type(names).__name__}, expected a frozenset"
        assert all(isinstance(name, str) for name in names), f"{field} holds something that is not a name"
    assert technique.devices <= {"cpu", "cuda"}, f"unknown devices {set(technique.devices)}"
    assert technique.devices, "it runs on no device"


def check_documentation(technique: Remedy) -> None:
    """Its docstring has the headings of its page, in order, each with text."""
    page = inspect.getdoc(type(technique)) or ""
    places = [page.find(f"\n{heading}:") for heading in HEADINGS]
    missing = [heading for heading, place in zip(HEADINGS, places, strict=True) if place < 0]
    assert not missing, f"the docstring of {technique.id} lacks {', '.join(missing)}"
    assert places == sorted(places), f"the headings of {technique.id} are not in the order {', '.join(HEADINGS)}"
    ends = [*places[1:], len(page)]
    for heading, begin, end in zip(HEADINGS, places, ends, strict=True):
        assert page[begin:end].partition(":")[2].strip(), f"{technique.id}: nothing stands under {heading!r}"


def check_decisions(technique: Technique, facts: Iterable[Facts]) -> None:
    """``applies``, ``options``, what is expected, ``cost_s`` and ``environment`` answer in form for any facts."""
    for any_facts in facts:
        decision = technique.applies(any_facts)
        assert isinstance(decision, Applies | Refuses), f"applies() returned a {type(decision).__name__}"
        assert technique.applies(any_facts) == decision, "applies() answers differently when asked twice"
        if isinstance(decision, Refuses):
            _check_reason(decision.reason)
        values = technique.options(any_facts)
        assert len(values) > 0 or isinstance(decision, Refuses), "options() is empty, though it applies"
        for options in values:
            assert json.loads(json.dumps(options)) == options, f"the options {options!r} are not plain JSON values"
            speedup = technique.expected_speedup(any_facts, options)
            assert speedup > 0, "expected_speedup() is a speed-up: a positive number"
            assert technique.expected_memory(any_facts, options) > 0, "expected_memory() is a ratio: a positive number"
            assert technique.cost_s(any_facts, options) >= 0, "cost_s() is negative"
            for choice in (*technique.mends(any_facts, options), *technique.coarsens(any_facts, options)):
                assert (choice.technique, choice.options) != (technique.id, options), "it waits for itself"
            environment = technique.environment(any_facts, options)
            assert all(isinstance(text, str) for pair in environment.items() for text in pair), (
                "not text: environment()"
            )


def check_application(technique: Technique, candidate: Candidate, options: Options) -> Candidate | None:
    """Apply it once: the user's module is untouched, and an exact technique's result is right.

    Returns the new candidate, or None where it refused (with a reason).
    """
    before = _snapshot(candidate.module)
    samples = [[tensor.clone() for tensor in tensors] for tensors in candidate.flat_samples()]
    originals, truth = _answers(candidate.copy(), candidate), _truth(candidate)
    try:
        result = technique.apply(technique.configure(candidate, options), options)
    except Refused as refusal:
        _check_reason(str(refusal))
        _check_unchanged(before, _snapshot(candidate.module), technique.id)
        return None
    _check_unchanged(before, _snapshot(candidate.module), technique.id)
    answers = _answers(result.runnable(), candidate)
    if not candidate.facts.buffers_change:
        if result.program is not None:
            check_no_graph_kept(technique.id, result.runnable(), candidate.samples[0])
        _check_unchanged(before, _snapshot(candidate.module), f"a call of the result of {technique.id}")
    for tensors, after in zip(samples, candidate.flat_samples(), strict=True):
        assert same(tensors, after), f"{technique.id} changed the samples"
    _check_form(technique, originals, answers)
    if technique.exact:
        check_faithful(technique.id, truth, originals, answers)
    return result


def check_no_graph_kept(name: str, call: Callable[..., Any], sample: Inputs) -> None:
    """Nothing that ``call`` keeps is a part of its caller's autograd graph, which would grow with each call."""
    kept = _called_in_graph(call, sample)
    if kept() is not None:
        gc.collect()  # what is left in a cycle is not kept
    assert kept() is None, f"{name} keeps the autograd graph of its caller: detach what it copies"


def _called_in_graph(call: Callable[..., Any], sample: Inputs) -> weakref.ref[_Token]:
    """Call it with inputs that a graph computes; that graph lives as long as what is returned here refers to."""
    token = _Token()

    def computed(tensor: Tensor) -> Tensor:
        differs = tensor.is_floating_point()
        return _InGraph.apply(tensor.detach().requires_grad_(), token) if differs else tensor.clone()

    with torch.enable_grad():
        inputs = sample.map(computed)
        call(*inputs.args, **inputs.kwargs)
    return weakref.ref(token)


class _Token:
    """Lives as long as the node that holds it."""


class _InGraph(torch.autograd.Function):
    """A tensor that requires gradients, computed by a node with a token."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, token: _Token) -> Tensor:
        ctx.token = token
        return tensor.clone()

    @staticmethod
    def backward(_: Any, given: Tensor) -> tuple[Tensor, None]:
        return given, None


def check_faithful(name: str, truth: list[list[Tensor]], eager: list[list[Tensor]], found: list[list[Tensor]]) -> float:
    """``found`` is as near to the truth as plain eager is, but for a small factor. Returns the largest, in units.

    Each argument: flat output tensors per sample; ``truth`` in float64.
    """
    worst = 0.0
    for right, plain, output in zip(truth, eager, found, strict=True):
        for r, p, o in zip(right, plain, output, strict=True):
            if not o.is_floating_point():
                assert torch.equal(p, o), f"{name} changed an integer output"
                continue
            assert torch.equal(p.isfinite(), o.isfinite()), (
                f"{name} has other NaN or infinite outputs than the original"
            )
            worst = max(worst, error_in_units(o, r, p))
    assert within(worst), f"{name} is {worst:.3g} times as far from the truth as the original is (limit {MAX_UNITS:g})"
    return worst


def candidate_of(module: nn.Module, samples: Sequence[Any], dynamic: Dynamic | None = None) -> Candidate:
    """A CPU candidate for tests: as the pipeline prepares it, with the facts that techniques decide on.

    Args:
        samples: as in ``togi.Subject``: tensors, tuples, dicts or ``Inputs``.
    """
    ready = prepare(Subject(module, list(samples), dynamic=dynamic))
    trial = copy.deepcopy(ready.module)  # a call may change buffers
    buffers = SavedBuffers(trial)
    with torch.no_grad():
        outputs = [trial(*s.args, **s.kwargs) for s in (sample.clone() for sample in ready.samples)]
        signature = Signature.of(ready.module, ready.samples, outputs, dynamic)
        first = ready.samples[0].clone()
        functions = count_functions(lambda: trial(*first.args, **first.kwargs))
    facts = Facts(
        machine=_machine(cores=2),
        module_class=type(module).__name__,
        modules=count_modules(ready.module),
        functions=functions,
        inputs=signature.inputs_facts,
        outputs=signature.outputs_facts,
        samples=len(ready.samples),
        buffers_change=bool(buffers.changed()),
        **parameter_facts(ready.module),
    )
    return Candidate(module=ready.module, samples=ready.samples, signature=signature, facts=facts)


def odd_facts() -> Iterator[Facts]:
    """Facts at the edges: nothing known, one core, a GPU, no parameters, dynamic and empty shapes, strange names."""
    yield Facts(machine=_machine(cores=1), module_class="")
    yield Facts(machine=_machine(cores=64, allocators={"tcmalloc": "/nowhere/libtcmalloc.so"}), module_class="M")
    yield Facts(machine=_machine(cores=2), module_class="M", device="cuda", functions={"conv2d": 1}, samples=0)
    yield Facts(
        machine=_machine(cores=3),
        module_class="<locals>",
        modules={"": 0, "Conv2d": 10**6},
        functions={"": 1, "?": 0, "conv2d": 10**6, "batch_norm": 10**6, "add": 10**6, "linear": 1},
        parameter_dtypes=("torch.float8_e4m3fn", "int8"),
        buffers_change=True,
        random=True,
        repeatable=False,
        exportable=False,
        export_error="torch.export cannot follow this",
        flops=0,
        latency_ms=0.0,
        inputs=(TensorFacts(name="x", dtype="float32", shape=(None, 0)), TensorFacts(name="", dtype="int64", shape=())),
    )


def _machine(cores: int, allocators: dict[str, str] | None = None) -> Machine:
    return Machine(
        cpu_model="",
        cpu_cores=cores,
        memory_bytes=1 << 30,
        threads=cores,
        os="Linux",
        python="3.11",
        allocators=allocators or {},
    )


def _check_reason(reason: str) -> None:
    assert len(reason.split()) > 2, f"a refusal needs a reason in a sentence, got {reason!r}"


def _answers(call: Callable[..., Any], candidate: Candidate) -> list[list[Tensor]]:
    answers = []
    for sample in candidate.samples:
        inputs = sample.clone()
        with torch.no_grad():
            answers.append(candidate.signature.flatten_outputs(call(*inputs.args, **inputs.kwargs)))
    return answers


def _truth(candidate: Candidate) -> list[list[Tensor]]:
    """The original in float64; integer and boolean inputs stay."""
    doubled = candidate.copy().double()
    samples = tuple(s.map(lambda t: t.double() if t.is_floating_point() else t) for s in candidate.samples)
    return _answers(doubled, candidate.with_(module=doubled, samples=samples))


def _check_form(technique: Technique, wanted: list[list[Tensor]], found: list[list[Tensor]]) -> None:
    for want, got in zip(wanted, found, strict=True):
        for w, g in zip(want, got, strict=True):
            assert (w.shape, w.dtype, w.device) == (g.shape, g.dtype, g.device), (
                f"{technique.id} changed an output's form"
            )
            assert w.is_contiguous() == g.is_contiguous(), f"{technique.id} changed an output's memory layout"
            assert not g.requires_grad, f"{technique.id}: an output requires gradients"


def _snapshot(module: nn.Module) -> dict[str, Any]:
    """Everything of a module that a user could notice: tensors with layout, structure, modes, hooks."""
    tensors = {
        **dict(module.named_parameters(remove_duplicate=False)),
        **dict(module.named_buffers(remove_duplicate=False)),
    }
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_state_dict_hooks")
    return {
        "values": {name: tensor.detach().clone() for name, tensor in tensors.items()},
        "layout": {
            name: (tensor.stride(), tensor.requires_grad, tensor.data_ptr()) for name, tensor in tensors.items()
        },
        "structure": [(name, type(child), sorted(vars(child))) for name, child in module.named_modules()],
        "training flags": [in_training(child) for child in module.modules()],
        "hooks": [[len(getattr(child, hook, ())) for hook in hooks] for child in module.modules()],
    }


def _check_unchanged(before: dict[str, Any], after: dict[str, Any], who: str) -> None:
    for part in before:
        if part != "values":
            assert before[part] == after[part], f"{who} changed the {part} of the user's module"
    changed = [name for name, tensor in before["values"].items() if not same([tensor], [after["values"][name]])]
    assert not changed, f"{who} changed the values of {', '.join(changed)} in the user's module"
