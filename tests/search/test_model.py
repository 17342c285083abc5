from __future__ import annotations

import math
import random

import numpy as np
import pytest

from tests.search.search_landscapes import CONVOLUTIONAL, family
from togi.core.settings import Settings
from togi.search import Space
from togi.search.model import NOISE, Regression, expected_improvement


@pytest.fixture(scope="module")
def features():
    space = Space.of(CONVOLUTIONAL, Settings(), family())
    return [space.features(recipe) for recipe in list(space.recipes())[:300]]


def test_before_any_trial_it_is_what_the_technique_expects(features) -> None:
    mean, deviation = Regression(lambda t: t.expected_log_latency).predict([], [], features)
    assert mean == pytest.approx([t.expected_log_latency for t in features])
    assert deviation == pytest.approx([math.sqrt(t.variance + NOISE**2) for t in features])


def test_kernel_form_equals_ridge_regression_on_weights(features) -> None:
    """The same posterior computed the other way: on the weights of explicit features."""
    rng = random.Random(0)
    tried, asked = rng.sample(features, 20), rng.sample(features, 30)
    observed = [rng.gauss(-0.5, 0.3) for _ in tried]
    mean, deviation = Regression(lambda _: 0.1).predict(tried, observed, asked)
    width = 1 + max(int(t.columns.max()) for t in features)

    def dense(rows):
        matrix = np.zeros((len(rows), width))
        for row, t in enumerate(rows):
            matrix[row, t.columns] = t.spreads
        return matrix

    x, z = dense(tried), dense(asked)
    covariance = np.linalg.inv(x.T @ x / NOISE**2 + np.eye(width))
    weights = covariance @ x.T @ (np.array(observed) - 0.1) / NOISE**2
    assert mean == pytest.approx(0.1 + z @ weights, abs=1e-6)
    expected = np.sqrt(np.einsum("ij,jk,ik->i", z, covariance, z) + NOISE**2)
    assert deviation == pytest.approx(np.maximum(expected, NOISE), abs=1e-5)


def test_learns_an_additive_landscape(features) -> None:
    rng = random.Random(1)
    effect = {label: rng.gauss(0, 0.3) for t in features for label in t.atoms}
    truth = {t.recipe: sum(effect[o.label] for o in t.configurations) for t in features}
    tried, asked = features[:150], features[150:]
    mean, _ = Regression(lambda _: 0.0).predict(tried, [truth[t.recipe] for t in tried], asked)
    error = np.array([truth[t.recipe] for t in asked]) - mean
    assert np.sqrt(np.mean(error**2)) < 0.2 * np.std([truth[t.recipe] for t in asked])


@pytest.mark.parametrize(("best", "mean", "deviation"), [(0.0, 0.0, 1.0), (-1.0, -0.5, 0.3), (-1.0, -2.0, 0.2)])
def test_expected_improvement_is_the_mean_of_the_gain(best: float, mean: float, deviation: float) -> None:
    draws = np.random.default_rng(0).normal(mean, deviation, 400_000)
    expected = np.maximum(best - draws, 0).mean()
    assert expected_improvement(best, mean, deviation) == pytest.approx(expected, rel=0.02, abs=1e-4)


def test_expected_improvement_vanishes_far_above_the_best() -> None:
    assert 0 <= expected_improvement(-1.0, 1.0, 0.1) < 1e-12
