"""OpenVINO programs that keep a cache: what one call returns grown and the next one is given again stays inside.

A decoder's step is given all keys and values so far and returns them with one more behind. Outside of the engine each
step copies all of them, more than once; inside, OpenVINO appends to its own memory, and attends to it where it lies.
Callers get tensors that fetch their values when somebody looks at them (``Deferred``).
Source: https://docs.openvino.ai/2025/openvino-workflow/running-inference/inference-request/stateful-models.html
"""

from __future__ import annotations

import itertools
import threading
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from togi.core.errors import Refused
from togi.core.records import Interface
from togi.graph.candidate import Candidate
from togi.subject.signature import Signature
from togi.techniques.engine.programs.openvino import FILE, compile_file, compile_model, damaged
from togi.techniques.engine.programs.openvino_cache import CachePlace, GrowingInput, SequenceCache
from togi.techniques.engine.programs.openvino_conversion import convert
from togi.techniques.engine.programs.openvino_library import PRECISION_KEY
from togi.techniques.engine.programs.stored import HiddenFiles, StoredProgram
from togi.torch_internals.deferred import Deferred

_ROWS = "beam_idx"
"""Which rows of the cache go on, by OpenVINO's own name: only then it fuses attention with the cache. Here all do."""
_STEPS_CHECKED = 3
_ERRORS_GROW, _ROUNDING = 10.0, 1e-4
"""How much larger an error may be after these steps, and what float32 in another order makes of nothing."""
_KEPT_SEQUENCES = 8
"""Whose caches are kept at once; a further one takes the place of the one that was used longest ago."""


