import math
import statistics
from dataclasses import replace

import numpy as np
import pytest

from monitorch.diagnosis import Finding, Remedy
from monitorch.diagnosis.ranking import CALM_FACTOR, Severity, open_problems, rank, severities, worst_first
from monitorch.store import Layer, Writer, open_run


def judge(*rows, nonfinite=None, limits=None):
    values = np.array(rows, np.float32)
    return severities(values, ~np.isfinite(values) if nonfinite is None else np.array(nonfinite), limits)


def plain_judge(row, nonfinite, limits, largest):
    """The rule again, number by number."""
    finite = [float(value) for value in row if math.isfinite(value)]
    measured = sum(math.isfinite(value) or count > 0 for value, count in zip(row, nonfinite, strict=True))
    counts = sum(nonfinite), sum(count > 0 for count in nonfinite), measured
    if not finite:
        return *counts, 0.0, math.nan, math.nan
    *history, newest = finite
    median = statistics.median(map(abs, history)) if history else math.nan
    floor = 0.01 * (limits[1] - limits[0]) if limits else 0.0
    if min(finite) < 0 < max(finite):
        floor = max([floor, *map(abs, history)])
    jump = 0.0
    if len(history) >= 4:
        above, below = abs(newest) + floor, median + floor
        if above == 0 or below == 0:
            jump = 0.0 if above == below else math.inf if below == 0 else -math.inf
        else:
            jump = math.log10(above / below)
        if abs(newest) < 1e-6 * largest and median < 1e-6 * largest:
            jump = 0.0
    return *counts, jump, median, newest


def plain_shared(found, rows, limits, largest):
    """Jumps of all layers, less what most of them have in common; then what is calm, and what is 0 for long."""
    finite = [[float(value) for value in row if math.isfinite(value)] for row in rows]
    known = [jump for (*_, jump, _, _), numbers in zip(found, finite, strict=True) if len(numbers) > 4]
    half = len(known) // 2
    up, down = (max(sorted(known, key=lambda jump: -sign * jump)[half] * sign, 0.0) for sign in (1, -1))
    for (*counts, jump, median, newest), numbers in zip(found, finite, strict=True):
        left = max(jump - up, 0.0) if jump > 0 else min(jump + down, 0.0)
        if abs(left) < math.log10(CALM_FACTOR):
            left = 0.0
        if limits is None and largest > 0 and len(numbers) > 4 and not any(numbers[-5:]):
            left = -math.inf
        yield *counts, left, median, newest


@pytest.mark.parametrize("limits", [None, (-1.0, 1.0), (0.0, 1.0)])
@pytest.mark.parametrize("shift", [0.0, 2.0])
def test_the_rule_holds_for_arbitrary_numbers(limits, shift):
    random = np.random.default_rng(3)
    values = (random.normal(shift, 1.0, (200, 12)) * 10.0 ** random.integers(-4, 4, (200, 12))).astype(np.float32)
    values[random.random(values.shape) < 0.2] = np.nan
    values[random.random(values.shape) < 0.1] = np.inf
    values[random.random(values.shape) < 0.2] = 0
    broken = np.isinf(values) | (np.isnan(values) & (random.random(values.shape) < 0.5))
    counts = broken * random.integers(1, 9, values.shape)
    found = severities(values, counts, limits)
    largest = max(abs(values[np.isfinite(values)]))
    alone = [plain_judge(row, bad, limits, largest) for row, bad in zip(values, counts, strict=True)]
    expected = list(plain_shared(alone, values, limits, largest))
    np.testing.assert_allclose(np.array(found, float)[:, :-1], np.array(expected, float), rtol=1e-6)
    assert any(severity.jump for severity in found)


@pytest.mark.parametrize("ticks", [0, 1, 4])
def test_a_layer_with_few_numbers_is_calm(ticks):
    (severity,) = judge([10.0**tick for tick in range(ticks)])
    assert (severity.jump, severity.reason) == (0.0, "")
    assert severity.ticks == ticks


