"""Noise of steps, averaged; what is not known of a step does not count."""

import math

import pytest
import torch

from monitorch.engine.gradient_parts import PartsOfStep
from monitorch.engine.ranks import merged
from monitorch.preprocessor.signal_to_noise import GradientNoise


def step(parts, mean_square, square_of_mean):
    return PartsOfStep(parts, torch.tensor(mean_square), torch.tensor(square_of_mean))


def test_before_the_first_step_there_is_no_scale():
    assert GradientNoise().scale is None


def test_both_numbers_are_averaged_over_steps_with_any_number_of_parts():
    noise = GradientNoise()
    noise.process_parts(step(2, 5.0, 4.0))  # |G|^2 = 3, a variance of 2 for one part, 1 for both
    noise.process_parts(step(4, 4.0, 4.0))  # |G|^2 = 4, and no noise
    assert noise.scale == pytest.approx(0.5 / 3.5)
    noise.reset()
    assert noise.scale is None


def test_a_step_that_is_not_known_does_not_count():
    noise = GradientNoise()
    noise.process_parts(step(2, math.nan, 4.0))
    assert noise.scale is None
    noise.process_parts(step(2, 5.0, 4.0))
    assert noise.scale == pytest.approx(1 / 3)


def test_processes_have_the_same_mean_and_together_all_parts():
    ranks = [GradientNoise() for _ in range(2)]
    for rank, own in zip(ranks, (2.0, 8.0), strict=True):
        rank.process_parts(step(2, own, 4.0))
    ranks[0].merge_ranks(merged({number: rank.payload() for number, rank in enumerate(ranks)}))
    assert ranks[0].scale == pytest.approx(1 / 3)
