import dataclasses
import threading
from typing import NamedTuple

import pytest
import torch
from torch import nn

from tests.small_modules import ComputesWith
from togi.core.errors import SubjectError
from togi.subject.architecture import repeated_parts
from togi.subject.inputs import Inputs, Subject
from togi.techniques import conformance
from togi.worker.survey import Survey, idle_rewrites, survey


def facts_of(module, samples, **options):
    return survey(Subject(module, samples, **options)).facts


def noted(facts, part):
    return any(part in note for note in facts.notes)


def test_a_plain_network():
    module = nn.Sequential(nn.Conv2d(3, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU()).eval()
    facts = facts_of(module, torch.rand(2, 3, 8, 8))
    assert facts.modules == {"Sequential": 1, "Conv2d": 1, "BatchNorm2d": 1, "ReLU": 1}
    assert {name: facts.functions[name] for name in ("conv2d", "batch_norm", "relu")} == {
        "conv2d": 1,
        "batch_norm": 1,
        "relu": 1,
    }
    assert (facts.parameters, facts.parameter_bytes, facts.parameter_dtypes) == (116, 464, ("float32",))
    assert facts.flops == facts.winograd_flops == 2 * 2 * 4 * 6 * 6 * 3 * 9
    assert facts.latency_ms > 0
    assert facts.exportable
    assert {facts.training, facts.random, facts.buffers_change, facts.non_finite_outputs} == {False}
    assert facts.repeatable
    assert facts.notes == ()


@pytest.mark.parametrize(
    "layer",
    [
        nn.Conv2d(4, 4, 1),
        nn.Conv2d(4, 4, (3, 1)),
        nn.Conv2d(4, 4, 3, stride=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, groups=2),
        nn.ConvTranspose2d(4, 4, 3),
        nn.Linear(9, 9),
    ],
)
def test_what_no_fast_convolution_algorithm_is_for_is_not_counted_as_such(layer):
    facts = facts_of(layer, torch.rand(1, 4, 9, 9))
    assert facts.flops > 0
    assert facts.winograd_flops == 0


def test_it_crosses_processes_as_json():
    found = survey(Subject(nn.Linear(2, 1).eval(), torch.rand(1, 2)))
    assert Survey.from_json(found.to_json()) == found


def test_the_users_module_stays_as_it_was():
    module = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    facts = survey(Subject(module, torch.rand(4, 2), mode="eval")).facts
    assert module.training
    assert not facts.training
    assert noted(facts, "handed over in training mode; it is run in eval()")
    assert all(torch.equal(before[name], tensor) for name, tensor in module.state_dict().items())


def test_parts_left_in_training_mode():
    module = nn.Sequential(nn.Dropout()).eval()
    module[0].train()
    facts = facts_of(module, torch.rand(2))
    assert facts.training
    assert facts.random
    assert noted(facts, "Parts of it were handed over in training mode (Dropout), and it is run so")
    facts = survey(Subject(module, torch.rand(2), mode="eval")).facts
    assert not facts.training
    assert not facts.random


def test_no_parameters():
    facts = facts_of(ComputesWith(lambda _, x: x * 2), torch.rand(3))
    assert (facts.parameters, facts.parameter_bytes, facts.parameter_dtypes, facts.flops) == (0, 0, (), None)


def test_integer_inputs():
    facts = facts_of(nn.Embedding(5, 2), torch.tensor([[0, 4]]))
    assert facts.inputs[0].dtype == "int64"
    assert facts.functions["embedding"] == 1


def test_shared_weights_count_once():
    first, second = nn.Linear(3, 3), nn.Linear(3, 3)
    second.weight = first.weight
    facts = facts_of(nn.Sequential(first, second), torch.rand(1, 3))
    assert facts.parameters == 15
    assert noted(facts, "0.weight = 1.weight")


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    extra: tuple


class Pair(NamedTuple):
    first: torch.Tensor
    second: torch.Tensor


@pytest.mark.parametrize(
    ("build", "names"),
    [
        (lambda x: Output(x + 1, (x, None)), ["output.logits", "output.extra[0]"]),
        (lambda x: Pair(x + 1, x + 2), ["output.first", "output.second"]),
        (lambda x: {"a": [x + 1], "b": 3}, ["output['a'][0]"]),
        (lambda x: (x + 1, x.T), ["output[0]", "output[1]"]),
    ],
)
def test_structured_outputs(build, names):
    facts = facts_of(ComputesWith(lambda _, x: build(x)), torch.rand(2, 3))
    assert [tensor.name for tensor in facts.outputs] == names
    assert facts.exportable, facts.export_error


def test_model_output():
    import transformers

    config = transformers.BertConfig(
        num_hidden_layers=1, hidden_size=16, num_attention_heads=2, intermediate_size=16, vocab_size=30
    )
    module = transformers.BertModel(config).eval()
    found = survey(Subject(module, [{"input_ids": torch.randint(0, 30, (1, n))} for n in (5, 9)]))
    assert found.signature.outputs.kind == "mapping"
    assert found.facts.inputs[0].shape == (1, None)
    assert found.facts.exportable, found.facts.export_error


class NotATensor:
    __slots__ = ("hidden",)


def test_opaque_output_is_reported():
    facts = facts_of(ComputesWith(lambda _, x: (x, NotATensor())), torch.rand(2))
    assert not facts.exportable
    assert noted(facts, "NotATensor")


def test_an_output_constant_that_depends_on_the_input_is_opaque():
    facts = facts_of(ComputesWith(lambda _, x: (x + 1, len(x))), [torch.rand(2), torch.rand(3)])
    assert not facts.exportable
    assert noted(facts, "int that differs from call to call")


def test_dropout_that_stays_on_is_random_and_repeatable():
    facts = facts_of(ComputesWith(lambda _, x: nn.functional.dropout(x, 0.5, True)), torch.rand(64))
    assert (facts.random, facts.repeatable) == (True, True)
    assert noted(facts, "random")


def test_a_generator_of_its_own_is_neither():
    generator = torch.Generator()
    facts = facts_of(ComputesWith(lambda _, x: x + torch.rand(x.shape, generator=generator)), torch.rand(64))
    assert (facts.random, facts.repeatable) == (False, False)
    assert noted(facts, "same seed differ")


def test_a_counter_that_the_output_ignores():
    def forward(self, x):
        self.count.add_(1)
        return x * 2

    facts = facts_of(ComputesWith(forward, count=torch.zeros(())), torch.rand(3))
    assert (facts.buffers_change, facts.repeatable) == (True, True)
    assert noted(facts, "does not depend")


def test_a_cache_that_the_output_depends_on_and_that_grows():
    def forward(self, x):
        self.cache = torch.cat([self.cache, x])
        return self.cache.sum()

    facts = facts_of(ComputesWith(forward, cache=torch.zeros(0)), torch.rand(3))
    assert (facts.buffers_change, facts.repeatable, facts.random) == (True, False, False)
    assert noted(facts, "depends on earlier calls")


def adds(self, x):
    self.w.data.add_(0.1)
    return x * self.w


def replaces(self, x):
    self.w = nn.Parameter(self.w + 0.1)
    return x * self.w


def holds_to_a_norm(self, x):
    self.w.data = torch.renorm(self.w.data, p=2, dim=0, maxnorm=1.0)
    return x @ self.w.T


@pytest.mark.parametrize("copied", [True, False])
@pytest.mark.parametrize("forward", [adds, replaces])
def test_parameters_that_every_call_changes_are_refused(forward, copied):
    lock = {} if copied else {"lock": threading.Lock()}
    module = ComputesWith(forward, w=nn.Parameter(torch.ones(3)), still=nn.Parameter(torch.ones(3)), **lock)
    with pytest.raises(
        SubjectError, match=r"ComputesWith writes into parameters in every call \(w\): .*register_buffer"
    ):
        facts_of(module, torch.rand(3))
    assert not copied or torch.equal(module.w, torch.ones(3)), "the user's own"


def test_parameters_that_the_first_call_changes_are_noted():
    """As EEGNet's layers, which hold their weights to a norm."""
    module = ComputesWith(holds_to_a_norm, w=nn.Parameter(torch.ones(2, 3)))
    facts = facts_of(module, torch.rand(3))
    assert noted(facts, "its parameters (w) are not what was handed over, and later calls leave them so")
    assert torch.equal(module.w, torch.ones(2, 3))
    assert not noted(facts_of(nn.Linear(3, 2), torch.rand(3)), "are not what was handed over")


def test_what_answers_once_and_then_raises_is_refused_with_its_line():
    def forward(self, x):
        self.count.add_(1)
        if self.count > 2:
            raise RuntimeError("used up")
        return x

    with pytest.raises(SubjectError, match=r"answers at first.*raises: .*test_facts\.py:\d+ in forward.*used up"):
        facts_of(ComputesWith(forward, count=torch.zeros(())), torch.rand(3))


def test_input_changed_in_place():
    given = torch.rand(3)
    before = given.clone()
    facts = facts_of(ComputesWith(lambda _, x: x.add_(1).clone()), given)
    assert noted(facts, "changes its inputs in place")
    assert torch.equal(given, before)


def test_output_that_is_an_input_or_a_weight():
    assert noted(facts_of(ComputesWith(lambda _, x: x[1:]), torch.rand(3)), "shares memory with an input")
    facts = facts_of(ComputesWith(lambda self, _: self.w, w=nn.Parameter(torch.rand(3))), torch.rand(3))
    assert noted(facts, "shares memory with a parameter")


def test_output_that_the_next_call_overwrites():
    def forward(self, x):
        self.kept.copy_(x + torch.rand(()))
        return self.kept

    facts = facts_of(ComputesWith(forward, kept=torch.zeros(3)), torch.rand(3))
    assert noted(facts, "shares memory with a parameter or a buffer")


def test_nan_is_found_and_does_not_look_random():
    facts = facts_of(ComputesWith(lambda _, x: x / 0 * 0), torch.rand(3))
    assert facts.non_finite_outputs
    assert facts.repeatable
    assert not facts.random
    assert noted(facts, "NaN or infinity")


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_outputs_in_floating_point_of_8_bits_are_looked_at(dtype):
    """As of a quantized cache. Torch says of few of these types whether they are finite."""
    assert not facts_of(ComputesWith(lambda _, x: x.to(dtype)), torch.rand(3)).non_finite_outputs
    facts = facts_of(ComputesWith(lambda _, x: (x * torch.nan).to(dtype)), torch.rand(3))
    assert facts.non_finite_outputs
    assert noted(facts_of(ComputesWith(lambda _, x: (x * 0).to(dtype)), torch.rand(3)), "Every output is zero")


def test_outputs_that_are_all_zero_are_reported():
    assert noted(facts_of(ComputesWith(lambda _, x: x * 0), torch.rand(3)), "Every output is zero")


def test_non_contiguous_bool_and_complex_outputs():
    facts = facts_of(ComputesWith(lambda _, x: (x.T, x > 0, torch.fft.fft(x))), torch.rand(2, 4))
    assert [tensor.dtype for tensor in facts.outputs] == ["float32", "bool", "complex64"]
    assert facts.repeatable


def test_a_module_that_cannot_be_copied():
    module = ComputesWith(lambda _, x: x + 1, lock=threading.Lock())
    facts = facts_of(module, torch.rand(2))
    assert noted(facts, "cannot be copied")


def test_inputs_that_require_gradients():
    assert noted(facts_of(nn.ReLU(), torch.rand(2, requires_grad=True)), "requires gradients")


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype):
    facts = facts_of(nn.Linear(2, 2).to(dtype), torch.rand(1, 2, dtype=dtype))
    assert facts.parameter_dtypes == (str(dtype).removeprefix("torch."),)
    assert noted(facts, "float64" if dtype is torch.float64 else "half precision")


