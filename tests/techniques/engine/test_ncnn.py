"""ncnn is tried where it can be ahead, and what cannot be converted faithfully is refused with a reason."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from tests.techniques.engine.engine_subjects import candidate_of, made
from togi.core.errors import Refused
from togi.measure.memory import mark_memory
from togi.techniques import Applies, Refuses, conformance, technique
from togi.techniques.engine.programs import ncnn

ENGINE = technique("ncnn")
CALLERS = 32


class Call(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.convolution = nn.Conv2d(3, 8, 3, padding=1)
        self.function = function

    def forward(self, x):
        return self.function(self.convolution(x))


def picture():
    return torch.randn(1, 3, 12, 12)


def test_an_artifact_holds_data_alone(tmp_path):
    """pnnx writes Python files too, which would be code."""
    ncnn.build(made("dense")).save(tmp_path)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.bin", "model.param"]


def test_weights_are_not_halved(tmp_path):
    candidate = made("dense")
    ncnn.build(candidate).save(tmp_path)
    weights = sum(p.numel() for p in candidate.module.parameters()) - 2 * 5  # the batch norm's are folded
    assert (tmp_path / "model.bin").stat().st_size >= 4 * weights


def test_outputs_outlive_the_program_and_later_calls():
    candidate = made("dense")
    program = ncnn.build(candidate)
    first = program(*candidate.samples[0].args)
    kept = {name: tensor.clone() for name, tensor in first.items()}
    program(*(2 * tensor for tensor in candidate.samples[0].args))
    del program
    assert all(torch.equal(first[name], kept[name]) for name in kept)


def test_threads_that_call_at_once_get_what_one_gets():
    candidate = made("dense")
    program = ncnn.build(candidate)
    given = [(torch.randn(1, 3, 13, 11), torch.randn(1, 3, 13, 11)) for _ in range(CALLERS)]
    start = threading.Barrier(CALLERS)

    def answers(pictures):
        start.wait(timeout=60)
        return [program(*pictures) for _ in range(3)]

    with ThreadPoolExecutor(CALLERS) as pool:
        for pictures, found in zip(given, pool.map(answers, given), strict=True):
            expected = candidate.module(*pictures)
            for answer in found:
                torch.testing.assert_close(answer, expected, rtol=1e-4, atol=1e-5)


def test_memory_does_not_grow_with_calls():
    """A result is 512 KiB; one in ten that is kept would be 20 MiB."""
    program = ncnn.build(candidate_of(Call(torch.relu), torch.randn(1, 3, 128, 128)))
    sample = torch.randn(1, 3, 128, 128)

    def after(calls):
        for _ in range(calls):
            program(sample)
        return mark_memory().anonymous_bytes

    before = after(50)
    assert after(400) - before < 8 << 20


@pytest.mark.parametrize(
    ("facts", "reason"),
    [
        ({"flops": 100, "winograd_flops": 69}, "69% of its operations"),
        ({"program": True, "exportable": False}, "its modules are traced"),
    ],
)
def test_where_others_are_ahead_it_is_not_tried(facts, reason):
    answer = ENGINE.applies(made("dense", **facts).facts)
    assert isinstance(answer, Refuses)
    assert reason in answer.reason
    assert ENGINE.applies(made("dense", flops=100, winograd_flops=70).facts) == Applies()


@pytest.mark.parametrize(
    ("module", "samples", "reason"),
    [
        (nn.Conv2d(3, 4, 3), torch.randn(2, 3, 8, 8), "without an axis for a batch"),
        (nn.Conv2d(3, 4, 3), [torch.randn(1, 3, n, 8) for n in (8, 9)], "fixed sizes"),
        (nn.Conv2d(3, 4, 3).double(), torch.randn(1, 3, 8, 8).double(), "not float64"),
        (nn.Embedding(5, 2), torch.tensor([[1, 2]]), "not int64"),
    ],
)
def test_calls_that_it_cannot_answer_are_refused(module, samples, reason):
    answer = ENGINE.applies(candidate_of(module, samples).facts)
    assert isinstance(answer, Refuses)
    assert reason in answer.reason


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: torch.fft.fft2(x).abs(), r"ncnn .* has no layer torch\.fft\.fft2"),
        (lambda x: x.median(1).values, r"has no layer aten::median"),
    ],
)
def test_an_operator_that_ncnn_lacks_is_named(function, reason):
    with pytest.raises(Refused, match=reason):
        ncnn.build(candidate_of(Call(function), picture()))


def test_what_has_no_axis_to_leave_out_is_refused():
    with pytest.raises(Refused, match="first axis of each input"):
        ncnn.build(candidate_of(nn.ReLU(), torch.randn(5)))


def test_a_network_with_other_sizes_than_the_original_is_refused(monkeypatch):
    """As if pnnx had dropped an operator."""
    candidate = candidate_of(Call(lambda x: x.mean(1)), picture())
    monkeypatch.setattr(ncnn, "trace", lambda *_: torch.jit.trace(Call(lambda x: x), picture()))
    with pytest.raises(Refused, match="ncnn cannot run what pnnx made of it"):
        ncnn.build(candidate)


def test_a_damaged_network_is_distinguished_from_a_sound_one(tmp_path):
    candidate = made("dense")
    meta = ncnn.build(candidate).save(tmp_path)
    layers = tmp_path / ncnn.LAYERS
    text = layers.read_text(encoding="utf-8")
    for damaged, reason in (
        (text.replace("ReLU ", "Rely "), "no layer Rely"),
        (text.replace("7767517", "1"), "it says"),
    ):
        layers.write_text(damaged, encoding="utf-8")
        with pytest.raises(RuntimeError, match=reason):
            ENGINE.load(tmp_path, meta, candidate.signature, None)


@pytest.mark.parametrize(
    ("kind", "given", "instead"),
    [
        ("Convolution", " 6=", " 6=9 60="),
        ("Convolution", " 0=", " 0=64 60="),
        ("Convolution", " 1=3", " 1=9"),
        ("InnerProduct", " 2=", " 2=5 60="),
        ("InnerProduct", " 0=", " 0=0 60="),
        ("Input", "7767517", "7767517\n9 9\nX x 0 1 x\n#"),
    ],
)
def test_a_network_that_would_read_beyond_its_weights_is_refused(tmp_path, kind, given, instead):
    candidate = made("dense")
    meta = ncnn.build(candidate).save(tmp_path)
    layers = tmp_path / ncnn.LAYERS
    lines = layers.read_text(encoding="utf-8").splitlines()
    assert ENGINE.load(tmp_path, meta, candidate.signature, None)
    at = 0 if kind == "Input" else next(n for n, line in enumerate(lines) if line.startswith(f"{kind} "))
    lines[at] = lines[at].replace(given, instead, 1)
    layers.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(RuntimeError, match=r"weights for|it is not a network|it says"):
        ENGINE.load(tmp_path, meta, candidate.signature, None)


def test_it_is_repeated_without_togi(tmp_path):
    candidate = made("dense")
    (sample,) = candidate.flat_samples()
    names = {"torch": torch, "here": tmp_path, "samples": [sample]}
    names["program"] = torch.export.export(candidate.flat(), tuple(sample))
    exec(ENGINE.repro({}, 1), names)
    for found, expected in zip(names["run"](*sample), candidate.flat()(*sample), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_it_takes_what_a_rewrite_made():
    def branches():
        class Branches(nn.Module):
            def __init__(self):
                super().__init__()
                self.wide, self.narrow = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
                self.norm = nn.BatchNorm2d(4)

            def forward(self, x):
                return torch.relu(self.norm(self.wide(x)) + self.narrow(x))

        return conformance.candidate_of(Branches().eval(), [torch.randn(1, 4, 9, 7)])

    start = branches()
    merged = technique("merge_branches").apply(technique("fold_batch_norm").apply(start, {}), {})
    assert conformance.check_application(ENGINE, merged, {}) is not None
