"""Changes of parameters: one for each step, measured over that step alone."""

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.errors import OptionError
from monitorch.lens import ParameterGradientGeometry, ParameterUpdateGeometry


def norm(name, logy=False):
    return (f"{name} Update Norm", logy, False, True, "NUMERICAL", None)


def correlation(name):
    return (f"{name} Update Correlation", False, False, True, "NUMERICAL", (1, -1))


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({}, [norm("Weight"), correlation("Weight"), norm("Bias"), correlation("Bias")]),
        ({"compute_correlation": False, "log_scale": True}, [norm("Weight", logy=True), norm("Bias", logy=True)]),
        ({"parameters": "weight_hh_l0"}, [norm("Weight_Hh_L0"), correlation("Weight_Hh_L0")]),
    ],
)
def test_tags(options, tags, tags_of):
    assert tags_of(ParameterUpdateGeometry(None, **options)) == tags


def test_step_of_plain_descent_is_learning_rate_times_gradient(task, train, watch, shown, new_net, make_batches, close):
    watched = task(new_net())
    inspector = watch(watched.model, ParameterUpdateGeometry(watched.optimizer), ParameterGradientGeometry())
    for _ in inspector.range(2):
        train(watched.model, watched.optimizer, make_batches())
    for name in ("Weight", "Bias"):
        gradients = shown.values(f"{name} Gradient Norm")
        for layer, lines in shown.values(f"{name} Update Norm").items():
            assert lines["mean"] == pytest.approx(0.1 * gradients[layer]["mean"], rel=1e-4)


def test_a_layer_in_the_place_of_another_is_not_an_update(watch, shown):
    model = nn.Sequential(nn.Linear(2, 2))
    lens = ParameterUpdateGeometry(None, compute_correlation=False)
    inspector = watch(model, lens)
    for tick in range(3):
        for _ in range(3):
            lens.inspect_update()
        if tick == 1:
            model[0] = nn.Linear(2, 2)  # found at the end of the tick
        inspector.tick_epoch()
        assert shown.values("Weight Update Norm")["0"]["mean"] == 0


@pytest.fixture
def walked():
    """A weight that goes where it is told: an optimizer with learning rate 1 and the gradient that leads there."""

    class Walked(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(2))
            self.optimizer = torch.optim.SGD([self.weight], lr=1.0)

        def step(self, *change):
            self.weight.grad = -torch.tensor(change)
            self.optimizer.step()

    return Walked()


def samples(lens):
    return [list(accumulator) for value in lens._preprocessors[0].value.values() for accumulator in value]


def test_every_step_is_one_update_also_the_first(walked, watch):
    lens = ParameterUpdateGeometry(walked.optimizer, inplace=False, parameters="weight")
    watch(walked, lens)
    for change in ((3.0, 4.0), (3.0, 4.0), (-3.0, -4.0), (4.0, -3.0)):
        walked.step(*change)
    assert samples(lens) == [pytest.approx([5.0] * 4), pytest.approx([0.0, 1.0, -1.0, 0.0])]


def test_step_that_changes_nothing_is_an_update_of_zero(walked, watch):
    lens = ParameterUpdateGeometry(walked.optimizer, inplace=False, parameters="weight")
    watch(walked, lens)
    walked.step(3.0, 4.0)
    walked.step(0.0, 0.0)
    assert samples(lens) == [[5.0, 0.0], [0.0, 0.0]]


def test_change_made_between_steps_is_no_update(walked, watch):
    lens = ParameterUpdateGeometry(walked.optimizer, inplace=False, parameters="weight")
    watch(walked, lens)
    walked.step(3.0, 4.0)
    nn.init.constant_(walked.weight, 100.0)
    walked.step(3.0, 4.0)
    assert samples(lens)[0] == pytest.approx([5.0, 5.0])


