"""A cache that stays inside OpenVINO: the same numbers as without, whoever looks at it and whenever."""

from __future__ import annotations

import copy
import gc
import pickle
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from tests.techniques.engine.engine_subjects import candidate_of
from togi.artifact.manifest import Link, PartEntry
from togi.artifact.part_engine import PartEngine
from togi.core.errors import ArtifactError, Refused
from togi.core.recipe import PartKey
from togi.graph.candidate import Candidate, FlatProgram
from togi.subject.domain import Domain
from togi.subject.effects import Effects
from togi.techniques.engine.programs import openvino_stateful as stateful
from togi.techniques.engine.programs.openvino_cache import SequenceCache
from togi.techniques.engine.programs.openvino_library import openvino
from togi.techniques.registry import technique
from togi.torch_internals.deferred import Deferred

ROWS, HEADS, WIDTH, LAYERS = 2, 2, 8, 2
Cache = list[Tensor]


class Step(nn.Module):
    """One step of a decoder: a token in, a token's scores and longer caches out."""

    def __init__(self) -> None:
        super().__init__()
        self.taken = nn.ModuleList(nn.Linear(HEADS * WIDTH, 3 * HEADS * WIDTH) for _ in range(LAYERS))

    def forward(self, x: Tensor, mask: Tensor, *past: Tensor) -> tuple[Tensor, list[Tensor]]:
        grown = []
        for number, taken in enumerate(self.taken):
            query, key, value = (part.view(ROWS, 1, HEADS, WIDTH).transpose(1, 2) for part in taken(x).chunk(3, dim=-1))
            keys = torch.cat([past[2 * number], key], dim=2)
            values = torch.cat([past[2 * number + 1], value], dim=2)
            found = nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask[:, None, None, :])
            x = x + found.transpose(1, 2).reshape(ROWS, 1, HEADS * WIDTH)
            grown += [keys, values]
        return x, grown


def cache_of(length: int, seed: int = 0) -> Cache:
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(ROWS, HEADS, length, WIDTH, generator=generator) for _ in range(2 * LAYERS)]


def mask_for(length: int) -> Tensor:
    mask = torch.ones(ROWS, length + 1, dtype=torch.bool)
    mask[1, :2] = False
    return mask


def token(number: int) -> Tensor:
    return torch.randn(ROWS, 1, HEADS * WIDTH, generator=torch.Generator().manual_seed(number))


@pytest.fixture(scope="module")
def candidate() -> Candidate:
    torch.manual_seed(0)
    return candidate_of(Step(), [(token(0), mask_for(length), *cache_of(length)) for length in (4, 7)], steps=True)


@pytest.fixture(scope="module")
def built(candidate: Candidate) -> stateful.StatefulProgram:
    return stateful.build(candidate)[0]


@pytest.fixture
def program(built: stateful.StatefulProgram, candidate: Candidate) -> stateful.StatefulProgram:
    """Of the same model, with no sequence yet."""
    return stateful.StatefulProgram(built.compiled, candidate.signature, built.order, built.kept, built.stored)


def step(call: Any, number: int, cache: Cache) -> tuple[Tensor, Cache]:
    with torch.no_grad():
        found, grown = call(token(number), mask_for(cache[0].shape[2]), *cache)
    return found, list(grown)


def only(program: stateful.StatefulProgram) -> SequenceCache:
    (cache,) = program._caches
    return cache


