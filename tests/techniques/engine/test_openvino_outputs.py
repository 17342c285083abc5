"""OpenVINO's outputs are lent without a copy, and nobody's are overwritten while he holds them."""

from __future__ import annotations

import threading

import pytest
import torch
from torch import nn

from tests.techniques.engine.engine_subjects import made
from togi.core.callers import Callers
from togi.core.errors import ArtifactError, Refused
from togi.techniques import conformance, technique
from togi.techniques.engine.programs import openvino


class Returns(nn.Module):
    """(n, 4) -> a result, one whose size follows, the input itself, a constant, and a weight."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 64)

    def forward(self, x):
        return self.linear(x), self.linear(x).relu().reshape(-1), x, self.linear.weight * 2, self.linear.weight


def varying():
    return conformance.candidate_of(Returns(), [torch.randn(2, 4), torch.randn(5, 4)])


def fixed():
    return conformance.candidate_of(Returns(), [torch.randn(3, 4)])


def sizes(candidate):
    return [3] if None not in candidate.signature.inputs_facts[0].shape else [2, 5, 1, 9]


def check(held):
    for found, expected in held:
        for got, wanted in zip(found, expected, strict=True):
            torch.testing.assert_close(got, wanted)


def call(program, module, size):
    sample = torch.randn(size, 4)
    with torch.no_grad():
        return program(sample), [tensor.clone() for tensor in module(sample)]


@pytest.mark.parametrize("make", [varying, fixed])
def test_outputs_that_are_held_stay_as_they_are(make):
    candidate = make()
    program, _ = openvino.build(candidate)
    held = [call(program, candidate.module, size) for _ in range(4) for size in sizes(candidate)]
    del held[1]
    held += [call(program, candidate.module, size) for size in sizes(candidate)]
    check(held)
    del program
    check(held)


@pytest.mark.parametrize("make", [varying, fixed])
def test_what_is_written_into_an_output_reaches_no_later_call(make):
    candidate = make()
    program, _ = openvino.build(candidate)
    for size in sizes(candidate) * 2:
        found, expected = call(program, candidate.module, size)
        check([(found, expected)])
        for tensor in found[:2] + found[3:]:
            tensor.fill_(7.0)
        del found


def test_threads_do_not_share_outputs():
    candidate = varying()
    program, _ = openvino.build(candidate)
    failed = []

    def work():
        held = []
        try:
            for size in sizes(candidate) * 4:
                held = [*held[-2:], call(program, candidate.module, size)]
                check(held)
        except Exception as error:
            failed.append(error)

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed


def test_memory_that_was_let_go_of_is_used_again():
    """No copy, and no fresh memory: a view alone keeps it from being used again."""
    program, _ = openvino.build(made("convolutions"))
    sample = torch.randn(2, 3, 8, 8)
    first = program(sample)
    place = first.data_ptr()
    del first
    again = program(sample)
    assert again.data_ptr() == place
    view = again[0, :2]
    del again
    assert program(sample).data_ptr() != place
    del view
    assert program(sample).data_ptr() == place


def call_from_all(program, module):
    given = [torch.randn(2 + i % 3, 4) for i in range(16)]
    found = {}
    Callers(4).answer(lambda i: found.update({i: program(given[i])[0]}), len(given))
    for i, x in enumerate(given):
        torch.testing.assert_close(found[i], module(x)[0])


def test_streams_share_the_threads_and_serve_callers_at_once(tmp_path):
    start = varying()
    program, _ = openvino.build(start.with_(threads=1), 2)
    again = openvino.load(tmp_path, program.save(tmp_path), start.signature, 1)
    for each in (program, again):
        assert each.compiled.get_property("NUM_STREAMS") == 2
        assert each.compiled.get_property("INFERENCE_NUM_THREADS") == 2
        assert each.interface().settings["NUM_STREAMS"] == 2
        call_from_all(each, start.module)


@pytest.mark.parametrize(("threads", "streams"), [(1, 1), (2, 1), (None, 1), (1, 2)])
def test_threads_that_leave_cores_to_other_processes_are_pinned_to_none(threads, streams, monkeypatch):
    """Each process would pin them to the same."""
    monkeypatch.setattr(openvino, "physical_cores", lambda: 3 + torch.get_num_threads())
    program, _ = openvino.build(varying().with_(threads=threads), streams)
    assert not program.compiled.get_property("ENABLE_CPU_PINNING")


def test_pieces_of_a_call_at_once_have_a_stream_each():
    program, _ = openvino.build(fixed().with_(at_once=2, threads=1))
    assert program.compiled.get_property("NUM_STREAMS") == 2


@pytest.mark.parametrize("streams", [0, -1, "2", True, None])
def test_streams_that_are_none_are_refused(streams, tmp_path):
    with pytest.raises(Refused, match="positive number"):
        openvino.build(fixed(), streams)
    meta = openvino.build(fixed())[0].save(tmp_path) | {"streams": streams}
    with pytest.raises(ArtifactError, match="positive number"):
        openvino.load(tmp_path, meta, fixed().signature, None)


class Codes(nn.Module):
    """Pads by numbers that it keeps in tensors, which a trace does not follow, before a recurrent layer."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.conv, self.recurrent = nn.Conv1d(1, 6, 4, stride=2), nn.LSTM(6, 6, 2)
        self.register_buffer("stride", torch.tensor(2), persistent=False)
        self.register_buffer("kernel", torch.tensor(4), persistent=False)

    def forward(self, x):
        frames = torch.ceil((x.shape[-1] - self.kernel) / self.stride + 1).to(torch.int64) - 1
        behind = frames * self.stride + self.kernel - x.shape[-1]
        if x.shape[-1] <= max(self.kernel - self.stride, behind):
            raise ValueError("too short to mirror")
        x = nn.functional.pad(x, (self.kernel - self.stride, behind), mode="reflect")
        x = self.conv(x).permute(2, 0, 1)
        return (self.recurrent(x)[0] + x).permute(1, 2, 0)


def test_recurrent_layers_behind_numbers_in_tensors_are_converted_from_the_graph():
    x = torch.randn(1, 1, 23)
    start = conformance.candidate_of(Codes(), [x])
    program = technique("openvino").apply(start, {}).program
    torch.testing.assert_close(program(x), start.module(x), rtol=1e-4, atol=1e-5)
