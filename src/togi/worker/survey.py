"""Surveys a subject before any trial: runs it a few times in eager mode and writes down what it saw.

``survey`` runs in a child process of the study. It works on a copy of the module; the user's own stays as it was.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_pre_hook

from togi.artifact.settings import settings_of, varying_settings
from togi.core.errors import Refused, SubjectError
from togi.core.quantities import few_of, first_line
from togi.core.records import Choice, Facts, Machine
from togi.core.user_code import user_place
from togi.graph.candidate import Candidate
from togi.graph.capture import GraphModule, capture, export, held_for
from togi.machine.describe import machine as this_machine
from togi.measure import held_by_others, wait_for
from togi.subject.behaviour import (
    Behaviour,
    HeldParameters,
    RaisesLater,
    kept_buffers,
    observe,
    same,
    seed_all,
)
from togi.subject.identity import code_and_settings_hash
from togi.subject.inputs import Inputs, Subject, apart
from togi.subject.inventory import (
    WinogradFlops,
    class_name,
    count_functions,
    count_modules,
    meets_denormals,
    parameter_facts,
    shared_parameters,
)
from togi.subject.prepare import Prepared, prepare
from togi.subject.program import ProgramModule
from togi.subject.signature import Signature
from togi.techniques.base import Applies, GraphRewrite, Options
from togi.techniques.registry import all_techniques
from togi.torch_internals.float32 import tf32_operators
from togi.torch_internals.modules import forward_hook_counts
from togi.torch_internals.script import assigned_inside
from togi.verify.live import LiveAnswer
from togi.verify.modes import outputs_in_one_mode
from togi.worker.protocol import Survey

_SHORT_MS = 50.0
"""A pass that is faster than this is timed again: a single short time is mostly noise."""
_REPEATS = 5
_LONG_MS = 100.0
"""Of a pass that takes longer, the search for denormal numbers, which looks at every tensor, costs seconds."""
_TRAINS = (
    ". It trains inside, and togi runs it as inference does, without gradients: give the model that was trained, or "
    "fit the training step ('togi fit')"
)
_ON_CPU = (
    ". All inputs were moved to the device. Where one is needed on the CPU (the lengths of pack_padded_sequence), "
    "fetch it where it is used: lengths.cpu()"
)


def survey(
    subject: Subject,
    *,
    device: str = "cpu",
    seed: int = 0,
    machine: Machine | None = None,
    callers: int = 1,
    captured: bool = True,
    live: LiveAnswer | None = None,
) -> Survey:
    """Run the subject on its samples and describe it.

    Args:
        machine: as the parent knows it, else this one.
        captured: also say whether ``torch.export`` captures it, and for which sizes; else that is found out elsewhere.
        live: what the module that the subject is a copy of answers where it lives.

    Raises SubjectError when the module cannot run on the inputs, with their shapes and the place in the user's code.
    Also when it is in training mode and nobody said which mode is meant, or when the samples differ in form. Also when
    a live module gives another kind of answer, when every call changes parameters, or when several callers are wanted
    of what answers by the order of calls.
    """
    ready = prepare(subject, device=device)
    parameters = HeldParameters(ready.module, ready.original)
    code = code_and_settings_hash(ready.module)
    settings = settings_of(ready.module)
    numbers = {id(sample): number for number, sample in enumerate(ready.samples, start=1)}
    outputs = outputs_in_one_mode(
        subject,
        ready.module,
        ready.samples,
        lambda module, sample: first_call(module, sample, numbers[id(sample)], seed),
    )
    signature = Signature.of(ready.module, ready.samples, outputs, subject.dynamic)
    flat = (signature.flatten_inputs(sample.args, sample.kwargs) for sample in ready.samples)
    calls = tuple(tuple(tuple(tensor.shape) for tensor in tensors) for tensors in flat)
    behaviour = _observed_again(ready.module, ready.samples[0], outputs, seed, parameters.written())
    if behaviour.parameters_change:
        raise SubjectError(
            f"{_name(ready.module)} writes into parameters in every call ({few_of(behaviour.parameters_change)}): "
            "its answers depend on all calls before, and what stands in its place would leave them as they are. Give "
            "it without that step, which your own code then makes between the calls; or keep what calls change in a "
            "buffer (register_buffer)"
        )
    if behaviour.inputs_change:
        signature = signature.writing(_written(ready.module, ready.samples[0], signature, seed))
    live_difference = live.compared(outputs[0], ready.module) if live is not None else ""
    del outputs
    notes = [*ready.notes, *behaviour.notes, *_notes(ready.module, signature)]
    if live_difference and behaviour.repeatable and not behaviour.random:
        notes.append(live_difference)
    if neighbours := held_by_others(torch.device(device).type):
        notes.append(neighbours)
    if behaviour.non_finite:
        notes.append("An output holds NaN or infinity; it is compared where the original has finite values.")
    if behaviour.all_zero:
        notes.append("Every output is zero: a comparison cannot show whether a candidate is right. Check its weights.")
    if callers > 1:
        _check_callers(ready.module, behaviour)
    latency_ms = fastest_pass_ms(ready, device)
    facts = Facts(
        device=torch.device(device).type,
        machine=machine or this_machine(device),
        module_class=class_name(ready.module),
        modules=count_modules(ready.module),
        **parameter_facts(ready.module),
        training=ready.training,
        program=isinstance(ready.module, ProgramModule),
        buffers_change=behaviour.buffers_change,
        random=behaviour.random,
        repeatable=behaviour.repeatable,
        tf32=tf32_operators(device),
        non_finite_outputs=behaviour.non_finite,
        inputs=signature.inputs_facts,
        outputs=signature.outputs_facts,
        samples=len(ready.samples),
        functions=_observed(count_functions, ready.module, ready.samples[:1], notes) or {},
        denormals=_observed(meets_denormals, ready.module, ready.samples[:1], notes)
        if device == "cpu" and latency_ms < _LONG_MS
        else None,
        **(_observed(_count_flops, ready.module, ready.samples, notes) or {}),
        latency_ms=latency_ms,
        callers=callers,
    )
    if facts.program and _turns_autograd_off(ready.module, ready.samples[0], seed):
        facts = facts.model_copy(update={"autograd_off": True})
        notes.append("It turns autograd off by itself: as it is called today it is plain eager without autograd.")
    facts = facts.model_copy(update={"notes": tuple(notes)})
    if captured:
        samples = tuple(sample.clone() for sample in ready.samples)
        candidate = Candidate(module=ready.module, samples=samples, signature=signature, facts=facts)
        try:
            signature = held_for(candidate, export(candidate))
        except Refused as refused:
            facts = facts.model_copy(update={"exportable": False, "export_error": str(refused)})
    varying = varying_settings(settings, settings_of(ready.module))
    inputs_change = behaviour.inputs_change
    return Survey(
        facts=facts, signature=signature, calls=calls, code=code, inputs_change=inputs_change, varying=varying
    )


def _written(module: nn.Module, sample: Inputs, signature: Signature, seed: int) -> list[int]:
    """The flat inputs that a call overwrites."""
    given = apart(sample)
    tensors = signature.flatten_inputs(given.args, given.kwargs)
    before = [tensor.detach().clone() for tensor in tensors]
    seed_all(seed)
    with torch.no_grad(), kept_buffers(module):
        module(*given.args, **given.kwargs)
    return [at for at, (was, now) in enumerate(zip(before, tensors, strict=True)) if not same([was], [now])]


def _turns_autograd_off(program: nn.Module, sample: Inputs, seed: int) -> bool:
    """Whether it calls modules, and all of them with autograd off. That is turned off at the first that is not, since
    what backward needs may not fit."""
    fresh, own_thread, on = apart(sample), threading.get_ident(), list[bool]()

    def look(module: nn.Module, _: Any) -> None:
        if module is program:
            return
        on.append(torch.is_grad_enabled())
        if threading.get_ident() == own_thread:  # another one may live on, and would keep it
            torch.set_grad_enabled(False)

    seed_all(seed)
    try:
        with kept_buffers(program), register_module_forward_pre_hook(look), torch.enable_grad():
            program(*fresh.args, **fresh.kwargs)
    except Exception:  # foreign code: it may want gradients inside
        return False
    return bool(on) and not any(on)


def _check_callers(module: nn.Module, behaviour: Behaviour) -> None:
    """Raises SubjectError if several callers at once cannot be served, or not proven to be."""
    if assigned := assigned_inside(module):
        raise SubjectError(
            f"{_name(module)} holds TorchScript that assigns {assigned[0]} in each call: several callers at "
            "once would end the process (attributes are not locked). Tune it for latency, and give each caller a copy"
        )
    if behaviour.random or behaviour.buffers_change:
        raise SubjectError(
            f"{_name(module)} {'draws random numbers' if behaviour.random else 'changes a buffer'} in each "
            "call, so what several callers at once are answered depends on their order, and no recipe could be proven. "
            "Tune it for latency, or take that out of its forward pass"
        )


def first_call(module: nn.Module, sample: Inputs, number: int, seed: int) -> Any:
    """The output of one call under ``no_grad``. Raises SubjectError naming the inputs' shapes when it fails."""
    fresh = apart(sample)
    seed_all(seed)
    try:
        with torch.no_grad():
            return module(*fresh.args, **fresh.kwargs)
    except Exception as error:  # foreign code: the user's forward
        raise SubjectError(
            f"{_name(module)} does not run on sample {number}, {_describe(module, sample)}: {user_place(error)}"
            f"{_TRAINS if 'does not require grad' in str(error) else ''}"
            f"{_ON_CPU if 'CPU' in str(error) and any(t.is_cuda for t in sample.tensors()) else ''}"
        ) from error


