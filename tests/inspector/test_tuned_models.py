"""Models that PEFT has made, where that is installed; test_module_tree.py has a model built like them."""

import pytest
import torch
from torch import nn

import monitorch
from monitorch.errors import MonitorchWarning
from monitorch.store import open_run

peft = pytest.importorskip("peft")
accelerate = pytest.importorskip("accelerate")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.act, self.last = nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1)

    def forward(self, x):
        return {"loss": self.last(self.act(self.first(x))).square().mean()}


def tuned(model):
    return peft.get_peft_model(model, peft.LoraConfig(r=2, target_modules=["first"]))


def train(model, optimizer, steps=2):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(4, 2))["loss"].backward()
        optimizer.step()


def test_layers_of_a_tuned_model_have_the_names_they_have_inside_and_are_all_seen():
    model = tuned(Net())
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    with monitorch.watch(model, optimizer, visualizer="dummy", every=1, tick_every=2) as watched:
        train(model, optimizer)
        layers = ["", "first", "first.base_layer", "first.lora_A", "first.lora_B", "act", "last"]
        assert [name for name in watched.inspector.layers if name in layers] == layers
        assert not any("base_model" in name for name in watched.inspector.layers)
        seen = {(record.lens, record.layer) for record in watched.inspector.records()}
        assert {("ParameterGradientGeometry", f"first.lora_{part}.weight") for part in "AB"} <= seen
        assert ("LossMetrics", "Loss") in seen


def test_findings_and_learning_rates_use_the_same_names(tmp_path):
    model = tuned(Net())
    groups = [
        {"params": model.base_model.model.first.lora_A.parameters()},
        {"params": model.base_model.model.first.lora_B.parameters()},
    ]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    with monitorch.watch(model, optimizer, folder=tmp_path, every=1, tick_every=2) as watched:
        train(model, optimizer)
        shown = {record.statistic for record in watched.inspector.records() if record.lens == "LoggedScalars"}
        assert {"learning rate (first.lora_A) mean", "learning rate (first.lora_B) mean"} <= shown
        layers = {*watched.inspector.layers}
    with open_run(watched.visualizer.path) as run:
        known = run.meta["diagnosis"]
        assert set(known["layers"]) <= layers
        trained = {name for name, facts in known["parameters"].items() if facts[3]}
    assert trained == {"first.lora_A.weight", "first.lora_B.weight"}


def test_the_parts_of_several_adapters_keep_their_names():
    model = tuned(Net())
    model.add_adapter("other", peft.LoraConfig(r=1, target_modules=["first"]))
    with monitorch.watch(model, visualizer="dummy") as watched:
        assert {"first.lora_A.default", "first.lora_A.other"} <= {*watched.inspector.layers}


def test_a_model_that_is_tuned_after_it_was_watched_is_told_of():
    model = Net()
    with monitorch.watch(model, visualizer="dummy", every=1):
        wrapped = tuned(model)
        with pytest.warns(MonitorchWarning, match="watch the model that it returns"):
            wrapped(torch.ones(4, 2))


def test_an_optimizer_that_accelerate_has_prepared_is_followed():
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer = accelerate.Accelerator(cpu=True).prepare(model, optimizer)
    with monitorch.watch(model, optimizer, visualizer="dummy", every=1, tick_every=2) as watched:
        train(model, optimizer)
        assert watched.inspector.gradient_moments["first.weight"] == "at_step"
        assert any(record.lens == "ParameterUpdateGeometry" for record in watched.inspector.records())