def test_each_lens_measures_the_parameters_of_its_own_optimizer(watch, shown):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    mine, other = (torch.optim.SGD(layer.parameters(), lr=0.1) for layer in model)
    lenses = [ParameterUpdateGeometry(optimizer, parameters="weight") for optimizer in (mine, other)]
    inspector = watch(model, *lenses)
    for _ in range(2):
        model(torch.randn(3, 2)).square().sum().backward()
        other.step()
        mine.step()
    inspector.tick_epoch()
    shown_by = [values for _, tag, values, _ in shown.calls if tag == "Weight Update Norm"]
    assert [list(values) for values in shown_by] == [["0"], ["1"]]
    assert all(lines["mean"] > 0 for values in shown_by for lines in values.values())


def test_parameters_added_to_the_optimizer_later_are_measured(watch, shown):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    inspector = watch(model, ParameterUpdateGeometry(optimizer, parameters="weight"))
    for added in ([], list(model[0].parameters())):
        if added:
            optimizer.add_param_group({"params": added})
        model(torch.randn(3, 2)).square().sum().backward()
        optimizer.step()
        inspector.tick_epoch()
    assert [list(v) for _, tag, v, _ in shown.calls if tag == "Weight Update Norm"] == [["1"], ["0", "1"]]


def test_updates_are_seen_again_after_attaching_anew(walked, watch, hooks_on):
    lens = ParameterUpdateGeometry(walked.optimizer, inplace=False, parameters="weight")
    inspector = watch(walked, lens)
    walked.step(3.0, 4.0)
    inspector.detach()
    assert not hooks_on(walked.optimizer)
    walked.step(30.0, 40.0)
    inspector.attach(walked)
    assert lens.optimizer is walked.optimizer
    walked.step(6.0, 8.0)
    assert samples(lens) == [[10.0], [0.0]]


def test_inactive_ticks_leave_a_gap_that_no_update_spans(walked, watch):
    lens = ParameterUpdateGeometry(walked.optimizer, inplace=False, parameters="weight")
    inspector = watch(walked, lens, is_active_fn=lambda tick: tick != 2)
    walked.step(3.0, 4.0)
    inspector.tick_epoch()
    walked.step(30.0, 40.0)
    inspector.tick_epoch()
    walked.step(3.0, 4.0)
    assert samples(lens) == [pytest.approx([5.0]), []]


def test_by_hand_the_first_call_only_looks(walked, watch, shown):
    lens = ParameterUpdateGeometry(None, parameters="weight")
    inspector = watch(walked, lens)
    for change in ((1.0, 1.0), (3.0, 4.0), (6.0, 8.0)):
        walked.step(*change)
        lens.inspect_update()
    inspector.tick_epoch()
    assert shown.values("Weight Update Norm")[""]["mean"] == pytest.approx(7.5)
    walked.step(0.0, 5.0)
    lens.inspect_update()
    inspector.tick_epoch()
    assert shown.values("Weight Update Norm")[""]["mean"] == pytest.approx(5.0)
    assert shown.values("Weight Update Correlation")[""]["mean"] == pytest.approx(0.8)


def test_something_else_than_an_optimizer_is_refused():
    for thing in (nn.Linear(1, 1), torch.optim.SGD):
        with pytest.raises(OptionError, match=r"not a torch.optim.Optimizer object: pass None and call inspect_upd"):
            ParameterUpdateGeometry(thing)


def test_steps_of_adam_are_measured_too(task, train, record, watch, shown, new_net, make_batches, close):
    watched = task(new_net())
    watched.optimizer = torch.optim.Adam(watched.model.parameters(), lr=0.01)
    bare, tape = record(watched.model)
    inspector = watch(watched.model, ParameterUpdateGeometry(watched.optimizer, normalize_by_size=True))
    train(watched.model, watched.optimizer, make_batches())
    inspector.tick_epoch()
    train(bare, torch.optim.Adam(bare.parameters(), lr=0.01), make_batches(), tape=tape)
    for layer, updates in tape.updates["weight"].items():
        sizes = [np.linalg.norm(update) / update.size**0.5 for update in updates]
        assert shown.values("Weight Update Norm")[layer]["mean"] == pytest.approx(np.mean(sizes), rel=1e-4)
