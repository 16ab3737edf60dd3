"""Options are checked when a lens is made, and may be one thing, several, or a generator."""

import inspect

import pytest
import torch
from torch import nn

from monitorch import lens
from monitorch.errors import OptionError

NO_OPTIMIZER = {lens.ParameterUpdateGeometry: (None,), lens.UpdateRatio: (None,)}
GEOMETRIES = [lens.OutputGradientGeometry, lens.ParameterGradientGeometry, lens.ParameterUpdateGeometry]
RATES = [lens.OutputActivation, lens.ParameterGradientActivation]
WITH_PARAMETERS = [
    cls for cls in map(lens.__dict__.get, lens.__all__) if "parameters" in inspect.signature(cls).parameters
]
POINTS = "'mean', 'std', 'min', 'max', 'median', 'Q1', 'Q2', 'Q3', 'IQR'"
RANGES = "'std', 'Q1-Q3', 'min-max'"


def make(cls, **options):
    return cls(*NO_OPTIMIZER.get(cls, ()), **options)


def lines_of(made):
    """What options ended up as: names of lines and bands, from what is shown."""
    return made._views[0].lines, made._views[0].ranges


@pytest.mark.parametrize("cls", [*GEOMETRIES, lens.OutputNorm])
@pytest.mark.parametrize("form", [list, tuple, iter, lambda names: (name for name in names)])
def test_aggregations_may_be_any_iterable(cls, form):
    made = make(cls, line_aggregation=form(["mean", "max"]), range_aggregation=form(["min-max"]))
    assert lines_of(made) == (("mean", "max"), ("min-max",))


@pytest.mark.parametrize("cls", [*GEOMETRIES, lens.OutputNorm])
def test_aggregations_may_be_one_string_or_no_band(cls):
    assert lines_of(make(cls, line_aggregation="max", range_aggregation="std")) == (("max",), ("std",))
    assert lines_of(make(cls, range_aggregation=None)) == (("mean",), ())
    assert lines_of(make(cls, range_aggregation=())) == (("mean",), ())


@pytest.mark.parametrize("cls", WITH_PARAMETERS)
@pytest.mark.parametrize("form", [lambda name: name, lambda name: [name], lambda name: (n for n in [name])])
def test_one_parameter_is_a_name_not_letters(cls, form, tags_of):
    tags = [tag for tag, *_ in tags_of(make(cls, parameters=form("weight_ih_l0")))]
    assert tags
    assert all(tag.startswith(("Weight_Ih_L0 ", "Warning ")) for tag in tags)


@pytest.mark.parametrize("cls", [lens.OutputNorm, lens.OutputActivation])
@pytest.mark.parametrize("form", [lambda c: c, lambda c: [c], lambda c: (c,), lambda c: iter([c])])
def test_classes_may_be_given_bare_or_in_any_iterable(cls, form, watch, shown):
    model = nn.Sequential(nn.Linear(2, 2), nn.ReLU(), nn.Linear(2, 2), nn.Tanh())
    inspector = watch(model, cls(include=form(nn.Linear), exclude=form(nn.Tanh)))
    for _ in inspector.range(2):
        model(torch.randn(3, 2))
    assert list(shown.values(cls._SMALL_TAG_NAME)) == ["0", "1", "2"]


@pytest.mark.parametrize("cls", [*GEOMETRIES, lens.OutputNorm])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"line_aggregation": "avg"}, f"line_aggregation='avg' is unknown; choose from {POINTS}"),
        ({"line_aggregation": ["mean", "q9"]}, f"line_aggregation='q9' is unknown; choose from {POINTS}"),
        ({"line_aggregation": ()}, f"line_aggregation needs at least one of {POINTS}"),
        ({"line_aggregation": ""}, "line_aggregation takes names, not ''"),
        ({"line_aggregation": [1]}, r"line_aggregation takes names, not \[1\]"),
        ({"range_aggregation": "quartiles"}, f"range_aggregation='quartiles' is unknown; choose from {RANGES}"),
        ({"range_aggregation": "mean"}, f"range_aggregation='mean' is unknown; choose from {RANGES}"),
        ({"line_aggregation": "median"}, "'median' needs every sample: pass inplace=False, or choose from 'mean'"),
        ({"range_aggregation": "Q1-Q3"}, "'Q1-Q3' needs every sample: pass inplace=False, or choose from 'std'"),
    ],
)
def test_wrong_aggregation_is_refused_with_the_choices(cls, options, text):
    with pytest.raises(OptionError, match=text):
        make(cls, **options)