def test_layers_that_are_not_finite_come_first_then_jumps_then_large_numbers():
    steady = [1.0] * 9
    rows = {
        "small": [0.1] * 9,
        "large": [7.0] * 9,
        "up": [*steady[1:], 90.0],
        "down": [*steady[1:], 1e-3],
        "once": [1, 1, np.nan, *steady[3:]],
        "often": [*steady[:7], np.inf, np.nan],
    }
    order = worst_first(judge(*rows.values()))
    assert [list(rows)[place] for place in order] == ["often", "once", "down", "up", "large", "small"]


def test_a_layer_that_was_0_all_the_time_is_far_from_calm_unless_all_are():
    dead, alive = [0.0] * 9, [1.0] * 9
    severity, other = judge(dead, alive)
    assert (severity.reason, other.reason) == ("0 for long", "")
    assert worst_first(judge(alive, dead)) == [1, 0]
    assert [found.reason for found in judge(dead, dead)] == ["", ""]
    assert [found.reason for found in judge(dead, alive, limits=(0.0, 1.0))] == ["", ""]


@pytest.mark.parametrize("others", [0, 3])
def test_a_layer_that_died_long_ago_is_not_calm_even_if_most_have_died(others):
    died = [1.0] * 3 + [0.0] * 7
    found = judge(*[died] * 4, *[[1.0] * 10] * others)
    assert [severity.reason for severity in found] == ["0 for long"] * 4 + [""] * others


@pytest.mark.parametrize("layers", [2, 3, 40])
@pytest.mark.parametrize("end", [0.0, 0.01])
def test_what_all_layers_do_together_is_no_jump(layers, end):
    ticks = np.arange(60)
    cosine = end + (1 - end) * (1 + np.cos(np.pi * ticks / 59)) / 2
    sizes = np.random.default_rng(0).uniform(0.5, 2.0, (layers, 1)) * np.linspace(1, 20, layers)[:, None]
    noise = np.random.default_rng(1).uniform(0.8, 1.2, (layers, 60))
    for schedule in (cosine, cosine[::-1]):  # a decay, and a warm-up
        assert [severity.reason for severity in judge(*sizes * noise * schedule)] == [""] * layers
    found = judge(*sizes * noise * cosine, [1.0] * 59 + [1e3])
    assert [severity.reason for severity in found] == [""] * layers + ["1,000x its median"]


def test_the_reason_tells_what_most_layers_do_since_only_the_rest_counts():
    rows = [[*[1.0] * 6, end] for end in (8.0, 8.0, 8.0, 80.0, 0.5)]
    *_, loud, calm = judge(*rows)
    assert loud.jump == pytest.approx(1.0)
    assert (loud.reason, calm.reason) == ("80x its median, most layers 8.0x", "")
    fallen = judge(*(1 / np.array(rows)))[3]
    assert fallen.reason == "1/80 of its median, most layers 1/8.0"


def test_a_single_layer_has_nobody_to_share_a_jump_with():
    assert judge([1.0] * 9 + [50.0])[0].reason == "50x its median"


def test_noise_beside_numbers_a_million_times_as_large_is_calm():
    noise, alive = [0.0] * 8 + [2e-9], [1.0] * 9
    assert [found.reason for found in judge(noise, alive)] == ["", ""]
    assert judge(noise)[0].reason == "rose from 0"


def test_equally_bad_layers_keep_their_order():
    assert worst_first(judge(*[[1.0] * 9] * 5)) == [0, 1, 2, 3, 4]


def test_what_was_not_measured_is_not_called_infinite():
    (severity,) = judge([1.0, np.nan, 1.0], nonfinite=[[0, 0, 0]])
    assert (severity.nonfinite, severity.ticks) == (0, 2)