def at_once(work: Callable[[int], object], count: int) -> None:
    """In so many threads, each given its number."""
    threads = [threading.Thread(target=work, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def close(one: Any, other: Any) -> None:
    torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)


def test_steps_go_on_from_what_the_last_returned_and_fetch_nothing(candidate, program) -> None:
    expected, found = cache_of(4), cache_of(4)
    for number in range(6):
        right, expected = step(candidate.module, number, expected)
        answer, found = step(program, number, found)
        close(answer, right)
    assert all(isinstance(each, Deferred) and each._fetched is None for each in found)
    assert len(program._caches) == 1
    assert only(program).lengths == [10] * 4
    close([each + 0 for each in found], expected)


@pytest.fixture
def bounded(built: stateful.StatefulProgram, candidate: Candidate) -> stateful.StatefulProgram:
    """Of the same model, proven for caches of small values."""
    domains = [Domain(), Domain(), *[Domain(low=-9.0, high=9.0)] * (2 * LAYERS)]
    return stateful.StatefulProgram(
        built.compiled, candidate.signature.within(domains), built.order, built.kept, built.stored
    )


def test_values_of_its_own_last_answer_are_not_looked_at(bounded: stateful.StatefulProgram) -> None:
    cache = step(bounded, 0, cache_of(4))[1]
    for number in range(1, 4):
        cache = step(bounded, number, cache)[1]
    assert all(isinstance(each, Deferred) and each._fetched is None for each in cache)


@pytest.mark.parametrize("place", [0, 2 * LAYERS - 1])
def test_what_the_user_wrote_to_its_answer_is_looked_at(bounded: stateful.StatefulProgram, place: int) -> None:
    cache = step(bounded, 0, cache_of(4))[1]
    cache[place][0, 0, 0, 0] = 100.0
    with pytest.raises(ValueError, match="holds 100, but was proven for values from -9 to 9"):
        step(bounded, 1, cache)
    cache[place][0, 0, 0, 0] = 1.0
    step(bounded, 1, cache)


def test_what_another_program_returned_is_looked_at(
    bounded: stateful.StatefulProgram, candidate: Candidate, built: stateful.StatefulProgram
) -> None:
    kept = [part.model_copy() for part in built.kept]  # of another program, if of one like it
    other = stateful.StatefulProgram(built.compiled, candidate.signature, built.order, kept, built.stored)
    large = step(other, 0, [each * 100 for each in cache_of(4)])[1]
    with pytest.raises(ValueError, match="was proven for values from -9 to 9"):
        step(bounded, 1, large)
    assert large[0].place is not None, "the other program goes on from it without a copy"
    swapped = step(bounded, 0, cache_of(4))[1]
    swapped[0], swapped[1] = swapped[1], swapped[0]
    step(bounded, 1, swapped)
    assert swapped[0]._fetched is not None, "its own values, in another place"


def test_whoever_looks_at_a_cache_sees_its_values(candidate, program) -> None:
    start = cache_of(4)
    (_, right), (_, found) = step(candidate.module, 0, start), step(program, 0, start)
    later = step(program, 1, found)[1]
    assert later[0].shape == (ROWS, HEADS, 6, WIDTH)
    assert found[0].dtype == torch.float32
    assert found[0].is_contiguous()
    for number, look in enumerate(
        (
            lambda tensor: tensor + 0,
            lambda tensor: torch.from_numpy(tensor.numpy()),
            lambda tensor: torch.tensor(tensor.tolist()),
            copy.deepcopy,
        )
    ):
        close(look(found[number]), right[number])
    assert str(right[0].shape[2]) in repr(found[0].shape)
    close(pickle.loads(pickle.dumps(later[0])), later[0] + 0)
    assert torch.equal(later[0][:, :, :5], found[0] + 0)


@pytest.mark.parametrize("inference", [False, True])
def test_what_is_changed_by_hand_counts(candidate, program, inference: bool) -> None:
    with torch.inference_mode(inference):
        caches = []
        for call in (candidate.module, program):
            cache = step(call, 0, cache_of(4))[1]
            cache[0].mul_(2.0)
            cache[1][:, :, -1] = 1.0
            cache[2].numpy()[:] = 0.5
            cache[3].type_as(cache[0]).add_(1.0)  # the same tensor, which its operator does not say
            caches.append(step(call, 1, cache))
        close([caches[1][0], *(each + 0 for each in caches[1][1])], [caches[0][0], *caches[0][1]])


@settings(max_examples=25, deadline=None)
@given(plan=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 30), st.booleans()), min_size=1, max_size=25))
def test_sequences_that_take_turns_branch_and_are_cut_short(candidate, built, plan) -> None:
    """Any former state may be gone on from, whole or cut; old ones are held or let go."""
    program = stateful.StatefulProgram(built.compiled, candidate.signature, built.order, built.kept, None)
    states: list[tuple[Cache, Cache]] = [(cache_of(4, seed), cache_of(4, seed)) for seed in range(3)]
    for choice, number, cut in plan:
        right, found = states[(number + choice) % len(states)]
        if cut and right[0].shape[2] > 4:
            right, found = ([each[:, :, :-1] for each in cache] for cache in (right, found))
        expected, right = step(candidate.module, number, right)
        answer, found = step(program, number, found)
        close(answer, expected)
        if choice == 3 and len(states) > 2:
            states.pop(0)
        states.append((right, found))
    for right, found in states:
        close([each + 0 for each in found], right)


