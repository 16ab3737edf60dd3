"""Models that PEFT has made, where that is installed; test_module_tree.py has a model built like them."""

import pytest
import torch
from torch import nn

import monitorch
from monitorch.errors import MonitorchWarning

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
        layers = ["", "first", "first.base_layer", "first.lora_A.default", "first.lora_B.default", "act", "last"]
        assert [name for name in watched.inspector.layers if name in layers] == layers
        assert not any("base_model" in name for name in watched.inspector.layers)
        seen = {(record.lens, record.layer) for record in watched.inspector.records()}
        assert {("ParameterGradientGeometry", f"first.lora_{part}.default.weight") for part in "AB"} <= seen
        assert ("LossMetrics", "Loss") in seen


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
