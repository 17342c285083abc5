"""What is claimed of a GPU is measured at its size: kernels take long beside what a launch costs."""

from __future__ import annotations

import pytest
import torch

from togi.claims.experiments import EXPERIMENTS, Experiment
from togi.claims.formulas import gpu_models, models
from togi.lint.module.observe import observe
from togi.lint.roofline import devices
from togi.lint.roofline.costs import Costs
from togi.subject.inputs import Inputs
from togi.techniques import all_remedies, all_techniques

LEAST_S = 50e-6
ABOUT_LAUNCHES = {"small_operations", "kept_activations"}
"""Models whose small kernels are the point: what saves launches is shown by nothing else."""
ON_CUDA = [id for id, one in all_techniques().items() if "cuda" in one.devices and id in EXPERIMENTS]


def kernel_seconds(experiment: Experiment) -> list[float]:
    """By the roofline of an H100's data sheet; fake tensors take no memory. ``early_exit`` decides by values: once
    through its body."""
    with torch.device("meta"):
        module, sample = getattr(gpu_models, experiment.model)()
        module = module.body if experiment.model == "early_exit" else module
    costs = Costs.of(observe(module, Inputs((sample,))).calls, devices.gpu("H100"))
    return [found.seconds for found in costs.predictions if found.seconds]


@pytest.mark.parametrize("id", ON_CUDA)
def test_kernels_take_ten_times_what_a_launch_costs(id: str) -> None:
    experiment = EXPERIMENTS[id]
    if experiment.model in ABOUT_LAUNCHES:
        assert experiment.at("cuda") == experiment
        return
    seconds = kernel_seconds(experiment)
    assert len(seconds) >= 3
    assert sum(seconds) / len(seconds) >= LEAST_S


def test_a_cpu_has_its_own_sizes_and_a_users_subject_has_the_users() -> None:
    experiment = EXPERIMENTS["fold_batch_norm"]
    assert experiment.at("cpu").locator == "togi.claims.formulas.models:convolutions"
    assert experiment.at("cuda:1").locator == "togi.claims.formulas.gpu_models:convolutions"
    assert "224" in experiment.at("cuda").setting
    assert experiment.on("model.py").at("cuda").locator == "model.py"


def test_a_technique_for_cpus_alone_has_no_model_of_a_gpu() -> None:
    for id, experiment in EXPERIMENTS.items():
        if "cuda" not in all_remedies()[id].devices and experiment.on_cuda:
            assert experiment.model in {EXPERIMENTS[other].model for other in ON_CUDA}, id


def test_the_models_are_the_same_but_for_their_sizes() -> None:
    for name in {one.model for one in EXPERIMENTS.values() if one.on_cuda}:
        with torch.device("meta"):
            small, large = getattr(models, name)()[0], getattr(gpu_models, name)()[0]
        assert {type(part) for part in small.modules()} == {type(part) for part in large.modules()}
