"""Lenses on one output, or on its gradient, share one hook and one pass."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import MonitorchWarning, PyTorchInspector
from monitorch import lens as lenses
from monitorch.gatherer import BackwardGatherer, FeedForwardGatherer
from monitorch.inspector.cadence import Phase
from monitorch.preprocessor import OutputActivation, OutputGradientGeometry, OutputNorm
from tests.cut import Cut


def norm(**options):
    defaults = {"normalize": False, "inplace": False, "record_eval": False, "evaluation_from_grad": None}
    return OutputNorm(**{**defaults, **options})


def activation(**options):
    defaults = {"death": True, "inplace": False, "record_eval": False, "evaluation_from_grad": None}
    return OutputActivation(**{**defaults, **options})


def geometry(**options):
    return OutputGradientGeometry(**{"correlation": True, "normalize": False, "inplace": False, "eps": 0.0, **options})


@pytest.fixture
def forward(linear, measured):
    return lambda preprocessor, module=linear: FeedForwardGatherer(module, [preprocessor], "lin", measured)


@pytest.fixture
def backward(linear, measured):
    return lambda preprocessor, **options: BackwardGatherer(linear, [preprocessor], "lin", measured, **options)


def batches(count=3):
    return torch.randn(count, 5, 3)


def test_norms_and_rates_come_from_one_pass(linear, measured, rows_of, count_hooks, forward):
    norms, rates = norm(), activation(eps=0.5)
    forward(norms)
    forward(rates)
    assert count_hooks(linear) == 1
    inputs = batches()
    outputs = [linear(x).detach().double().numpy() for x in inputs]
    assert rows_of(measured) == ["lin"] * 3
    expected = [np.linalg.norm(output, axis=1).mean() for output in outputs]
    assert norms.value["lin"] == pytest.approx(expected, rel=1e-6)
    active, dead = rates.value["lin"]
    assert active == pytest.approx([(abs(output) > 0.5).mean() for output in outputs])
    assert dead == pytest.approx([(abs(output) <= 0.5).all(axis=0).mean() for output in outputs])
    assert rows_of(measured) == []


@pytest.mark.parametrize(
    ("first", "second", "rows"),
    [
        (norm(), norm(normalize=True), 1),
        (activation(eps=0.1), activation(eps=0.1), 1),
        (activation(eps=0.1), activation(eps=0.2), 2),
        (activation(channel_last=True), activation(channel_last=False), 2),
        (norm(output_index=0), norm(output_index=1), 2),
        (norm(output_index=0), activation(output_index=0), 1),
        (norm(), norm(record_eval=True), 1),
    ],
)
def test_only_equal_requests_share_a_pass(first, second, rows, linear, measured, rows_of, forward):
    forward(first)
    forward(second)
    linear(torch.ones(2, 3))
    assert len(rows_of(measured)) == rows


@pytest.mark.parametrize(
    ("first", "second", "rows"),
    [
        (geometry(), geometry(normalize=True), 1),
        (geometry(), geometry(correlation=False), 1),
        (geometry(), geometry(comparison="sketch"), 2),
        (geometry(comparison="sketch"), geometry(comparison="sketch"), 1),
    ],
)
def test_only_equal_comparisons_of_gradients_share_a_pass(first, second, rows, linear, measured, rows_of, backward):
    backward(first)
    backward(second)
    linear(torch.ones(2, 3)).sum().backward()
    assert len(rows_of(measured)) == rows


@pytest.mark.parametrize(("indices", "rows"), [((None, None), 1), ((0, 0), 1), ((0, 1), 2), ((None, 1), 2)])
def test_gradients_of_different_parts_are_apart(indices, rows, linear, measured, rows_of, backward):
    for index in indices:
        backward(geometry(), output_index=index)
    linear.forward = lambda x: (x @ linear.weight.T, 2 * x @ linear.weight.T)
    sum(part.sum() for part in linear(torch.ones(2, 3))).backward()
    assert len(rows_of(measured)) == rows


def test_outputs_and_gradients_share_the_hook(linear, count_hooks, forward, backward):
    norms, gradients = norm(), geometry()
    forward(norms)
    backward(gradients)
    assert count_hooks(linear) == 1
    factors = [1.0, -2.0, 0.0, 3.0]
    for factor in factors:
        (factor * linear(torch.ones(5, 3))).sum().backward()
    lengths, correlations = gradients.value["lin"]
    assert lengths == pytest.approx([abs(factor) * np.sqrt(10) for factor in factors])
    assert correlations == pytest.approx([0.0, -1.0, 0.0, 0.0])
    assert len(norms.value["lin"]) == 4


def test_each_gets_the_passes_it_asked_for(linear, forward):
    training, everything = norm(), norm(record_eval=True)
    forward(training)
    forward(everything)
    linear(torch.ones(1, 3))
    linear.eval()(torch.ones(1, 3))
    with torch.no_grad():
        linear.train()(torch.ones(1, 3))
    assert (len(training.value["lin"]), len(everything.value["lin"])) == (1, 3)


@pytest.mark.parametrize("train", [True, False])
def test_without_gradients_an_output_that_requires_one_is_left_as_it_is(train, linear, backward):
    """As the inputs of checkpointed layers do, if those before them are frozen: also when the model is evaluated."""
    linear.register_forward_hook(lambda module, args, output: output.requires_grad_())
    linear.requires_grad_(False).train(train)
    gradients, outputs = geometry(), []
    backward(gradients)
    linear.register_forward_hook(lambda module, args, output: outputs.append(output))
    with torch.no_grad():
        assert linear(torch.ones(2, 3)) is outputs[0]
    assert outputs[0].requires_grad
    linear(torch.ones(2, 3)).sum().backward()
    assert len(gradients.value["lin"][0]) == 1


def test_one_that_leaves_does_not_take_the_other_along(linear, measured, count_hooks, forward, backward):
    leaving, staying, gradients = norm(), activation(), geometry()
    gatherers = [forward(leaving), forward(staying), backward(gradients)]
    linear(torch.ones(2, 3))
    gatherers[0].detach()
    linear(torch.ones(2, 3))
    assert len(staying.value["lin"][0]) == 2
    assert not leaving.value
    for gatherer in gatherers[1:]:
        gatherer.detach()
    assert count_hooks(linear) == 1
    measured.engine.refresh()
    assert count_hooks(linear) == 0


def test_gradients_of_a_pass_before_the_end_are_ignored(linear, measured, rows_of, backward):
    gradients = geometry()
    gatherer = backward(gradients)
    loss = linear(torch.ones(2, 3)).sum()
    gatherer.detach()
    measured.engine.close()
    loss.backward()
    assert rows_of(measured) == []


def test_an_error_is_told_once_and_the_others_go_on(linear, forward):
    broken, also_broken, fine = norm(output_index=7), activation(output_index=7), norm()
    for preprocessor in (broken, also_broken, fine):
        forward(preprocessor)
    linear.forward = lambda x: (x, x)
    with pytest.warns(MonitorchWarning) as told:
        linear(torch.ones(2, 3))
    (message,) = [str(warning.message) for warning in told]
    assert message.startswith("OutputNorm stops watching layer 'lin': IndexError")
    linear(torch.ones(2, 3))
    assert not broken.value
    assert not also_broken.value
    assert len(fine.value["lin"]) == 2


def test_what_was_measured_before_an_error_is_kept(linear, forward):
    norms = norm(output_index=1)
    forward(norms)
    outputs = iter([(torch.ones(1, 4), torch.ones(1, 4)), (torch.ones(1, 4),)])
    linear.forward = lambda x: next(outputs)
    linear(torch.ones(1, 3))
    with pytest.warns(MonitorchWarning, match="IndexError"):
        linear(torch.ones(1, 3))
    assert norms.value["lin"] == [2.0]


def test_an_error_in_taking_rows_is_told_once(linear, forward):
    class Broken(OutputNorm):
        request = OutputNorm.request

        def take(self, name, rows, is_baseline):
            raise ValueError("too many cooks")

    broken, fine = Broken(False, False, False, None), norm()
    forward(broken)
    forward(fine)
    linear(torch.ones(2, 3))
    why = r"Broken stops watching layer 'lin': ValueError: too many cooks\. Training goes on"
    with pytest.warns(MonitorchWarning, match=why):
        assert len(fine.value["lin"]) == 1
    linear(torch.ones(2, 3))
    assert len(fine.value["lin"]) == 2


@pytest.mark.parametrize("odd", [torch.ones(2, 3, dtype=torch.long), torch.ones(0, 3)], ids=["whole numbers", "empty"])
def test_what_cannot_be_measured_is_left_out_with_one_warning_for_all(odd, forward):
    module, norms, rates = nn.Identity(), norm(), activation()
    forward(norms, module)
    forward(rates, module)
    with pytest.warns(MonitorchWarning, match="OutputNorm leaves out a sample of layer 'lin'") as told:
        module(odd)
    assert len(told) == 1
    module(odd)
    module(torch.ones(1, 3))
    assert norms.value["lin"] == pytest.approx([np.sqrt(3)])
    assert rates.value["lin"][0] == [1.0]


def test_a_pass_without_numbers_is_not_recorded_and_interrupts_nothing(linear, forward, backward):
    norms, gradients = norm(), geometry()
    forward(norms)
    backward(gradients)
    inputs, meta = (
        torch.randn(3, 4, 3),
        {name: tensor.detach().to("meta") for name, tensor in linear.named_parameters()},
    )
    for step, x in enumerate(inputs):
        linear(x).square().sum().backward()
        if step == 1:
            x = x.to("meta").requires_grad_()
            torch.func.functional_call(linear, meta, (x,)).square().sum().backward()
    outputs = [linear(x).detach().double() for x in inputs]
    assert norms.value["lin"][:3] == pytest.approx([out.norm(dim=1).mean().item() for out in outputs])
    lengths, correlations = gradients.value["lin"]
    assert lengths == pytest.approx([2 * out.norm().item() for out in outputs])
    cosines = [nn.functional.cosine_similarity(*pair, dim=0).item() for pair in pairwise(map(torch.flatten, outputs))]
    assert correlations == pytest.approx([0.0, *cosines], abs=1e-6)


def test_a_function_of_the_user_may_have_no_gradient_for_an_output(linear, backward):
    gradients = geometry()
    backward(gradients)
    Cut.apply(linear(torch.ones(1, 3))).sum().backward()
    assert gradients.value == {}
    linear(torch.ones(1, 3)).sum().backward()
    assert len(gradients.value["lin"][0]) == 1


def test_nothing_is_compared_across_a_time_without_recording(linear, measured, backward):
    gradients = geometry()
    backward(gradients)
    for paused in (False, False, True, False, False):
        measured.paused = paused
        linear(torch.ones(1, 3)).sum().backward()
    lengths, correlations = gradients.value["lin"]
    assert len(lengths) == 4
    assert correlations == pytest.approx([0.0, 1.0, 1.0])


def test_a_pause_between_forward_and_backward_is_a_gap_too(linear, measured, backward):
    gradients = geometry()
    backward(gradients)
    for paused in (False, True, False, False):
        loss = linear(torch.ones(1, 3)).sum()
        measured.paused = paused
        loss.backward()
        measured.paused = False
    lengths, correlations = gradients.value["lin"]
    assert (len(lengths), correlations) == (3, pytest.approx([0.0, 1.0]))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # the compiler's own
def test_a_pause_between_the_passes_of_a_compiled_model_is_a_gap_too():
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(3, 2))
    compiled, lens = torch.compile(model, backend="aot_eager"), lenses.OutputGradientGeometry(inplace=False)
    inspector = PyTorchInspector([lens], module=compiled, visualizer="dummy", on_error="raise")
    for paused in (False, True, False, False):
        loss = compiled(torch.ones(1, 3)).sum()
        inspector.state.paused = paused
        loss.backward()
        inspector.state.paused = False
    norms, cosines = lens._preprocessors[0].value["0"]
    assert (len(norms), cosines) == (3, pytest.approx([0.0, 1.0]))
    inspector.detach()


def test_a_baseline_step_measures_gradients_only_and_shows_nothing(linear, measured, rows_of, forward, backward):
    norms, gradients = norm(), geometry()
    forward(norms)
    backward(gradients)
    for phase in (Phase.IDLE, Phase.BASELINE, Phase.OBSERVE):
        measured._enter(phase)
        linear(torch.full((1, 3), float(phase))).sum().backward()
    assert rows_of(measured) == ["lin"] * 3  # a gradient to compare with, an output and a gradient
    assert len(norms.value["lin"]) == 1
    lengths, correlations = gradients.value["lin"]
    assert (lengths, correlations) == (pytest.approx([np.sqrt(2)]), pytest.approx([1.0]))


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf", "ignore::DeprecationWarning")
@pytest.mark.parametrize("compiled", [False, True])
def test_a_change_of_precision_cuts_no_comparison(compiled):
    torch.compiler.reset()
    model = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 2))
    called = torch.compile(model, backend="aot_eager") if compiled else model
    lens = lenses.OutputGradientGeometry(inplace=False)
    inspector = PyTorchInspector([lens], module=called, visualizer="dummy", on_error="raise")
    for step in range(6):
        with torch.autocast("cpu", torch.bfloat16, enabled=step % 2 == 1):
            loss = called(torch.randn(8, 4)).float().square().mean()
        loss.backward()
    norms, cosines = lens._preprocessors[0].value["0"]
    assert len(norms) == len(cosines) == 6
    inspector.detach()