@pytest.mark.parametrize(
    ("row", "limits", "jumps"),
    [
        ([0.01, -0.02, 0.01, -0.01, 0.02, -1e-5], None, False),  # noise around zero
        ([0.01, -0.02, 0.01, -0.01, 0.02, 0.9], None, True),
        ([0.001, 0.002, 0.001, 0.001, 0.001, 0.01], (0.0, 1.0), False),  # a hundredth of what there can be
        ([0.0, 0.0, 0.0, 0.0, 0.0, 0.9], (0.0, 1.0), True),
        ([1.0, 1.1, 0.9, 1.0, 1.0, 2.9], None, False),
        ([1.0, 1.1, 0.9, 1.0, 1.0, 3.1], None, True),
    ],
)
def test_what_counts_as_a_jump(row, limits, jumps):
    (severity,) = judge(row, limits=limits)
    assert bool(severity.jump) is jumps


@pytest.mark.parametrize(
    ("severity", "reason"),
    [
        (Severity(1200, 3, 60, 0.0, 1.0, 1.0), "1,200 not finite in 3 of 60 ticks"),
        (Severity(0, 0, 60, 0.0, 1.0, 1.0), ""),
        (Severity(0, 0, 60, 0.6, 1.0, 4.0), "4.0x its median"),
        (Severity(0, 0, 60, 3.1, 1.0, -1234.0), "1,234x its median"),
        (Severity(0, 0, 60, 9.0, 1.0, 1e9), "1e+09x its median"),
        (Severity(0, 0, 60, -2.0, 1.0, 0.01), "1/100 of its median"),
        (Severity(0, 0, 60, math.inf, 0.0, 2.0), "rose from 0"),
        (Severity(0, 0, 60, -math.inf, 2.0, 0.0), "fell to 0"),
    ],
)
def test_reason(severity, reason):
    assert severity.reason == reason


def finding(symptom, severity, layer, step, **fields):
    return Finding(symptom, severity, layer, step, step + 5, "It is so.", Remedy("Try."), **fields)


LAYERS = [Layer("a", "Linear"), Layer("a.weight"), Layer("a.bias"), Layer("b", "Linear"), Layer("b.0", "ReLU")]


@pytest.mark.parametrize(
    ("layer", "named"),
    [
        ("a", ["a", "a.bias", "a.weight"]),
        ("a.weight", ["a", "a.weight"]),
        ("b", ["b"]),  # what is inside of a module is not one of its parameters
        ("b.0", ["b.0"]),
        ("c", []),
        (None, []),
    ],
)
def test_a_finding_about_a_module_is_about_its_parameters_too(layer, named):
    assert sorted(open_problems([finding("dead_units", "error", layer, 3)], LAYERS)) == named


def test_a_finding_that_names_parameters_is_about_these_and_their_modules():
    layers = [*LAYERS, Layer("c", "Linear"), Layer("c.weight"), Layer("c.bias")]
    remedy = Remedy("Give them to it.", "add_to_optimizer", {"parameters": ["a.weight", "c.weight"]})
    frozen = Finding("no_update", "warning", "a", 3, 8, "They do not change.", remedy)
    dead = finding("dead_units", "error", "a", 3)
    assert open_problems([frozen], layers) == dict.fromkeys(("a", "a.weight", "c", "c.weight"), (frozen,))
    found = open_problems([frozen, dead], layers)
    assert (found["a.weight"], found["a.bias"], found["c"]) == ((dead, frozen), (dead,), (frozen,))


def test_only_open_warnings_and_errors_are_problems():
    healed = finding("dead_units", "error", "a", 3, resolved_at=9)
    assert open_problems([healed, finding("rank_collapse", "info", "a", 3)], LAYERS) == {}
    late, early = finding("x", "warning", "a", 7), finding("y", "warning", "a", 3)
    worst = finding("z", "error", "a", 9)
    assert open_problems([late, early, worst], LAYERS[:1]) == {"a": (worst, early, late)}