def idle_rewrites(candidate: Candidate) -> dict[str, str]:
    """Find the rewrites with nothing to do in the captured candidate, neither as it is nor after those before them in
    the pipeline: the reason by choice. One that fails is left to its trial. Raises Refused if it cannot be captured."""
    reasons: dict[str, str] = {}
    candidate = candidate.with_(module=GraphModule(capture(candidate), candidate.signature))
    rewritten = candidate
    for rewrite in all_techniques().values():
        if not isinstance(rewrite, GraphRewrite) or not isinstance(rewrite.applies(candidate.facts), Applies):
            continue
        before = rewritten
        for options in rewrite.options(candidate.facts):
            done = _rewritten(rewrite, options, before)
            if isinstance(done, Candidate):
                rewritten = done
            elif done and isinstance(alone := _rewritten(rewrite, options, candidate), str) and alone:
                reasons[Choice(stage=rewrite.stage, technique=rewrite.id, options=dict(options)).label] = alone
    return reasons


def _rewritten(rewrite: GraphRewrite, options: Options, candidate: Candidate) -> Candidate | str:
    """The next candidate, or why it is refused; nothing where it failed."""
    try:
        with torch.no_grad():
            return rewrite.apply(candidate, options)
    except Refused as refused:
        return str(refused)
    except Exception:  # foreign code: a third party's technique
        return ""


