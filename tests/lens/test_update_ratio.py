"""How large a step is compared with the parameter that it changes: both of the same step."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.errors import OptionError
from monitorch.lens import ParameterUpdateGeometry, UpdateRatio

WIDE = 80  # weights of 80 x 80 are larger than a sketch


class Wide(nn.Module):
    """A weight of any dtype, moved by an optimizer of learning rate 1; ``ratios`` are those of its steps in float64."""

    def __init__(self, start, **options):
        super().__init__()
        self.weight, self.ratios = nn.Parameter(start), []
        self.optimizer = torch.optim.SGD([self.weight], lr=1.0, **options)

    def step(self, change):
        before = as_array(self.weight)
        self.weight.grad = -change.to(self.weight.dtype)
        self.optimizer.step()
        self.ratios.append(np.linalg.norm(as_array(self.weight) - before) / np.linalg.norm(before))


def as_array(tensor):
    wide = torch.complex128 if tensor.is_complex() else torch.float64
    return tensor.detach().to(wide).numpy().copy()


def samples(lens, layer=""):
    return list(lens._preprocessors[0].value.get(layer, []))


def tag(name, logy=True):
    return (f"{name} Update Ratio", logy, False, True, "NUMERICAL", None)


@pytest.mark.parametrize(
    ("options", "tags"),
    [
        ({}, [tag("Weight"), tag("Bias")]),
        ({"log_scale": False, "parameters": "all"}, [tag("Parameter", logy=False)]),
        ({"parameters": ["weight_hh_l0"]}, [tag("Weight_Hh_L0")]),
    ],
)
def test_tags(options, tags, tags_of):
    assert tags_of(UpdateRatio(None, **options)) == tags


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"updates": "copy"}, r"updates.*'copy'.*'exact'.*'sketch'.*'auto'"),
        ({"updates": None}, r"updates.*None.*'exact'"),
        ({"line_aggregation": "average"}, r"line_aggregation.*'average'.*'mean'"),
        ({"line_aggregation": "median"}, r"median.*inplace=False"),
        ({"range_aggregation": "Q1-Q2"}, r"range_aggregation.*'Q1-Q2'"),
        ({"parameters": ()}, r"parameters=\(\) must be names"),
        ({"optimizer": nn.Linear(1, 1)}, "is not a torch.optim.Optimizer object: pass None and call inspect_update"),
        ({"optimizer": torch.optim.SGD}, "is not a torch.optim.Optimizer object"),
    ],
)
def test_wrong_options_are_refused_with_the_right_ones(options, text):
    with pytest.raises(OptionError, match=text):
        UpdateRatio(**{"optimizer": None, **options})


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.complex64], ids=str
)
@pytest.mark.parametrize(("updates", "rel"), [("exact", 1e-5), ("sketch", 0.05), ("auto", 1e-5)])
def test_both_norms_are_of_the_same_step(dtype, updates, rel, watch):
    torch.manual_seed(0)
    wide = Wide(torch.randn(WIDE, WIDE).to(dtype))
    lens = UpdateRatio(wide.optimizer, inplace=False, updates=updates)
    watch(wide, lens)
    for size in (1.0, 0.1, 30.0, 0.01):  # the weight grows a lot in between
        wide.step(size * torch.randn(WIDE, WIDE))
    assert samples(lens) == pytest.approx(wide.ratios, rel=rel)


@pytest.mark.parametrize("scale", [1e-30, 1e-12, 1e12, 1e30])
def test_weights_of_any_size_that_float32_holds(scale, watch):
    torch.manual_seed(0)
    wide = Wide(scale * torch.randn(20, 30))
    lens = UpdateRatio(wide.optimizer, inplace=False)
    watch(wide, lens)
    wide.step(1e-3 * scale * torch.randn(20, 30))
    assert samples(lens) == pytest.approx(wide.ratios, rel=1e-4)


def test_weights_whose_squares_no_float64_holds_have_no_ratio(watch):
    wide = Wide(torch.full((2, 2), 1e200, dtype=torch.float64))
    lens = UpdateRatio(wide.optimizer, inplace=False)
    watch(wide, lens)
    wide.weight.grad = torch.full((2, 2), 1e199, dtype=torch.float64)
    wide.optimizer.step()
    assert samples(lens) == []


@pytest.mark.parametrize("updates", ["exact", "sketch"])
def test_a_weight_of_zero_has_no_ratio_until_it_has_moved(updates, watch):
    """As that of a branch of low rank, which starts at 0 so that it changes nothing."""
    wide = Wide(torch.zeros(WIDE, WIDE))
    lens = UpdateRatio(wide.optimizer, inplace=False, updates=updates)
    watch(wide, lens)
    for _ in range(3):
        wide.weight.grad = torch.ones(WIDE, WIDE)
        wide.optimizer.step()
    assert samples(lens) == pytest.approx([1.0, 0.5], rel=0.05 if updates == "sketch" else 1e-6)


def test_a_step_that_changes_nothing_has_a_ratio_of_zero(watch):
    wide = Wide(torch.ones(2, 2))
    lens = UpdateRatio(wide.optimizer, inplace=False)
    watch(wide, lens)
    wide.step(torch.zeros(2, 2))
    assert samples(lens) == [0.0]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_gives_samples_that_are_not(number, watch, shown):
    wide = Wide(torch.ones(2, 2))
    inspector = watch(wide, UpdateRatio(wide.optimizer))
    wide.step(torch.ones(2, 2))
    wide.weight.grad = torch.tensor([[number, 0.0], [0.0, 0.0]])
    wide.optimizer.step()
    inspector.tick_epoch()
    (record,) = [record for record in inspector.records() if record.statistic == "mean"]
    assert (record.value, record.nonfinite) == (1.0, 1)


def test_what_others_do_to_a_weight_between_steps_counts_as_weight_not_as_update(watch):
    wide = Wide(torch.ones(2, 2))
    lens = UpdateRatio(wide.optimizer, inplace=False)
    watch(wide, lens)
    wide.step(torch.ones(2, 2))
    wide.weight.data.fill_(100.0)  # raises no version
    wide.step(torch.ones(2, 2))
    assert samples(lens) == pytest.approx([1.0, 0.01])


def test_the_weight_before_the_step_counts_not_that_before_a_closure_has_run_again(watch):
    """A closure runs the model several times inside one step."""
    model = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.1, max_iter=4)
    lens, ratios = UpdateRatio(optimizer, inplace=False), []
    watch(model, lens)

    def closure():
        optimizer.zero_grad()
        loss = model(torch.eye(3)).square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        before = as_array(model.weight)
        optimizer.step(closure)
        ratios.append(np.linalg.norm(as_array(model.weight) - before) / np.linalg.norm(before))
    assert samples(lens) == pytest.approx(ratios, rel=1e-5)


def test_accumulated_gradients_are_one_step(watch):
    model = nn.Linear(3, 2, bias=False)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    lens, ratios = UpdateRatio(optimizer, inplace=False), []
    watch(model, lens)
    for _ in range(2):
        for part in torch.randn(4, 5, 3):
            model(part).square().sum().backward()
        before = as_array(model.weight)
        optimizer.step()
        optimizer.zero_grad()
        ratios.append(np.linalg.norm(as_array(model.weight) - before) / np.linalg.norm(before))
    assert samples(lens) == pytest.approx(ratios, rel=1e-5)


@pytest.mark.parametrize("fused", [False, True])
def test_a_step_that_a_scaler_skips_has_no_ratio(fused, watch):
    wide = Wide(torch.ones(4, 4), fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    lens = UpdateRatio(wide.optimizer, inplace=False)
    watch(wide, lens, optimizer=wide.optimizer, grad_scaler=scaler)
    for factor in (1.0, torch.inf, 1.0):
        wide.optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            scaler.scale(factor * wide.weight.sum()).backward()
        scaler.step(wide.optimizer)
        scaler.update()
    assert wide.weight.unique().tolist() == [-1.0]
    assert samples(lens) == pytest.approx([1.0])  # the first step leads to 0, and the last one starts there


def test_every_lens_measures_the_parameters_of_its_own_optimizer(watch, shown):
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2), nn.Linear(2, 2).requires_grad_(False))
    first, second = (torch.optim.SGD(layers.parameters(), lr=0.1) for layers in (model[0], model[1:]))
    inspector = watch(model, *(UpdateRatio(optimizer, parameters="weight") for optimizer in (first, second)))
    for _ in range(2):
        model(torch.randn(3, 2)).square().sum().backward()
        second.step()
        first.step()
    inspector.tick_epoch()
    values = [values for _, tag, values, _ in shown.calls if tag == "Weight Update Ratio"]
    assert [list(found) for found in values] == [["0"], ["1", "2"]]
    assert values[0]["0"]["mean"] > 0
    assert values[1]["1"]["mean"] > 0
    assert values[1]["2"]["mean"] == 0  # frozen


@pytest.mark.parametrize("every", [1, 3])
def test_only_observed_steps_have_ratios(every, watch):
    torch.manual_seed(0)
    wide = Wide(torch.randn(WIDE, WIDE))
    lenses = [UpdateRatio(wide.optimizer, inplace=False), ParameterUpdateGeometry(wide.optimizer)]  # has baselines
    inspector = watch(wide, *lenses, optimizer=wide.optimizer, every=every)
    observed = []
    for _ in range(9):
        observed.append(inspector.state.observing and not inspector.state.is_baseline)
        wide.step(torch.randn(WIDE, WIDE))
    assert samples(lenses[0]) == pytest.approx([r for r, seen in zip(wide.ratios, observed, strict=True) if seen])
    assert sum(observed) == 9 // every


@pytest.mark.parametrize(("correlation", "meters"), [("exact", 1), ("sketch", 2)])
def test_the_pass_is_shared_with_the_norms_of_updates_that_are_kept_alike(correlation, meters, watch):
    wide = Wide(torch.randn(WIDE, WIDE))
    lenses = [ParameterUpdateGeometry(wide.optimizer, correlation=correlation), UpdateRatio(wide.optimizer)]
    inspector = watch(wide, *lenses)
    assert len(inspector.state.engine.updates(wide.optimizer).meters) == meters


def test_the_norm_of_the_weight_is_exact_where_the_update_is_estimated(watch, shown):
    wide = Wide(torch.full((WIDE, WIDE), 2.0))
    inspector = watch(wide, UpdateRatio(wide.optimizer, updates="sketch", range_aggregation=None))
    wide.step(torch.ones(WIDE, WIDE))
    inspector.tick_epoch()
    (record,) = [record for record in inspector.records() if record.lens == "UpdateRatio"]
    assert record.error == 0.011
    assert record.value == pytest.approx(0.5, rel=5 * 0.011)


def test_by_hand_the_weight_is_that_of_the_last_call(watch):
    wide = Wide(torch.ones(2, 2))
    lens = UpdateRatio(None, inplace=False, parameters="weight")
    watch(wide, lens)
    for change in (4.0, 1.0, 3.0):
        lens.inspect_update()
        wide.step(torch.full((2, 2), change))
    lens.inspect_update()
    assert samples(lens) == pytest.approx(wide.ratios)


def test_a_run_goes_on_from_a_state_of_a_release_with_fewer_columns():
    def inspected():
        wide = Wide(torch.full((2, 2), 4.0))
        lenses = [ParameterUpdateGeometry(wide.optimizer), UpdateRatio(wide.optimizer)]
        return wide, PyTorchInspector(lenses, module=wide, optimizer=wide.optimizer, visualizer="dummy")

    wide, inspector = inspected()
    wide.step(torch.full((2, 2), 4.0))
    inspector.tick_epoch()
    state = copy.deepcopy(inspector.state_dict())
    (meter,) = state["engine"]["meters"].values()
    del meter["last"][12:]
    again, resumed = inspected()
    again.weight.data.fill_(8.0)
    resumed.load_state_dict(state)
    again.step(torch.full((2, 2), 4.0))
    resumed.tick_epoch()
    shown = {record.tag: record.value for record in resumed.records() if record.statistic == "mean"}
    assert shown["Weight Update Ratio"] == pytest.approx(0.5)
    assert shown["Weight Update Correlation"] == pytest.approx(1.0)