def test_subclasses_of_torch_layers_count_as_those():
    class Mine(nn.Conv2d):
        pass

    assert facts_of(Mine(1, 1, 1), torch.rand(1, 1, 2, 2)).modules == {"Mine": 1, "Conv2d": 1}


def test_wrappers_are_taken_off():
    facts = facts_of(torch.compile(nn.ReLU()), torch.rand(2))
    assert facts.module_class == "ReLU"
    assert noted(facts, "OptimizedModule")


def test_hooks_are_reported():
    module = nn.ReLU()
    module.register_forward_hook(lambda *_: None)
    assert noted(facts_of(module, torch.rand(2)), "1 of its modules have forward hooks")


def test_control_flow_that_cannot_be_exported():
    facts = facts_of(ComputesWith(lambda _, x: x if x.sum() > 0 else -x), torch.rand(3))
    assert not facts.exportable
    assert facts.export_error
    assert "\n" not in facts.export_error


def test_multi_head_attention_and_torchscript_are_seen_through():
    attention = nn.MultiheadAttention(8, 2, batch_first=True)
    x = torch.rand(1, 4, 8)
    functions = facts_of(attention, Inputs((x, x, x), {"need_weights": False})).functions
    assert functions["scaled_dot_product_attention"] == 1 or functions["_native_multi_head_attention"] == 1
    scripted = torch.jit.script(nn.Sequential(nn.Conv1d(1, 2, 3), nn.ConvTranspose1d(2, 1, 3)))
    functions = facts_of(scripted, torch.rand(1, 1, 8)).functions
    assert (functions["conv1d"], functions["conv_transpose1d"]) == (1, 1)


