"""All kernels fill all columns alike: a column that one of them forgets is found here."""

import math

import pytest
import torch

from monitorch.engine.columns import OF_UPDATES, WIDTH, Column
from monitorch.engine.kernels import fused, host, reference
from monitorch.engine.kernels.fused_many import ManyGradients, ManySketches, ManyUpdates
from monitorch.engine.kernels.reference import SKETCH

COLUMNS = [column for column in Column if column.of != OF_UPDATES]  # the buffers fill those of updates
EPS = 0.3
CLOSE = 1e-5

NUMBERS = {
    "plain": lambda x: x,
    "with zeros": lambda x: x.masked_fill(x.abs() < 0.2, 0.0),
    "with a dead channel and a dead row": lambda x: x.index_fill(1, torch.tensor(2), 0.1).index_fill(
        0, torch.tensor(4), 0.1
    ),
    "with NaN": lambda x: x.masked_fill(torch.arange(x.numel()).reshape(x.shape) == 5, math.nan),
    "with both infinities": lambda x: x.index_fill(1, torch.tensor(0), math.inf).index_fill(
        1, torch.tensor(1), -math.inf
    ),
}


def kept_sketches(keep, measure, *parameters):
    """The state after a step from the first of these parameters to the second, and before one from the third."""
    state = torch.zeros(2, SKETCH, dtype=torch.float64, device=parameters[0].device)
    keep(parameters[0], state)
    measure(parameters[1], state, False)
    keep(parameters[2], state)
    return state


def by_reference(x, before, past):
    state = torch.zeros(2, SKETCH)
    reference.sketch(past, state, False)
    kept = kept_sketches(reference.keep_sketch, reference.sketched_update, before - past, before, before)
    return {
        "output": reference.output(x, 1, EPS),
        "gradient": reference.geometry(x, past, EPS),
        "update": reference.geometry(x - before, past, None),
        "sketch": reference.sketch(x, state, True),
        "sketched update": reference.sketched_update(x, kept, True),
    }


def by_host(x, before, past):
    state = torch.zeros(2, SKETCH)
    host.sketch(past, state, False)
    kept = kept_sketches(host.keep_sketch, host.sketched_update, before - past, before, before)
    return {
        "output": host.output(x, 1, EPS),
        "gradient": host.geometry(x, past.clone(), True, EPS),
        "update": host.update(x, before, past.clone(), True),
        "sketch": host.sketch(x, state, True),
        "sketched update": host.sketched_update(x, kept, True),
    }


def by_fused(*tensors):
    x, before, past = (tensor.cuda() for tensor in tensors)
    block = torch.zeros(6, WIDTH, dtype=torch.float64, device="cuda")
    scratch = torch.zeros(fused.scratch_size(x, 1), dtype=torch.float64, device="cuda")
    state = torch.zeros(2, SKETCH, device="cuda")
    fused.OutputReader(x, 1, EPS, scratch)(x, block, 0)
    ManyGradients()([x], [past.clone()], [True], EPS, block, 1)
    ManyUpdates()([x], [before], [past.clone()], [True], block, 2)
    fused.SketchReader(past, state)(past, block, 5, False)
    fused.SketchReader(x, state)(x, block, 3, True)
    many = ManySketches()
    kept = kept_sketches(
        lambda x, state: many.keep([x], [state]),
        lambda x, state, follows: many([x], [state], [follows], block, 5),
        *(before - past, before, before),
    )
    many([x], [kept], [True], block, 4)
    return dict(zip(("output", "gradient", "update", "sketch", "sketched update"), block.cpu(), strict=False))


has_fused = fused.AVAILABLE and torch.cuda.is_available()
KERNELS = [by_host, pytest.param(by_fused, marks=pytest.mark.skipif(not has_fused, reason="needs Triton and CUDA"))]


def draw(name):
    """A tensor, one that it has moved from, and one to compare it with, which has much in common with both ways."""
    torch.manual_seed(0)
    x = NUMBERS[name](torch.randn(20, 30))
    before = 0.5 * torch.randn(20, 30)
    past = (x - before).nan_to_num(0, 0, 0) + 0.5 * torch.randn(20, 30)
    return x, before, past


def finite_or_nan(row):
    return [float(number) if math.isfinite(number) else math.nan for number in row]


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.parametrize("name", NUMBERS)
@pytest.mark.parametrize("column", Column, ids=lambda column: column.name)
def test_kernels_agree_with_the_reference_on_every_column(column, name, kernels):
    wanted, written = by_reference(*draw(name)), kernels(*draw(name))
    assert written.keys() == wanted.keys()
    for kind, row in written.items():
        assert len(row) == WIDTH
        expected = finite_or_nan(wanted[kind])[column]
        assert finite_or_nan(row)[column] == pytest.approx(expected, rel=CLOSE, abs=0, nan_ok=True), kind


@pytest.mark.parametrize("kernels", [by_reference, *KERNELS])
@pytest.mark.parametrize("column", COLUMNS, ids=lambda column: column.name)
def test_no_column_is_always_empty(column, kernels):
    """Else the test above would compare nothing."""
    rows = [row for name in NUMBERS for row in kernels(*draw(name)).values()]
    found = [float(row[column]) for row in rows]
    cure = f"add numbers to NUMBERS of which {column.name} is not 0, or fill it"
    assert any(number and math.isfinite(number) for number in found), cure