def test_the_sequence_that_was_used_longest_ago_makes_room(program) -> None:
    caches = [step(program, 0, cache_of(4, seed))[1] for seed in range(stateful._KEPT_SEQUENCES)]
    caches[0] = step(program, 1, caches[0])[1]
    kept = step(program, 0, cache_of(4, 99))[1]
    assert [cache[0]._fetched is None for cache in caches[:3]] == [True, False, True]
    assert kept[0]._fetched is None


def test_more_sequences_than_are_kept(candidate, program) -> None:
    count = stateful._KEPT_SEQUENCES + 3
    rights, founds = ([cache_of(4, seed) for seed in range(count)] for _ in range(2))
    for number in range(3):
        for seed in range(count):
            expected, rights[seed] = step(candidate.module, number, rights[seed])
            answer, founds[seed] = step(program, number, founds[seed])
            close(answer, expected)
    assert len(program._caches) == stateful._KEPT_SEQUENCES
    for right, found in zip(rights, founds, strict=True):
        close([each + 0 for each in found], right)


def test_what_nobody_holds_is_free_at_once(program) -> None:
    gc.disable()  # no cycle keeps it: nobody has to wait for the collector
    try:
        caches = [step(program, 1, step(program, 0, cache_of(4, seed))[1])[1] for seed in range(3)]
        assert len(program._caches) == 3
        requests = [weakref.ref(cache) for cache in program._caches]
        caches.pop()
        assert len(program._caches) == 2
        for tensor in caches[0]:
            tensor.mul_(2.0)  # it has its values, and nothing will go on from what is inside
        assert len(program._caches) == 1
        caches.clear()
        assert [each() for each in requests] == [None] * 3
    finally:
        gc.enable()


def test_one_that_cannot_be_made_leaves_the_others_usable(candidate, program, monkeypatch) -> None:
    right, found = (step(call, 0, cache_of(4))[1] for call in (candidate.module, program))

    def no_memory(*_: Any) -> None:
        raise MemoryError("no room for another")

    with monkeypatch.context() as patched:
        patched.setattr(stateful, "SequenceCache", no_memory)
        with pytest.raises(MemoryError):
            step(program, 0, cache_of(4, 1))
    answers: list[Tensor] = []
    other = threading.Thread(target=lambda: answers.append(step(program, 1, found)[0]), daemon=True)
    other.start()
    other.join(20)
    assert not other.is_alive()
    close(answers, [step(candidate.module, 1, right)[0]])


def test_several_threads(candidate, program) -> None:
    wrong: list[str] = []

    def work(seed: int) -> None:
        right, found = cache_of(4, seed), cache_of(4, seed)
        for number in range(20):
            expected, right = step(candidate.module, number + seed, right)
            answer, found = step(program, number + seed, found)
            if not torch.allclose(answer, expected, rtol=1e-4, atol=1e-4):
                wrong.append(f"{seed} in step {number}")

    at_once(work, 6)
    assert not wrong


