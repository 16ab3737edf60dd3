"""Names and constructors of the package's lenses: arguments in order, defaults, and what is keyword-only."""

import inspect

import pytest

from monitorch import lens

LINES = "line_aggregation='mean', range_aggregation=('std', 'min-max')"
RATES = "activation_aggregation='mean', death_aggregation='mean'"
OUTPUTS = "inplace=True, record_eval=False, evaluation_from_grad=None"
LAYERS = "include=(), exclude=(), channel_last='auto'"
GEOMETRY = "inplace=True, normalize_by_size=False, log_scale=False, compute_correlation=True"
PARAMETERS = "parameters=('weight', 'bias')"

SIGNATURES = {
    "ActivationHealth": f"{OUTPUTS}, channel_last='auto', line_aggregation='mean', range_aggregation='min-max', "
    "in_graphs=True, exact_death=False",
    "Attention": f"{OUTPUTS}, log_scale=False, {LINES}, in_graphs=True",
    "Attribute": "attributes, reducer=None, map_=None, difference=False, *, inplace=True, record_eval=False, "
    f"log_scale=False, {LINES}",
    "BatchNormStatistics": "inplace=True, *, line_aggregation='mean', range_aggregation='min-max'",
    "Distribution": "what='output'",
    "GradientNorm": "inplace=True, *, line_aggregation='mean', range_aggregation=('min-max',)",
    "LossMetrics": "*, metrics=None, evaluation_from_grad=None, separate_loss_and_metrics=True, loss_fn=None, "
    "loss_fn_inplace=True, loss_line='mean', loss_range='std', metrics_line='mean', metrics_range=None",
    "OutputActivation": f"{OUTPUTS}, activation=True, dropout=True, {LAYERS}, warning_plot=True, {RATES}, "
    "*, output_index=None, exact_death=False",
    "OutputNorm": f"{OUTPUTS}, normalize_by_size=False, log_scale=False, activation=True, {LAYERS}, "
    f"comparison_plot=True, comparison_aggregation=None, {LINES}, *, output_index=None",
    "OutputGradientGeometry": f"{GEOMETRY}, skip_activation=True, {LINES}, *, output_index=None, correlation='exact'",
    "ParameterGradientGeometry": f"{GEOMETRY}, {PARAMETERS}, {LINES}, *, correlation='exact'",
    "ParameterGradientActivation": f"inplace=True, warning_plot=True, {PARAMETERS}, {RATES}, *, eps=0.0",
    "ParameterUpdateGeometry": f"optimizer, {GEOMETRY}, {PARAMETERS}, {LINES}, *, correlation='exact'",
    "UpdateRatio": f"optimizer, inplace=True, {PARAMETERS}, *, log_scale=True, line_aggregation='mean', "
    "range_aggregation='min-max', updates='exact'",
    "ParameterNorm": f"inplace=True, {PARAMETERS}, normalize_by_size=False, log_scale=False, comparison_plot=True, "
    "aggregation_method='mean'",
    "InputStatistics": "",
    "Routing": "routers=None, *, top_k=None, experts=16",
    "ParameterFacts": "optimizer",
    "SignalToNoise": "optimizer, batch_size=None, inplace=True, *, line_aggregation='mean', "
    "range_aggregation='min-max'",
    "SpectralNorm": "parameters='weight', *, iterations=10, largest_svd=0, log_scale=False",
    "TargetStatistics": "loss_fn, *, classes=10",
    "NonFinite": "optimizer=None",
    "ParameterCond": "inplace=True, parameters='weight', *, log_scale=False, aggregation_method='mean'",
}
METHODS = {
    "LossMetrics": {"loss": "(self, *, train, method=None)"},
    "ParameterNorm": {"collect_data": "(self)"},
    "ParameterCond": {"collect_data": "(self)"},
    "ParameterUpdateGeometry": {"inspect_update": "(self)"},
    "UpdateRatio": {"inspect_update": "(self)"},
}


def signature(function):
    parameters = [p.replace(annotation=p.empty) for p in inspect.signature(function).parameters.values()]
    return str(inspect.Signature(parameters))


@pytest.mark.parametrize("name", [name for name in lens.__all__ if name != "AbstractLens"])
def test_signature(name):
    assert signature(getattr(lens, name)) == f"({SIGNATURES[name]})"


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_a_lens(name):
    found = {method: signature(getattr(getattr(lens, name), method)) for method in METHODS[name]}
    assert found == METHODS[name]


def test_every_name_that_users_import_is_exported():
    assert {"AbstractLens", *SIGNATURES} <= set(lens.__all__)


def test_positional_arguments_arrive_where_the_signature_says():
    made = lens.ParameterUpdateGeometry(None, False, True, True, False, "weight", "median", None)
    assert [(view.tag, view.attributes.logy, view.lines) for view in made._views] == [
        ("Weight Update Norm", True, ("median",))
    ]
