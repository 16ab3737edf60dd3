"""The call itself: what it takes, what it leaves alone, what it says."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DataParallel

import monitorch
from monitorch import preflight
from monitorch.errors import OptionError, UnsupportedModelError
from monitorch.inspector import PyTorchInspector
from monitorch.lens import ActivationHealth, LossMetrics, OutputNorm, ParameterGradientGeometry
from monitorch.watching.preflight import Preflight
from tests.unchanged import everything

from .faults import FAULTS
from .models import HEALTHY, Case, layers, mlp

X, Y = torch.randn(8, 20), torch.arange(8) % 4


# nothing changes


def in_the_middle_of_training(case):
    """Give it gradients, and its optimizer a state."""
    inputs, targets = case.batch
    output = case.model(*inputs) if isinstance(inputs, tuple) else case.model(inputs)
    loss = case.loss_fn(output, targets)
    if loss.requires_grad:
        loss.backward()
        case.optimizer.step()


UNCHANGED = [name for name in HEALTHY if name != "with_loss"]


@pytest.mark.parametrize("name", UNCHANGED)
def test_nothing_of_training_changes(name):
    case = HEALTHY[name]()
    in_the_middle_of_training(case)
    before = everything(case.model, case.optimizer, *case.batch)
    preflight(*case.all, fit_steps=3)
    assert everything(case.model, case.optimizer, *case.batch) == before


@pytest.mark.parametrize("name", ["detached", "dead", "division_by_zero", "diverging", "mean_of_the_batch"])
def test_nothing_changes_where_something_is_wrong(name):
    case = FAULTS[name].make()
    before = everything(case.model, case.optimizer, *case.batch)
    assert preflight(*case.all) != []
    assert everything(case.model, case.optimizer, *case.batch) == before


class Failing(nn.Module):
    """Fails in one of its passes."""

    left = math.inf

    def __init__(self):
        super().__init__()
        self.inner, self.norm = nn.Linear(20, 4), nn.BatchNorm1d(4)

    def forward(self, x):
        Failing.left -= 1
        if Failing.left < 0:
            raise RuntimeError("out of passes")
        return self.norm(self.inner(x + torch.rand_like(x)))


@pytest.mark.parametrize("passes", [0, 1, 2, 5, 20])
def test_nothing_changes_if_the_model_fails(passes, monkeypatch):
    case = Case(Failing(), X, Y)
    before = everything(case.model, case.optimizer, X, Y)
    monkeypatch.setattr(Failing, "left", passes)
    if passes:
        found = preflight(*case.all)
        assert [note for note in found.notes if "RuntimeError: out of passes" in note]
    else:
        with pytest.raises(OptionError, match=r"the model raises RuntimeError with this batch: out of passes\. batch"):
            preflight(*case.all)
    assert everything(case.model, case.optimizer, X, Y) == before


def test_findings_do_not_depend_on_modes():
    case = FAULTS["detached"].make()
    found = preflight(*case.all)
    case.model.eval()
    with torch.inference_mode():
        assert preflight(*case.all) == found
    with torch.no_grad():
        assert preflight(*case.all) == found


def records_of_training(*, is_looked_at):
    """What is recorded in two steps, with or without a look at the model after each."""
    torch.manual_seed(0)
    case = mlp()
    lenses = [LossMetrics(loss_fn=case.loss_fn), OutputNorm(), ParameterGradientGeometry(), ActivationHealth()]
    inspector = PyTorchInspector(lenses, module=case.model, optimizer=case.optimizer, visualizer="dummy")
    for _ in range(2):
        case.optimizer.zero_grad()
        case.loss_fn(case.model(case.batch[0]), case.batch[1]).backward()
        case.optimizer.step()
        if is_looked_at:
            preflight(*case.all, fit_steps=2)
    inspector.tick_epoch()
    assert inspector.events() == []
    return [record._replace(time=0.0) for record in inspector.records() if "per second" not in record.statistic]


def test_what_watches_the_model_notices_nothing():
    records = records_of_training(is_looked_at=False)
    assert len(records) > 20
    assert records_of_training(is_looked_at=True) == records


# models of all kinds


def test_compiled_and_wrapped_models():
    case = FAULTS["not_in_the_optimizer"].make()
    found = preflight(*case.all)
    assert preflight(torch.compile(case.model, backend="eager"), *case.all[1:]) == found


def test_lazy_models():
    model = nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.LazyLinear(4))
    optimizer = torch.optim.Adam(model[0].parameters())
    assert [(one.symptom, one.layer) for one in preflight(model, (X, Y), F.cross_entropy, optimizer)] == [
        ("no_update", "2")
    ]
    assert nn.parameter.is_lazy(model[0].weight)


def test_several_optimizers():
    case = mlp()
    parts = [torch.optim.SGD(part.parameters(), lr=0.1) for part in (case.model[0], case.model[2], case.model[4])]
    assert preflight(case.model, case.batch, case.loss_fn, parts) == []
    (finding,) = preflight(case.model, case.batch, case.loss_fn, parts[:2])
    assert (finding.symptom, finding.layer) == ("no_update", "4")


class Wrapping(torch.optim.SGD):
    """Cannot be made again from its options."""

    def __init__(self, inner):
        super().__init__(inner.param_groups, lr=0.1)


def test_an_optimizer_that_cannot_be_made_again_is_a_note():
    case = mlp()
    found = preflight(*case.all[:3], Wrapping(torch.optim.SGD(case.model.parameters(), lr=0.1)))
    assert found == []
    assert ["cannot make another Wrapping" in note for note in found.notes] == [True]


class Settings(dict):
    """As tokenizers return it."""


def test_what_a_batch_may_be():
    model = HEALTHY["with_loss"]().model
    ids = torch.randint(0, 50, (4, 9))
    wanted = preflight(model, {"input_ids": ids, "labels": ids})
    assert preflight(model, ({"input_ids": ids, "labels": ids}, None)) == wanted
    assert preflight(model, Settings(input_ids=ids, labels=ids)) == wanted
    assert preflight(model, ((ids, ids), None)) == wanted
    assert preflight(layers(20, 4), [X, Y], F.cross_entropy) == preflight(layers(20, 4), (X, Y), F.cross_entropy)


class Returning(nn.Module):
    """Returns what it is told to."""

    def __init__(self, make):
        super().__init__()
        self.inner, self.make = nn.Linear(20, 4), make

    def forward(self, x):
        return self.make(self.inner(x))


@pytest.mark.parametrize(
    "make",
    [
        lambda h: {"logits": h, "others": [h.mean(), None]},
        lambda h: SimpleNamespace(loss=F.cross_entropy(h, Y)),
        lambda h: (h, "text", 3),
    ],
)
def test_outputs_of_any_kind(make):
    def loss_fn(output, target):
        if isinstance(output, SimpleNamespace):
            return output.loss
        return F.cross_entropy(output["logits"] if isinstance(output, dict) else output[0], target)

    assert preflight(Returning(make), (X, Y), loss_fn) == []


# bad input


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ((nn.Linear(20, 4), X, F.cross_entropy), r"batch is a pair \(inputs, targets\), or a dictionary.*not a Tensor"),
        ((nn.Linear(20, 4), (X, Y, Y), F.cross_entropy), "not a tuple of 3. If there are several inputs, put them"),
        ((nn.Linear(20, 4), "text", F.cross_entropy), "not a str"),
        ((nn.Linear(20, 4), None, F.cross_entropy), "not a NoneType"),
        ((nn.Linear(20, 4), (X.tolist(), Y), F.cross_entropy), "no tensor in the inputs of the batch, only list"),
        (
            (nn.Linear(20, 4), (np.ones((8, 20)), Y), F.cross_entropy),
            "no tensor in the inputs of the batch, only ndarray",
        ),
        ((nn.Linear(20, 4), ({}, Y), F.cross_entropy), "no tensor in the inputs of the batch, only dict"),
        ((nn.Linear(20, 4), (X[:, :3], Y), F.cross_entropy), "the model raises RuntimeError with this batch: mat1"),
        ((nn.Linear(20, 4), ((X, X), Y), F.cross_entropy), "the model raises TypeError.*a tuple several arguments"),
        ((nn.Linear(20, 4), ({"y": X}, Y), F.cross_entropy), "the model raises TypeError.*holds keyword arguments"),
        ((nn.Linear(20, 4), (X, Y[:3]), F.cross_entropy), "loss_fn raises ValueError with this batch:.* It is called"),
        (
            (nn.Linear(20, 4), (X, Y), lambda output: 0),
            "loss_fn raises TypeError.*the output of the model and the targets",
        ),
        ((nn.Linear(20, 4), (X, None), F.cross_entropy), "loss_fn raises TypeError.*alone if these are None"),
        ((nn.Linear(20, 4), (X, Y), nn.CrossEntropyLoss(reduction="none")), r"one number, not \(8,\): pass a loss_fn="),
        ((nn.Linear(20, 4), (X, Y), lambda output, target: 1.0), "one number, not float"),
        ((nn.Linear(20, 4), (X, Y)), "there is no loss to measure: pass loss_fn="),
        ((nn.Linear(20, 4), (X, Y), "mse"), "loss_fn takes a module or function such as"),
        ((nn.Linear(20, 4), (X, Y), F.cross_entropy, "adam"), "optimizer takes a torch.optim.Optimizer"),
        ((nn.Linear(20, 4), (X, Y), F.cross_entropy, "by hand"), "can only use torch.optim optimizers, not"),
        (("model", (X, Y), F.cross_entropy), "a model is a torch.nn.Module, not str"),
    ],
)
def test_bad_arguments_are_refused_with_the_cure(arguments, text):
    with pytest.raises(OptionError, match=text):
        preflight(*arguments)


@pytest.mark.parametrize("steps", [-1, 2.5, True, None, "30"])
def test_bad_numbers_of_steps_are_refused(steps):
    with pytest.raises(OptionError, match="fit_steps="):
        preflight(*mlp().all, fit_steps=steps)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_models_that_cannot_be_copied_are_refused():
    with pytest.raises(UnsupportedModelError, match="DataParallel cannot be observed"):
        preflight(DataParallel(nn.Linear(20, 4)), (X, Y), F.cross_entropy)
    with pytest.raises(UnsupportedModelError, match=r"torch\.jit"):
        preflight(nn.Sequential(torch.jit.script(nn.Linear(20, 4))), (X, Y), F.cross_entropy)


class NotDifferentiable(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError("no formula")


def test_a_backward_pass_that_fails_is_an_error():
    model = Returning(NotDifferentiable.apply)
    with pytest.raises(OptionError, match="the backward pass raises NotImplementedError with this batch: no formula"):
        preflight(model, (X, Y), F.cross_entropy)


# what it says


def test_it_is_a_list_that_prints_as_a_report():
    found = preflight(*FAULTS["detached"].make().all)
    assert isinstance(found, list)
    assert isinstance(found, Preflight)
    lines = str(found).splitlines()
    assert lines[0] == "1 problem since step 0"
    assert lines[1].startswith("  error: no gradient in b since step 0: The loss depends on b.weight, b.bias")
    assert lines[2].startswith("    try: Look for detach()")
    assert lines[3].startswith("    error: no gradient in a")
    assert repr(found) == str(found)


def test_healthy_is_said_in_a_word_and_notes_say_what_was_not_looked_at():
    assert str(preflight(*mlp().all)) == "healthy"
    found = preflight(nn.Embedding(9, 4), (torch.arange(8), Y), F.cross_entropy)
    assert str(found) == "healthy\n  note: whether samples mix is not known: no input is floating"


def test_it_is_a_name_of_the_package():
    assert monitorch.preflight is preflight
    assert "preflight" in dir(monitorch)