def test_threads_that_look_while_others_need_room(candidate, program) -> None:
    """More sequences than are kept: each that looks may find its cache being given to another."""
    wrong: list[str] = []

    def work(seed: int) -> None:
        right, found = cache_of(4, seed), cache_of(4, seed)
        for number in range(12):
            right, found = step(candidate.module, number, right)[1], step(program, number, found)[1]
            if not torch.allclose(found[number % 4] + 0, right[number % 4], rtol=1e-4, atol=1e-4):
                wrong.append(f"{seed} in step {number}")

    at_once(work, stateful._KEPT_SEQUENCES + 4)
    assert not wrong


def test_threads_that_go_on_from_one_state(candidate, program) -> None:
    start = step(program, 0, cache_of(4))[1]
    expected = step(candidate.module, 1, step(candidate.module, 0, cache_of(4))[1])[0]
    answers: list[Tensor] = []
    at_once(lambda _: answers.append(step(program, 1, start)[0]), 6)
    close(answers, [expected] * 6)


def test_a_shallow_copy_shares_what_is_changed(candidate, program) -> None:
    caches = []
    for call in (candidate.module, program):
        cache = step(call, 0, cache_of(4))[1]
        copy.copy(cache[0]).add_(1.0)
        caches.append(step(call, 1, cache)[0])
    close(caches[1], caches[0])


@pytest.mark.parametrize("change", [lambda one: one.unsqueeze_(0), lambda one: one.resize_(3), lambda one: one.t_()])
def test_its_form_cannot_be_changed_in_place(candidate, program, change: Any) -> None:
    cache = step(program, 0, cache_of(4))[1]
    with pytest.raises(RuntimeError, match=r"which one that an engine keeps cannot have: \.clone\(\) it"):
        change(cache[0])
    close(step(program, 1, cache)[0], step(candidate.module, 1, step(candidate.module, 0, cache_of(4))[1])[0])


def test_an_engine_that_keeps_something_else_is_refused(candidate, monkeypatch) -> None:
    """As a fault of its own would be: what was appended is lost."""
    right = SequenceCache.infer

    def faulty(self: Any, feeds: Any) -> Any:
        lengths, found = list(self.lengths), right(self, feeds)
        if lengths[0] > 5:
            state = self._states[0]
            state.state = openvino().Tensor(torch.zeros(tuple(state.state.shape)).numpy())
        return found

    monkeypatch.setattr(SequenceCache, "infer", faulty)
    with pytest.raises(Refused, match="what OpenVINO keeps of this cache is not what it returned"):
        stateful.build(candidate)


def test_after_a_call_that_failed_nothing_is_gone_on_from(candidate, program, monkeypatch) -> None:
    right, found = (step(call, 0, cache_of(4))[1] for call in (candidate.module, program))

    class Fails:
        def set_tensor(self, *_: Any) -> None: ...

        def infer(self, *_: Any, **__: Any) -> None:
            raise RuntimeError("out of memory")

    with monkeypatch.context() as patched:
        patched.setattr(only(program), "request", Fails())
        with pytest.raises(RuntimeError, match="out of memory"):
            step(program, 1, found)
    assert not only(program).lengths
    close([each + 0 for each in found], right)
    close(step(program, 1, found)[0], step(candidate.module, 1, right)[0])


def test_a_mask_that_does_not_fit_the_cache_is_refused(candidate, program) -> None:
    """OpenVINO would read beyond it."""
    right, found = (step(call, 0, cache_of(4))[1] for call in (candidate.module, program))
    for length in (5, 7, 17):
        with pytest.raises(ValueError, match=rf"has 5 in dimension 2, where mask has {length} in dimension 1"):
            program(token(1), torch.ones(ROWS, length, dtype=torch.bool), *found)
    close(step(program, 1, found)[0], step(candidate.module, 1, right)[0])


def test_it_is_measured_as_a_program_uses_it(candidate, program) -> None:
    for tensors in (*candidate.flat_samples(), [token(0), mask_for(1), *cache_of(1)]):
        given = program.as_returned(tensors)
        assert [type(each) is Deferred for each in given] == [False, False, True, True, True, True]
        assert [each.shape for each in given] == [each.shape for each in tensors]
        with torch.no_grad():
            answer = program.run(given)
        assert all(each._fetched is None for each in given[2:])
        with torch.no_grad():
            close(answer[0], candidate.module(*given[:2], *(each + 0 for each in given[2:]))[0])
        close([each[:, :, :-1] + 0 for each in given[2:]], [each[:, :, :-1] for each in tensors[2:]])