@pytest.fixture
def run(tmp_path):
    """Layers of which one is not finite, one has jumped, one is 0 for long and two are calm."""
    steady = np.tile([1.0, 1.1, 0.9], 4)
    rows = {
        "calm": steady,
        "loud": 9 * steady,
        "jump": np.append(steady[1:], 40.0),
        "dead": np.append(steady[:4], np.zeros(8)),
        "nan": np.append(steady[1:], np.nan),
    }
    with Writer(tmp_path / "run") as writer:
        writer.introduce_layers([Layer(name, "Linear") for name in rows])
        for step, numbers in enumerate(np.stack(list(rows.values()), axis=1)):
            writer.put("Norms", step, [numbers, numbers], layers=list(rows), statistics=["Norm/mean", "Norm/max"])
            writer.put("Rates", step, [np.full(5, 0.5)], layers=list(rows), statistics=["Rate/value"])
            writer.put("run", step, [[1.0]], layers=["run"], statistics=["Loss/train_loss mean"])
    with open_run(tmp_path / "run") as opened:
        yield opened


def test_layers_without_findings_are_ranked_by_their_numbers(run):
    ranked = rank(run)
    assert [one.layer for one in ranked] == ["nan", "dead", "jump", "loud", "calm"]
    assert [one.tone for one in ranked] == ["nonfinite", "jump", "jump", "", ""]
    reasons = ["1 not finite in 1 of 12 ticks", "0 for long", "40x its median", "", ""]
    assert [one.reason for one in ranked] == reasons
    assert {(one.lens, one.statistic.name) for one in ranked} == {("Norms", "Norm/mean")}


def test_findings_come_first_by_severity_then_by_how_long_they_last(run):
    found = [
        finding("dead_units", "warning", "loud", 8),
        finding("dead_units", "warning", "calm", 2),
        finding("exploding_signal", "error", "jump", 9),
        finding("no_update", "warning", "jump", 4),
        finding("rank_collapse", "info", "dead", 1),
    ]
    ranked = rank(run, found)
    assert [one.layer for one in ranked] == ["jump", "calm", "loud", "nan", "dead"]
    assert [one.tone for one in ranked] == ["error", "warning", "warning", "nonfinite", "jump"]
    assert ranked[0].reason == "exploding signal since step 9; no update since step 4"


def test_a_first_cause_comes_before_what_it_explains(run):
    found = [
        finding("dead_units", "error", "loud", 5),
        replace(finding("rank_collapse", "error", "calm", 5), caused_by="dead_units:loud"),
        replace(finding("no_gradient", "error", "loud", 3), caused_by="dead_units:loud"),
    ]
    ranked = rank(run, found)
    assert [one.layer for one in ranked[:2]] == ["loud", "calm"]
    assert ranked[0].reason == "dead units since step 5; no gradient since step 3"


def test_inputs_are_no_layers_and_facts_do_not_jump(tmp_path):
    steady = [1.0] * 9
    with Writer(tmp_path / "run") as writer:
        writer.introduce_layers([Layer("fc", "Linear"), Layer("fc.weight"), Layer("target")])
        for step, wild in enumerate([*steady, 1e6]):
            writer.put("Counts", step, [[0.0]], layers=["fc"], statistics=["Non-Finite Outputs/max"])
            writer.put("Targets", step, [[wild]], layers=["target"], statistics=["Loss Input Range/max"])
            writer.put("RunFacts", step, [[wild]], layers=["fc.weight"], statistics=["Parameter Checksum/last"])
            writer.put("Norms", step, [[1.0]], layers=["fc.weight"], statistics=["Parameter Norm/mean"])
            writer.put("Outputs", step, [[2.0]], layers=["fc"], statistics=["Output Norm/mean"])
    with open_run(tmp_path / "run") as run:
        ranked = rank(run)
    assert [(one.layer, one.statistic.name, one.reason) for one in ranked] == [
        ("fc", "Output Norm/mean", ""),
        ("fc.weight", "Parameter Norm/mean", ""),
    ]


def test_a_run_without_numbers_has_no_layers_to_rank(tmp_path):
    with Writer(tmp_path / "empty") as writer:
        writer.introduce_layers(["fc"])
    with open_run(tmp_path / "empty") as empty:
        assert rank(empty, [finding("dead_units", "error", "fc", 3)]) == []