def _observed_again(
    module: nn.Module, sample: Inputs, outputs: Sequence[Any], seed: int, written: Sequence[str]
) -> Behaviour:
    """What ``observe`` sees. Raises SubjectError where it answers once, and not again."""
    try:
        return observe(module, sample, outputs, seed=seed, written=written)
    except RaisesLater as later:
        error = later.__cause__ or later
        raise SubjectError(
            f"{_name(module)} answers at first, and a later call with sample 1 raises: {user_place(error)}. A "
            "study calls it thousands of times: give what can be called again and again, or have it make anew in each "
            "call what the calls before used up"
        ) from error


def _name(module: nn.Module) -> str:
    """For people: a program is called what is called of it."""
    return module.name if isinstance(module, ProgramModule) else class_name(module)


def _describe(module: nn.Module, sample: Inputs) -> str:
    """``(x: float32 (1, 3, 224, 224))``."""
    named = Signature.named_inputs(module, sample)
    listed = [f"{name}: {str(t.dtype).removeprefix('torch.')} {tuple(t.shape)}" for name, t in named]
    return f"({', '.join(listed) or 'no tensors'})"


def _pass(module: nn.Module, samples: Sequence[Inputs]) -> None:
    with torch.no_grad():
        for sample in samples:
            module(*sample.args, **sample.kwargs)


def _observed(
    observer: Callable[[Callable[[], Any]], Any], module: nn.Module, samples: Sequence[Inputs], notes: list[str]
) -> Any:
    """Let an observer of torch see one pass. None, with a note, if module and observer do not get along."""
    fresh = [apart(sample) for sample in samples]
    try:
        return observer(lambda: _pass(module, fresh))
    except Exception as error:  # foreign code: torch's modes reject compiled parts and some kinds of tensors
        name = observer.__name__.strip("_")
        notes.append(f"{name} did not work on it: {type(error).__name__}: {first_line(error)}")
        return None


def _count_flops(call: Callable[[], Any]) -> dict[str, int | None]:
    """``flops`` and ``winograd_flops`` of Facts; None: it saw none.

    Source: torch.utils.flop_counter; it knows matrix products, convolutions and attention.
    """
    from torch.utils.flop_counter import FlopCounterMode

    with FlopCounterMode(display=False) as counter, WinogradFlops() as dense:
        call()
    return {"flops": counter.get_total_flops() or None, "winograd_flops": dense.flops}


def fastest_pass_ms(ready: Prepared, device: str) -> float:
    """One pass over all samples; the fastest of a few where it is short. Earlier calls have warmed it up."""
    times = [_time_ms(ready, device)]
    while times[0] < _SHORT_MS and len(times) < _REPEATS:
        times.append(_time_ms(ready, device))
    return min(times)


def _time_ms(ready: Prepared, device: str) -> float:
    """Time a pass on the device of this name: a module need not have parameters to compute there."""
    fresh, wait = [apart(sample) for sample in ready.samples], wait_for(device)
    wait()
    started = time.perf_counter()
    _pass(ready.module, fresh)
    wait()
    return (time.perf_counter() - started) * 1e3


def _notes(module: nn.Module, signature: Signature) -> Iterator[str]:
    if signature.opaque:
        yield f"{signature.opaque[0].upper()}{signature.opaque[1:]}: engines with a file form cannot run it."
    if shared := shared_parameters(module):
        yield f"Parameters are shared between layers ({', '.join(shared[:3])})."
    dtypes = {p.dtype for p in module.parameters() if p.is_floating_point()}
    if torch.float64 in dtypes:
        yield "It computes in float64, which takes twice the memory of float32; most models do not need it."
    if signature.device == "cpu" and dtypes & {torch.float16, torch.bfloat16}:
        yield "Its weights are in half precision, which is slow on processors without instructions for it."
    if any(facts.shape and 0 in facts.shape for facts in signature.inputs_facts):
        yield "An input is empty (a dimension of size 0)."
    hooked = sum(any(forward_hook_counts(part)) for part in module.modules())
    if hooked:
        yield f"{hooked} of its modules have forward hooks, which engines other than eager do not call."