@pytest.mark.parametrize("flat", [False, True])
def test_engines_that_do_not_keep_it_are_given_plain_tensors(candidate, program, flat: bool) -> None:
    """Compiled code reads memory where a deferred tensor has none."""
    cache = step(program, 0, cache_of(4))[1]
    given = (token(1), mask_for(5), *cache)
    seen: list[Any] = []

    class Compiled(FlatProgram):
        def run(self, inputs: list[Tensor]) -> list[Tensor]:
            seen.extend(inputs)
            return list(candidate.flat()(*inputs))

        def save(self, folder: Path) -> dict[str, Any]:
            raise NotImplementedError

    loaded = candidate.with_(program=Compiled(candidate.signature), around=None if flat else lambda call: call)
    manifest: Any = SimpleNamespace(signature=candidate.signature, facts=candidate.facts)
    link = Link(engine="aot_inductor", folder="aot_inductor", meta={})
    entry = PartEntry(key=PartKey(path="step"), module="Step", effects=Effects(), weights="")
    part = PartEngine(loaded, manifest, link, (), entry)
    part.call_with(candidate.signature.checked(given, {}), given, {})
    assert {type(each) for each in seen} == {Tensor}
    close(seen[2:], [each + 0 for each in cache])
    close(step(program, 1, cache)[0], step(candidate.module, 1, seen[2:])[0])


def test_saved_and_loaded(candidate, program, tmp_path: Path) -> None:
    meta = program.save(tmp_path)
    loaded = stateful.load(tmp_path, meta, candidate.signature, 1)
    cache = cache_of(4)
    close(step(loaded, 1, step(loaded, 0, cache)[1])[0], step(program, 1, step(program, 0, cache)[1])[0])
    for damaged in (
        {**meta, "kept": []},
        {**meta, "kept": [{**meta["kept"][0], "input": 1}]},
        {**meta, "kept": [{**meta["kept"][0], "dim": "x"}]},
        {**meta, "order": meta["order"][:1]},
        {**meta, "order": None},
    ):
        with pytest.raises(ArtifactError, match="it is damaged"):
            stateful.load(tmp_path, damaged, candidate.signature, 1)


def test_it_is_offered_to_parts_that_a_program_steps_through(candidate) -> None:
    engine = technique("openvino")
    assert list(engine.options(candidate.facts)) == [{"stateful": True}, {}]
    plain = candidate.facts.model_copy(update={"steps": False})
    assert list(engine.options(plain)) == [{}]
    assert {"stateful": True} not in list(engine.options(candidate.facts.model_copy(update={"callers": 2})))


class Plain(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([x, x], dim=2)


def test_what_returns_nothing_grown_is_refused() -> None:
    samples = [(torch.randn(1, 2, length, 3),) for length in (4, 6)]
    with pytest.raises(Refused, match="there is no cache to keep"):
        stateful.build(candidate_of(Plain(), samples))


@pytest.mark.parametrize(("dtype", "why"), [(torch.float16, "kept in float32"), (torch.float64, "float32 on a CPU")])
def test_a_cache_of_another_type_is_refused(dtype: torch.dtype, why: str) -> None:
    samples = [(token(0).to(dtype), mask_for(size), *(each.to(dtype) for each in cache_of(size))) for size in (4, 7)]
    with pytest.raises(Refused, match=f"{str(dtype)[6:]}.*{why}|{why}.*{str(dtype)[6:]}"):
        stateful.build(candidate_of(Step().to(dtype), samples, steps=True))


def test_a_cache_in_lower_precision_is_refused(candidate) -> None:
    lowered = technique("bf16_openvino").apply(candidate, {})
    with pytest.raises(Refused, match="kept in full precision only"):
        stateful.build(lowered)
