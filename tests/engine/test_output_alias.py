"""Outputs that are inputs or parameters get a tensor of their own."""

import dataclasses
from typing import NamedTuple

import pytest
import torch
from torch import nn

from monitorch.engine.tensors import replace, with_alias

X, OTHER = torch.ones(2, requires_grad=True) * 1, torch.zeros(2, requires_grad=True) * 1


@pytest.mark.parametrize(
    ("module", "inputs", "is_new"),
    [
        (nn.Identity(), ((X,), {}), True),
        (nn.Identity(), ((), {"x": X}), True),
        (nn.Identity(), (([OTHER, X],), {}), True),
        (nn.Identity(), ((OTHER,), {}), False),
        (nn.Identity(), ((X.clone(),), {}), False),
        (nn.ReLU(inplace=True), ((X,), {}), False),
        (nn.Dropout(0.5, inplace=True), ((X,), {}), False),
        (nn.Dropout(0.5, inplace=True).eval(), ((X,), {}), True),
        (nn.Dropout(0.5).eval(), ((X,), {}), True),
    ],
)
def test_a_passed_on_input_gets_an_alias(module, inputs, is_new):
    output, tensor = with_alias(X, X, module, inputs)
    assert output is tensor
    assert (tensor is not X) is is_new
    assert tensor.data_ptr() == X.data_ptr()


@pytest.mark.parametrize("module", [nn.Identity(), nn.ReLU(inplace=True)])
def test_a_parameter_that_is_returned_gets_an_alias(module):
    parameter = nn.Parameter(torch.ones(2))
    _, tensor = with_alias(parameter, parameter, module, ((OTHER,), {}))
    assert tensor is not parameter
    (2 * tensor).sum().backward()
    assert parameter.grad.tolist() == [2.0, 2.0]


@dataclasses.dataclass
class Data:
    hidden: torch.Tensor
    rest: object = None


@dataclasses.dataclass(frozen=True)
class FrozenData:
    hidden: torch.Tensor
    rest: object = None


class Pair(NamedTuple):
    first: object
    second: object


@pytest.mark.parametrize("kind", [Data, FrozenData])
def test_a_tensor_in_a_dataclass_is_replaced_in_place(kind):
    new = torch.full((2,), 7.0)
    output = kind(OTHER, rest=[X, kind(X)])
    assert replace(output, X, new) is output
    assert output.hidden is OTHER
    assert output.rest[0] is output.rest[1].hidden is new
    inside = replace(Pair(output, X), new, OTHER)
    assert (inside.first, inside.second) == (output, X)
    assert output.rest[0] is OTHER


def test_an_alias_takes_the_place_of_the_tensor_in_its_structure():
    output = {"hidden": X, "all": [OTHER, X], "ids": (3, "name")}
    changed, alias = with_alias(output, X, nn.Identity(), ((X,), {}))
    assert output["hidden"] is X
    assert changed["hidden"] is changed["all"][1] is alias
    assert changed["all"][0] is OTHER
    assert changed["ids"] == (3, "name")


@pytest.mark.parametrize("output", [X, (X, OTHER), [OTHER, X], {"x": X}, (OTHER, {"x": [X]})])
def test_replacing_changes_one_tensor_only(output):
    new = torch.full((2,), 7.0)
    leaves = [torch.utils._pytree.tree_leaves(tree) for tree in (output, replace(output, X, new))]
    assert [new if leaf is X else leaf for leaf in leaves[0]] == leaves[1]
    assert type(output) is type(replace(output, X, new))