class StatefulProgram(StoredProgram):
    """Runs a compiled model that keeps caches, one for each sequence of calls. Several threads may call it.

    Calls that go on from tensors that it returned last cost no copy of them; all others are right, and copy.
    """

    holds_module = False
    allocates_with_torch = False
    keeps_state = True

    def __init__(
        self,
        compiled: Any,
        signature: Signature,
        order: Sequence[int],
        kept: Sequence[GrowingInput],
        stored: HiddenFiles | None,
    ) -> None:
        """``order``: which output of the model, as it was before caches stayed inside, is which of the signature."""
        super().__init__(signature, stored)
        self.compiled = compiled
        self.order = tuple(order)
        self.kept = tuple(kept)
        self._inside = {part.input: position for position, part in enumerate(kept)}
        names = {name: port for port in compiled.inputs for name in port.names}
        self.ports = [
            (i, names[f"input_{i}"])
            for i in range(len(signature.inputs_facts))
            if i not in self._inside and f"input_{i}" in names
        ]
        rows = signature.inputs_facts[kept[0].input].shape[0]
        self._rows = {names[_ROWS]: torch.arange(rows or 0, dtype=torch.int32).numpy()} if _ROWS in names else {}
        self._outputs = {name: place for place, port in enumerate(compiled.outputs) for name in port.names}
        self._caches: weakref.WeakSet[SequenceCache] = weakref.WeakSet()
        self._choosing, self._calls = threading.Lock(), itertools.count()

    def run(self, inputs: list[Tensor]) -> Sequence[Tensor]:
        feeds = {port: inputs[i].detach().contiguous().numpy() for i, port in self.ports}
        caches = [inputs[part.input] for part in self.kept]
        with self._cache_of(caches) as cache:
            arrays = cache.infer(feeds)
            lent = {part.output: tensor for part, tensor in zip(self.kept, cache.lend(caches), strict=True)}
        outputs: list[Tensor] = []
        for number, (position, facts) in enumerate(zip(self.order, self.signature.outputs_facts, strict=True)):
            if number in lent:
                outputs.append(lent[number])
                continue
            tensor = torch.from_numpy(arrays[self._outputs[f"output_{position}"]]).to(getattr(torch, facts.dtype))
            outputs.append(tensor.clone() if position in self.order[:number] else tensor)
        return outputs

    def keeps(self, position: int, tensor: Tensor) -> bool:
        place = tensor.place if isinstance(tensor, Deferred) else None
        if not isinstance(place, CachePlace) or place.cache.kept is not self.kept:
            return False
        return place.position == self._inside.get(position) and place.cache.returned_last(place)

    def as_returned(self, inputs: list[Tensor]) -> list[Tensor]:
        before, returned_inputs = self._last_call(inputs), list(inputs)
        returned: Sequence[Tensor]
        if before is None:
            caches = [inputs[part.input] for part in self.kept]
            with self._cache_of(caches) as cache:
                returned = cache.lend(caches)
        else:  # the first call after a cache was taken moves it to memory with room: no later one does
            outputs = self.run(before)
            returned = [outputs[part.output] for part in self.kept]
        for cache_part, tensor in zip(self.kept, returned, strict=True):
            returned_inputs[cache_part.input] = tensor
        return returned_inputs

    def _last_call(self, inputs: list[Tensor]) -> list[Tensor] | None:
        """The inputs of the call before these; None where nothing was kept yet."""
        earlier = list(inputs)
        for part in self.kept:
            places = [(part.input, part.dim), *self.signature.related((part.input, part.dim))]
            for number, dim in ((number, dim) for number, dim in places if earlier[number] is inputs[number]):
                shorter = inputs[number].shape[dim] - part.count
                if shorter < 1:
                    return None
                earlier[number] = inputs[number].narrow(dim, 0, shorter)
        return earlier

    def next_call(self, inputs: list[Tensor], outputs: Sequence[Tensor]) -> list[Tensor]:
        """The inputs of a call that goes on from these: what is kept as it was returned, what grows with it repeats its
        end, all else as it was."""
        later = list(inputs)
        for part in self.kept:
            for follower, dim in self.signature.related((part.input, part.dim)):
                if follower not in self._inside and later[follower] is inputs[follower]:
                    end = inputs[follower].narrow(dim, inputs[follower].shape[dim] - 1, 1)
                    later[follower] = torch.cat([inputs[follower], *[end] * part.count], dim=dim)
            later[part.input] = outputs[part.output]
        return later

    @contextmanager
    def _cache_of(self, tensors: list[Tensor]) -> Iterator[SequenceCache]:
        """The cache that these are, locked; where there is none, another one is given them."""
        place = tensors[0].place if isinstance(tensors[0], Deferred) else None
        if isinstance(place, CachePlace) and place.cache.kept is self.kept:
            with place.cache.lock:
                if place.cache.holds(tensors):
                    place.cache.used = next(self._calls)
                    yield place.cache
                    return
        values = [tensor.values() if isinstance(tensor, Deferred) else tensor for tensor in tensors]
        cache = self._another()
        try:
            cache.take(values)
            yield cache
        finally:
            cache.lock.release()

    def _another(self) -> SequenceCache:
        """A new one, or where there are enough the one that was used longest ago and does not work. Locked."""
        with self._choosing:
            by_age = sorted(self._caches, key=lambda cache: cache.used)
            idle = (cache for cache in by_age if cache.lock.acquire(blocking=False))
            chosen = next(idle, None) if len(by_age) >= _KEPT_SEQUENCES else None
            if chosen is None:
                chosen = SequenceCache(self.compiled, self.kept, self._rows)
                chosen.lock.acquire()
                self._caches.add(chosen)
            chosen.used = next(self._calls)
            return chosen

    def meta(self) -> dict[str, Any]:
        parts = [part.model_dump(mode="json") for part in self.kept]
        return {"file": FILE, "order": list(self.order), "kept": parts}

    def interface(self) -> Interface:
        raise Refused("it keeps a cache between calls, which only togi hands in and out: choose a recipe without")


def build(candidate: Candidate) -> tuple[StatefulProgram, list[str]]:
    """The program, and notes for people.

    Raises Refused where nothing is returned grown, and where what is kept is not what was returned.
    """
    if candidate.at_once > 1:
        raise Refused("one cache serves one request at a time")
    model, order, notes = convert(candidate)
    kept = _returned_grown(model, order)
    if not kept:
        raise Refused("it returns no input with something behind it: there is no cache to keep")
    if model.has_rt_info(PRECISION_KEY):
        raise Refused("a cache is kept in full precision only")
    if narrow := {candidate.signature.inputs_facts[part.input].dtype for part in kept} - {"float32"}:
        raise Refused(
            f"a cache is kept in float32, and this one is of {', '.join(sorted(narrow))}: a step that goes on from it "
            "would compute with other values than whoever looks at it sees"
        )
    _keep_inside(model, kept)
    compiled, stored = compile_model(model, candidate)
    program = StatefulProgram(compiled, candidate.signature, order, kept, stored)
    with torch.no_grad():
        for inputs in candidate.flat_samples():
            _check_going_on(program, candidate.flat(), inputs)
    return program, notes


