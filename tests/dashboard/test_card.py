import re

import numpy as np
import pytest

from monitorch.dashboard.card import COLUMNS, card
from monitorch.diagnosis import Finding, Remedy
from monitorch.store import Writer, open_run

STATISTICS = [
    "Loss/train_loss mean",
    "Loss/val_loss mean",
    "Loss/train_loss nonfinite",
    "Gradient Norm/gradient_norm mean",
]
DEAD = Finding("dead_units", "error", "fc<1>", 80, 100, "No unit of fc<1> is active.", Remedy("Lower the <rate>."))
SLOW = Finding("no_progress", "warning", None, 5, 9, "It stands still.", Remedy("Wait."))


@pytest.fixture
def draw(tmp_path):
    """Write a run of these rows, and draw it."""

    def run(rows, **facts):
        with Writer(tmp_path / "run<1>", meta=facts) as writer:
            for step, row in enumerate(rows):
                writer.put("run", step, np.array(row, float)[:, None], layers=["run"], statistics=STATISTICS)
        with open_run(tmp_path / "run<1>") as opened:
            found = card(opened)
        assert set(found) == {"text/html", "text/plain"}
        assert "<script" not in found["text/html"]
        return found["text/html"], found["text/plain"]

    return run


def lines(html):
    """The points of all lines, plot by plot."""
    plots = re.findall(r"<svg.*?</svg>", html)
    return [
        [np.array([point.split(",") for point in line.split()], float) for line in re.findall(r'points="(.*?)"', plot)]
        for plot in plots
    ]


def test_curves_go_where_the_numbers_are(draw):
    steps = np.arange(50)
    loss = 3 - steps / 25
    html, text = draw([(value, value + 1, 0, 1 + step) for step, value in zip(steps, loss, strict=True)])
    (train, validation), (norm,) = lines(html)
    for curve, values in ((train, loss), (validation, loss + 1)):
        assert np.allclose(curve[:, 0], 600 * steps / 49, atol=0.06)
        low, high = loss.min(), loss.max() + 1
        assert np.allclose(curve[:, 1], 116 - 112 * (values - low) / (high - low), atol=0.06)
    assert np.allclose(norm[:, 1], 116 - 112 * np.log(1 + steps) / np.log(50), atol=0.06)  # over a wide range
    assert html.count("(log)") == 1
    assert "train_loss <b>1.040</b>" in html
    assert text == "run<1>  finished · step 49  train_loss 1.040  val_loss 2.040  gradient_norm 50.00  not diagnosed"


def test_a_long_run_takes_no_more_room_than_a_short_one(draw):
    html, _ = draw([(step, step, 0, step) for step in range(3000)])
    assert all(len(curve) <= COLUMNS for plot in lines(html) for curve in plot)
    assert len(html) < 15_000


def test_what_is_not_finite_leaves_a_gap_and_a_mark(draw):
    rows = [(1.0, 1.0, 0, 1.0), (2.0, 1.0, 0, 1.0), (np.nan, 1.0, 4, 1.0), (3.0, 1.0, 0, 1.0), (2.0, 1.0, 0, 1.0)]
    html, text = draw(rows)
    (first, second, _), _ = lines(html)
    assert [len(first), len(second)] == [2, 2]
    assert re.findall(r'<path d="M([\d.]+) ', html) == ["300.0"]
    assert "train_loss 2.000" in text


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([], "no numbers yet"),
        ([(1.0, 1.0, 0, 1.0)], "step 0 to 0"),
        ([(np.nan, np.nan, 1, np.inf)] * 3, "NaN"),
        ([(0.0, 0.0, 0, 0.0)] * 3, "step 0 to 2"),
        ([(-1.0, 1e30, 0, 1e-30)] * 3, "step 0 to 2"),
    ],
    ids=["nothing", "one tick", "nothing finite", "zero", "extremes"],
)
def test_anything_is_drawn(draw, rows, words):
    html, _ = draw(rows)
    assert words in html
    assert "nan" not in "".join(re.findall(r'points="(.*?)"', html))


@pytest.mark.parametrize(
    ("findings", "colour", "words"),
    [
        (None, "#6b7280", "not diagnosed"),
        ([], "#2e7d32", "healthy"),
        ([SLOW], "#b26a00", "1 problem since step 5"),
        ([DEAD, SLOW], "#c62828", "2 problems since step 5"),
    ],
)
def test_the_verdict_and_first_causes_are_told(draw, findings, colour, words):
    facts = {} if findings is None else {"findings": [one.to_json() for one in findings]}
    html, text = draw([(1.0, 1.0, 0, 1.0)], **facts, overhead=0.031)
    assert f"background:{colour}" in html
    assert words in html
    assert text.endswith(words)
    assert "3.1 % overhead" in html
    for one in findings or ():
        assert one.explanation.replace("<", "&lt;").replace(">", "&gt;") in html
    assert "run&lt;1&gt;" in html
    assert "fc<1>" not in html
    assert "<rate>" not in html


def test_what_ended_a_run_is_told(tmp_path):
    def train():
        with Writer(tmp_path / "run") as writer:
            writer.put("run", 1, [[1.0]], layers=["run"], statistics=STATISTICS[:1])
            raise RuntimeError("out of <memory>")

    with pytest.raises(RuntimeError):
        train()
    with open_run(tmp_path / "run") as opened:
        assert "RuntimeError: out of &lt;memory&gt;" in card(opened)["text/html"]