def test_an_lstm_has_three_outputs():
    facts = facts_of(nn.LSTM(4, 3, batch_first=True), torch.rand(1, 5, 4))
    assert facts.functions["lstm"] == 1
    assert [t.name for t in facts.outputs] == ["output[0]", "output[1][0]", "output[1][1]"]


def test_declared_dynamic_dimensions():
    facts = facts_of(nn.Linear(2, 1), torch.rand(3, 2), dynamic={"input": [0]})
    assert facts.inputs[0].shape == (None, 2)
    assert facts.exportable, facts.export_error
    negative = facts_of(nn.ReLU(), torch.rand(3, 2), dynamic={"input": {-1: "width"}})
    assert negative.inputs[0].shape == (3, None)


@pytest.mark.parametrize("dynamic", [{"inptu": [0]}, {"input": [2]}])
def test_dynamic_dimensions_that_are_not_there(dynamic):
    with pytest.raises(SubjectError, match="dynamic names"):
        facts_of(nn.Linear(2, 1), torch.rand(3, 2), dynamic=dynamic)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_facts_and_signature_name_the_gpu():
    found = survey(Subject(nn.Linear(2, 1), torch.rand(3, 2)), device="cuda")
    assert (found.facts.device, found.signature.device) == ("cuda", "cuda")


