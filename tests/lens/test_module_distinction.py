"""Kinds of layers: every class of torch, subclasses, and the activations of another library."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from monitorch.lens import module_distinction

NAMES = {
    "isactivation": "CELU ELU GELU GLU Hardshrink Hardsigmoid Hardswish Hardtanh LeakyReLU LogSigmoid LogSoftmax Mish "
    "PReLU ReLU ReLU6 RReLU SELU SiLU Sigmoid Softmax Softmax2d Softmin Softplus Softshrink Softsign Tanh Tanhshrink "
    "Threshold",
    "isdropout": "AlphaDropout Dropout Dropout1d Dropout2d Dropout3d FeatureAlphaDropout",
    "islinear": "Bilinear Identity LazyLinear Linear",
    "isconv": "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d LazyConv1d LazyConv2d LazyConv3d "
    "LazyConvTranspose1d LazyConvTranspose2d LazyConvTranspose3d",
    "isnormalization": "BatchNorm1d BatchNorm2d BatchNorm3d InstanceNorm1d InstanceNorm2d InstanceNorm3d "
    "LazyBatchNorm1d LazyBatchNorm2d LazyBatchNorm3d LazyInstanceNorm1d LazyInstanceNorm2d LazyInstanceNorm3d "
    "SyncBatchNorm",
}
KINDS = {name: kind for kind, names in NAMES.items() for name in names.split()}
OTHERS = ("LayerNorm", "GroupNorm", "MultiheadAttention", "Embedding", "Sequential", "MSELoss")
CLASSES = sorted(
    (value for value in vars(nn).values() if isinstance(value, type) and issubclass(value, nn.Module)),
    key=lambda found: found.__name__,
)


def kinds_of(module):
    return {kind for kind in NAMES if getattr(module_distinction, kind)(module)}


@pytest.mark.parametrize("found", CLASSES, ids=lambda found: found.__name__)
def test_class_of_torch_is_of_its_kind_only(found):
    module = object.__new__(found)  # the kind does not depend on arguments
    assert kinds_of(module) == ({KINDS[found.__name__]} if found.__name__ in KINDS else set())


def test_the_table_names_classes_that_exist():
    assert {*KINDS, *OTHERS} <= {found.__name__ for found in CLASSES}


@pytest.mark.parametrize(
    ("base", "kind"),
    [(nn.ReLU, "isactivation"), (nn.Dropout, "isdropout"), (nn.Linear, "islinear"), (nn.Conv2d, "isconv")],
)
def test_subclass_counts(base, kind):
    own = type("Own", (base,), {})
    assert kinds_of(own.__new__(own)) == {kind}


def test_attention_projection_is_linear():
    assert kinds_of(nn.MultiheadAttention(4, 2).out_proj) == {"islinear"}


def test_activations_of_transformers_count_by_their_module():
    class NewGELUActivation(nn.Module):
        def forward(self, inputs):
            return torch.tanh(inputs)

    assert kinds_of(NewGELUActivation()) == set()
    NewGELUActivation.__module__ = "transformers.activations"
    assert kinds_of(NewGELUActivation()) == {"isactivation"}
    assert kinds_of(type("Own", (NewGELUActivation,), {})()) == {"isactivation"}


def test_everything_else_is_no_activation():
    assert module_distinction.isnotactivation(nn.Linear(1, 1))
    assert not module_distinction.isnotactivation(nn.ReLU())


@pytest.mark.parametrize(
    ("name", "attributes", "count"),
    [
        ("TopKRouter", {}, None),
        ("MixtralTopKRouter", {"top_k": 2}, 2),
        ("RouterOfTokens", {"num_experts_per_tok": 3}, 3),
        ("MoEGate", {"top_k": 6}, 6),
        ("TopKGating", {"topk": 1}, 1),
    ],
)
def test_routers_are_known_by_the_name_of_their_class(name, attributes, count):
    module = type(name, (nn.Module,), attributes)()
    assert module_distinction.isrouter(module)
    assert module_distinction.experts_per_token(module) == count


class Block(nn.Module):
    def forward(self, x):
        return functional.scaled_dot_product_attention(x, x, x)


class Head(nn.Module):
    def forward(self, x):
        return functional.softmax(x, -1)


@pytest.mark.parametrize(
    ("module", "is_one"),
    [
        (nn.MultiheadAttention(4, 1), True),
        (type("CausalSelfAttn", (nn.Module,), {})(), True),
        (Block(), True),
        (type("Derived", (Block,), {})(), True),
        (Head(), False),
        (nn.Linear(4, 1), False),
        (type("Odd", (nn.Module,), {"forward": max})(), False),
        (torch.jit.script(nn.ReLU()), False),
    ],
)
def test_attention_is_known_by_its_name_and_by_what_it_calls(module, is_one):
    assert module_distinction.isattention(module) == is_one


@pytest.mark.parametrize(
    ("name", "attributes"), [("ForgetGate", {}), ("Gate", {"top_k": 0.5}), ("Linear", {"top_k": 2})]
)
def test_others_are_no_routers(name, attributes):
    assert not module_distinction.isrouter(type(name, (nn.Module,), attributes)())


@pytest.mark.parametrize(
    ("module", "found"),
    [
        (nn.BatchNorm1d(2), True),
        (nn.SyncBatchNorm(2), True),
        (nn.BatchNorm2d(2, track_running_stats=False), False),
        (nn.InstanceNorm1d(2, track_running_stats=True), False),
        (nn.LayerNorm(2), False),
    ],
)
def test_which_layers_keep_running_statistics(module, found):
    assert module_distinction.has_running_statistics(module) is found