@pytest.mark.parametrize("cls", [*GEOMETRIES, lens.OutputNorm])
def test_quantiles_are_fine_when_every_sample_is_kept(cls):
    made = make(cls, inplace=False, line_aggregation=["median", "IQR"], range_aggregation="Q1-Q3")
    assert lines_of(made) == (("median", "IQR"), ("Q1-Q3",))


@pytest.mark.parametrize("cls", RATES)
@pytest.mark.parametrize("option", ["activation_aggregation", "death_aggregation"])
@pytest.mark.parametrize(
    ("value", "text"),
    [("", "takes names, not ''"), ("rms", "is unknown; choose from 'mean'"), ("Q1", "pass inplace=False")],
)
def test_wrong_rate_aggregation_is_refused(cls, option, value, text):
    with pytest.raises(OptionError, match=f"{option}.*{text}"):
        cls(**{option: value})


@pytest.mark.parametrize("cls", [lens.ParameterNorm, lens.ParameterCond])
@pytest.mark.parametrize(("value", "text"), [("rms", "is unknown; choose from"), ("median", "pass inplace=False")])
def test_wrong_aggregation_method_is_refused(cls, value, text):
    with pytest.raises(OptionError, match=f"aggregation_method='{value}'.*{text}"):
        cls(aggregation_method=value)


@pytest.mark.parametrize(
    ("cls", "option"),
    [
        (lens.OutputNorm, "comparison_aggregation"),
        (lens.OutputActivation, "death_aggregation"),
        (lens.ParameterNorm, "aggregation_method"),
        (lens.ParameterCond, "aggregation_method"),
    ],
)
def test_two_methods_where_one_is_meant_are_refused(cls, option):
    with pytest.raises(OptionError, match=f"{option} takes only one of {POINTS}, not "):
        cls(**{option: ["mean", "max"]})


@pytest.mark.parametrize("cls", [lens.OutputNorm, lens.OutputActivation])
@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"include": "Linear"}, "include takes classes of modules such as nn.Linear, not 'Linear'"),
        ({"include": [nn.Linear(1, 1)]}, r"include takes classes of modules .* not Linear\("),
        ({"exclude": int}, "exclude takes classes of modules .* not <class 'int'>"),
        ({"channel_last": "last"}, "channel_last='last' is unknown; choose from True, False, 'auto'"),
    ],
)
def test_wrong_layer_options_are_refused(cls, options, text):
    with pytest.raises(OptionError, match=text):
        cls(**options)


@pytest.mark.parametrize("cls", WITH_PARAMETERS)
@pytest.mark.parametrize("value", ["", ["weight", ""], [0], 3])
def test_parameters_must_be_names(cls, value):
    with pytest.raises(OptionError, match=r"parameters takes names such as 'weight' .* or 'all' .*, not"):
        make(cls, parameters=value)


@pytest.mark.parametrize("cls", WITH_PARAMETERS)
@pytest.mark.parametrize("value", [[], ["all", "weight"]])
def test_parameters_are_some_names_or_all(cls, value):
    with pytest.raises(OptionError, match=r"must be names such as 'weight' .* or 'all' for every parameter"):
        make(cls, parameters=value)


@pytest.mark.parametrize(("option", "text"), [("loss_line", POINTS), ("metrics_line", POINTS), ("loss_range", RANGES)])
def test_wrong_loss_aggregation_is_refused(option, text):
    with pytest.raises(OptionError, match=f"{option}='avg' is unknown; choose from {text}"):
        lens.LossMetrics(metrics="accuracy", **{option: "avg"})


@pytest.mark.parametrize("cls", GEOMETRIES)
@pytest.mark.parametrize("wanted", [True, False])
def test_old_name_of_compute_correlation_is_taken_quietly(cls, wanted, tags_of):
    tags = [tag for tag, *_ in tags_of(make(cls, compute_adj_prod=wanted))]
    assert any("Correlation" in tag for tag in tags) == wanted


@pytest.mark.parametrize("cls", [lens.OutputNorm, lens.OutputActivation])
@pytest.mark.parametrize("wanted", [True, False])
def test_old_name_of_evaluation_from_grad_is_taken_quietly(cls, wanted, watch, shown):
    model = nn.Sequential(nn.ReLU())
    inspector = watch(model, cls(skip_no_grad_pass=wanted))
    with torch.no_grad():
        model(torch.randn(3, 2))
    inspector.tick_epoch()
    assert bool(shown.values(cls._SMALL_TAG_NAME)) == (not wanted)


def test_unknown_keyword_is_still_an_error():
    with pytest.raises(TypeError, match="compute_product"):
        lens.OutputGradientGeometry(compute_product=True)