def test_denormal_numbers_are_met_in_weights_inputs_and_intermediates():
    denormal = torch.tensor([1], dtype=torch.int32).view(torch.float32)
    linear = nn.Linear(2, 2, bias=False)
    zeros, ones = torch.zeros(1, 2), torch.ones(1, 2)
    assert facts_of(linear, ones).denormals is False
    assert facts_of(linear, zeros).denormals is False
    assert facts_of(linear, denormal.expand(1, 2).clone()).denormals
    assert facts_of(ComputesWith(lambda _, x: x + x * 1e-30 * 1e-12), ones).denormals
    with torch.no_grad():
        linear.weight[0, 0] = denormal
    assert facts_of(linear, ones).denormals
    assert facts_of(ComputesWith(lambda _, x: x[:, :0]), ones).denormals is False


def test_rewrites_without_anything_to_do_are_known_before_any_trial():
    plain = nn.Sequential(nn.Conv2d(16, 16, 3), nn.ReLU(), nn.Conv2d(16, 16, 3))
    idle = idle_rewrites(conformance.candidate_of(plain, [torch.rand(1, 16, 8, 8)]))
    assert {"drop_no_ops", "pad_channels(multiple=16)", "pad_channels(multiple=8)"} <= {*idle}
    assert "multiple of 16" in idle["pad_channels(multiple=16)"]
    odd = nn.Sequential(nn.Conv2d(16, 12, 3), nn.BatchNorm2d(12), nn.Conv2d(12, 16, 3)).eval()
    idle = idle_rewrites(conformance.candidate_of(odd, [torch.rand(1, 16, 8, 8)]))
    assert not {"fold_batch_norm", "pad_channels(multiple=16)", "pad_channels(multiple=8)"} & {*idle}


def test_a_rewrite_that_has_something_to_do_only_after_another_is_not_idle():
    """Between convolution and batch norm stand two transpositions that drop_no_ops takes away."""

    def run(parts, x):
        return parts.norm(parts.conv(x).transpose(2, 3).transpose(2, 3))

    between = ComputesWith(run, conv=nn.Conv2d(16, 16, 3), norm=nn.BatchNorm2d(16)).eval()
    idle = idle_rewrites(conformance.candidate_of(between, [torch.rand(1, 16, 8, 8)]))
    assert not {"drop_no_ops", "fold_batch_norm"} & {*idle}


def test_layers_that_repeat_are_found_next_to_torchscript():
    def block():
        return nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    scripted = torch.jit.script(nn.Sequential(block(), block(), block()))
    parts = nn.ModuleDict({"stack": nn.Sequential(*(block() for _ in range(3))), "scripted": scripted})
    assert repeated_parts(parts) == [tuple(parts["stack"])]