def _check_going_on(program: StatefulProgram, module: nn.Module, inputs: list[Tensor]) -> None:
    """Check that calls which go on from the cache err no more than one that is given all of it. The proof of a part is
    made of single calls: they would not show it, and a program that goes wrong by it seems to decide a tie."""
    right = inputs
    for _ in range(_STEPS_CHECKED):
        right = program.next_call(right, module(*right))
        inputs = program.next_call(inputs, program.run(inputs))
    expected = module(*right)
    alone, going_on = (_errors(program.run(given), expected) for given in (right, inputs))
    if not all(error <= _ERRORS_GROW * single + _ROUNDING for single, error in zip(alone, going_on, strict=True)):
        raise Refused("what OpenVINO keeps of this cache is not what it returned")


def _errors(found: Sequence[Tensor], expected: Sequence[Tensor]) -> list[float]:
    """Root mean square, in that of what is right."""
    errors = []
    for output, right in zip(found, expected, strict=True):
        if right.is_floating_point() and right.numel() and bool(right.isfinite().all()):
            size = float(right.square().mean().sqrt())
            errors.append(float((output - right).square().mean().sqrt()) / (size or 1.0))
    return errors


def load(folder: Path, meta: dict[str, Any], signature: Signature, threads: int | None) -> StatefulProgram:
    """Raises ArtifactError where what the manifest says does not fit the signature."""
    try:
        kept = [GrowingInput.model_validate(stored) for stored in meta["kept"]]
        compiled = compile_file(folder / FILE, threads)
        known = {name for port in compiled.outputs for name in port.names}
        inside, order = {part.output for part in kept}, [int(place) for place in meta["order"]]
        fits = len(order) == len(signature.outputs_facts) and all(
            number in inside or f"output_{place}" in known for number, place in enumerate(order)
        )
        if not (kept and fits):
            raise ValueError("outputs of the model are missing")
        program = StatefulProgram(compiled, signature, order, kept, None)
        SequenceCache(compiled, kept, {})  # its states are there
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise damaged(
            f"what its manifest says of the cache that OpenVINO keeps does not fit its model ({error})"
        ) from None
    return program


def _returned_grown(model: Any, order: Sequence[int]) -> list[GrowingInput]:
    """Inputs of four dimensions (rows, heads, length, width) of which one varies, and which are returned so."""
    inputs = {port.get_node().get_friendly_name(): number for number, port in enumerate(model.inputs)}
    kept: dict[int, GrowingInput] = {}
    for output, place in enumerate(order):
        joined = model.outputs[place].get_node().input_value(0).get_node()
        if list(order).count(place) > 1 or joined.get_type_name() != "Concat" or joined.get_input_size() != 2:
            continue
        past, new = (joined.input_value(i) for i in range(2))
        number = inputs.get(past.get_node().get_friendly_name())
        if past.get_node().get_type_name() != "Parameter" or number is None or number in kept:
            continue
        sizes, behind = past.get_partial_shape(), new.get_partial_shape()
        varies = [dim for dim in range(len(sizes)) if sizes[dim].is_dynamic]
        dim = joined.get_attributes()["axis"] % len(sizes)
        if len(sizes) == 4 and dim > 0 and varies == [dim] and behind[dim].is_static:
            kept[number] = GrowingInput(
                input=number, output=output, place=place, dim=dim, count=behind[dim].get_length()
            )
    return list(kept.values())


def _keep_inside(model: Any, kept: Sequence[GrowingInput]) -> None:
    """Each becomes a variable of the model: read at the beginning of a call, written at its end."""
    from openvino import opset13
    from openvino.passes import MakeStateful, Manager

    rows = opset13.parameter([-1], dtype=np.int32, name=_ROWS)
    rows.output(0).set_names({_ROWS})
    for part in kept:
        past = model.input(part.names[0]).get_node()
        users = past.output(0).get_target_inputs()
        chosen = opset13.gather(past, rows, opset13.constant(0, dtype=np.int64))
        for user in users:
            user.replace_source_output(chosen.output(0))
    model.add_parameters([rows])
    manager = Manager()
    manager.register_pass(MakeStateful(dict(part.names for part in kept)))
    manager.run_passes(model)
    for node in model.get_ops():
        if node.get_type_name() == "ReadValue":  # the fused form wants to know what an empty cache is
            sizes = [0 if size.is_dynamic else size.get_length() for size in node.get_output_partial_shape(0)]
            empty = opset13.constant(0.0, dtype=node.get_output_element_type(0).to_dtype())
            node.set_arguments([opset13.broadcast(empty, opset13.constant(sizes, dtype=np.int64))])
    model.validate_nodes_and_infer_types()
