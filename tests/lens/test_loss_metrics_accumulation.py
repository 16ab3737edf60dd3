"""The loss of a step is one number, however many micro-batches it has."""

import numpy as np
import pytest
import torch
from torch import nn

from monitorch.inspector import PyTorchInspector
from monitorch.lens import LossMetrics

LINES = ("mean", "std", "min", "max")


class OwnLoss(nn.Module):
    """Returns its loss; told how many items a step has, it divides by that, as models of transformers do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, x, num_items_in_batch=None):
        errors = self.layer(x).square()
        return {"loss": errors.mean() if num_items_in_batch is None else errors.sum() / num_items_in_batch}


class Accumulation:
    """Trains with micro-batches of 4, and knows the losses of each step."""

    def __init__(self, source, shown, known=True, **lens_options):
        self.model, self.source = OwnLoss(), source
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.loss_fn = nn.MSELoss() if source == "loss_fn" else None
        lens = LossMetrics(loss_fn=self.loss_fn, loss_line=LINES, loss_range=None, **lens_options)
        options = {"optimizer": self.optimizer} if known else {}
        self.inspector = PyTorchInspector([lens], module=self.model, visualizer=shown, on_error="raise", **options)
        self.called = self.model
        self.losses = []

    def micro_batch(self, parts):
        x = torch.randn(4, 3)
        items = 4 * parts if self.source == "trainer" else None
        loss = self.called(x, num_items_in_batch=items)["loss"]
        if self.source == "loss_fn":
            loss = self.loss_fn(self.model.layer(x), torch.zeros(4, 1))
        loss.backward()
        if self.source == "push":
            self.inspector.push_loss(loss, train=True)
        return loss.item() * (parts if self.source == "trainer" else 1)

    def steps(self, *sizes):
        for parts in sizes:
            self.losses.append([self.micro_batch(parts) for _ in range(parts)])
            self.optimizer.step()
            self.optimizer.zero_grad()


def lines(samples):
    numbers = np.mean(samples), np.std(samples), np.min(samples), np.max(samples)
    return {f"train_loss {line}": pytest.approx(number) for line, number in zip(LINES, numbers, strict=True)}


SOURCES = ["loss_fn", "push", "field", "trainer"]


@pytest.mark.parametrize("source", SOURCES)
def test_the_loss_of_a_step_is_the_mean_over_its_micro_batches(source, shown):
    training = Accumulation(source, shown)
    training.steps(3, 1, 2)
    training.inspector.tick_epoch()
    assert shown.values("Loss") == {"Loss": lines([np.mean(step) for step in training.losses])}
    training.losses.clear()
    training.steps(2)
    training.inspector.tick_epoch()
    assert shown.values("Loss") == {"Loss": lines([np.mean(step) for step in training.losses])}


@pytest.mark.parametrize("source", ["loss_fn", "push", "field"])
def test_without_a_known_optimizer_each_pass_is_a_sample(source, shown):
    training = Accumulation(source, shown, known=False)
    training.steps(3, 1, 2)
    training.inspector.tick_epoch()
    assert shown.values("Loss") == {"Loss": lines(np.concatenate(training.losses))}


def test_losses_pushed_after_the_step_belong_to_it(shown):
    training = Accumulation("field", shown)
    for number in range(3):
        training.steps(2)
        for loss in (number, number + 10.0):
            training.inspector.push_loss(loss, train=True)
    training.inspector.tick_epoch()
    assert shown.values("Loss") == {"Loss": lines([5, 6, 7])}


def test_losses_pushed_on_both_sides_of_a_step_are_one_sample(shown):
    training = Accumulation("field", shown)
    for number in range(3):
        training.micro_batch(1)
        training.inspector.push_loss(number, train=True)
        training.optimizer.step()
        training.inspector.push_loss(number + 10.0, train=True)
    training.inspector.tick_epoch()
    assert shown.values("Loss") == {"Loss": lines([5, 6, 7])}


def test_every_batch_of_an_evaluation_is_a_sample(shown):
    training = Accumulation("field", shown)
    training.steps(2)
    training.model.eval()
    with torch.no_grad():
        losses = [training.model(torch.randn(4, 3))["loss"].item() for _ in range(3)]
    training.inspector.tick_epoch()
    found = {name.removeprefix("val_loss "): value for name, value in shown.values("Loss")["Loss"].items()}
    assert found["mean"] == pytest.approx(np.mean(losses))
    assert found["std"] == pytest.approx(np.std(losses))


def test_a_tick_in_the_midst_of_a_step_shows_what_there_is(shown):
    training = Accumulation("field", shown)
    first = training.micro_batch(2)
    training.inspector.tick_epoch()
    assert shown.values("Loss") == {"Loss": lines([first])}
    second = training.micro_batch(2)
    training.optimizer.step()
    training.inspector.tick_epoch()
    assert shown.values("Loss") == {"Loss": lines([second])}


def test_a_micro_batch_that_is_not_finite_makes_the_loss_of_its_step_so(shown):
    training = Accumulation("push", shown)
    for losses in ((1.0, float("nan")), (2.0, 4.0)):
        for loss in losses:
            training.model(torch.ones(1, 3))
            training.inspector.push_loss(loss, train=True)
        training.optimizer.step()
    training.inspector.tick_epoch()
    assert shown.values("Loss") == {"Loss": lines([3.0])}
    assert [record.nonfinite for record in training.inspector.records() if record.statistic == "train_loss mean"] == [1]


def test_all_samples_of_steps_are_kept_where_medians_are_wanted(shown):
    lens = LossMetrics(loss_line="median", loss_range=None)
    model = OwnLoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    inspector = PyTorchInspector([lens], module=model, visualizer=shown, optimizer=optimizer)
    for losses in ((0.0, 2.0), (10.0, 20.0), (3.0, 5.0)):
        for loss in losses:
            model(torch.ones(1, 3))
            inspector.push_loss(loss, train=True, running=False)
        optimizer.step()
    inspector.tick_epoch()
    assert shown.values("Loss") == {"Loss": {"train_loss median": 4.0}}


@pytest.mark.parametrize("source", SOURCES)
def test_no_loss_is_waited_for(source, shown, monkeypatch):
    training = Accumulation(source, shown)
    waited = []
    real_item = torch.Tensor.item

    def refuse(tensor, *_):
        waited.append(tensor)
        raise AssertionError("a tensor was read")

    def batch(parts):
        with monkeypatch.context() as patch:
            for name in ("item", "__float__", "tolist", "cpu", "numpy", "__bool__"):
                patch.setattr(torch.Tensor, name, refuse)
            x = torch.randn(4, 3)
            loss = training.model(x, num_items_in_batch=4 * parts if source == "trainer" else None)["loss"]
            if source == "loss_fn":
                loss = training.loss_fn(training.model.layer(x), torch.zeros(4, 1))
            loss.backward()
            if source == "push":
                training.inspector.push_loss(loss, train=True)
        return real_item(loss) * (parts if source == "trainer" else 1)

    for _ in range(3):
        training.losses.append([batch(2), batch(2)])
        training.optimizer.step()
        training.optimizer.zero_grad()
    assert waited == []
    training.inspector.tick_epoch()
    assert shown.values("Loss") == {"Loss": lines([np.mean(step) for step in training.losses])}


@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.parametrize("source", ["field", "trainer"])
def test_the_same_inside_a_compiled_graph(source, shown):
    torch.compiler.reset()
    training = Accumulation(source, shown)
    training.called = torch.compile(training.model, backend="aot_eager", fullgraph=True)
    training.steps(2, 2, 2)
    training.inspector.tick_epoch()
    assert shown.values("Loss") == {"Loss": lines([np.mean(step) for step in training.losses])}
    torch.compiler.reset()


def test_the_loss_of_a_language_model_that_is_told_of_all_items_is_that_of_the_whole_batch(shown):
    from transformers import GPT2Config, GPT2LMHeadModel

    sizes = {"n_layer": 1, "n_head": 2, "n_embd": 8, "vocab_size": 11, "n_positions": 8}
    model = GPT2LMHeadModel(
        GPT2Config(**sizes, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, bos_token_id=0, eos_token_id=0)
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    lens = LossMetrics(loss_line=("min", "max"), loss_range=None)  # it computes its loss in float32
    inspector = PyTorchInspector([lens], module=model, visualizer=shown, optimizer=optimizer, on_error="raise")
    whole = []
    for _ in range(3):
        ids = torch.randint(11, (6, 8))
        with inspector.paused(), torch.no_grad():
            whole.append(model(input_ids=ids, labels=ids).loss.item())
        for part in ids.split(2):
            model(input_ids=part, labels=part, num_items_in_batch=torch.tensor(6 * 7)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    inspector.tick_epoch()
    expected = {"train_loss min": pytest.approx(min(whole)), "train_loss max": pytest.approx(max(whole))}
    assert shown.values("Loss") == {"Loss": expected}
