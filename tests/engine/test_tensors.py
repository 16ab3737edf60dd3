"""Tensors inside outputs: the one that is meant is found, and one that is an input gets an alias of its own."""

import dataclasses
from collections import OrderedDict, namedtuple
from typing import NamedTuple

import pytest
import torch
from torch import nn

from monitorch.engine.tensors import (
    first_input,
    has_no_numbers,
    pick_tensor,
    replace,
    samples_of,
    tensors_in,
    with_alias,
)
from monitorch.errors import SkippedSample

Hidden = namedtuple("Hidden", ["hidden", "logits"])
IDS, ONE, TWO = torch.tensor([[1, 2]]), torch.ones(2, 1), torch.full((2, 1), 2.0)


@dataclasses.dataclass
class Output:
    ids: torch.Tensor
    hidden: torch.Tensor
    logits: torch.Tensor


# an output and an index -> the tensor that is meant
FOUND = {
    "tensor": (ONE, None, ONE),
    "complex tensor": (ONE * 1j, None, ONE * 1j),
    "a bare tensor has no parts": (TWO, 0, TWO),
    "tuple": ((ONE, TWO), None, ONE),
    "tuple, integers first": ((IDS, None, TWO), None, TWO),
    "tuple, index": ((ONE, TWO), 1, TWO),
    "tuple, last": ((ONE, TWO), -1, TWO),
    "list in tuple": (([IDS, TWO], ONE), None, TWO),
    "part that is a tuple": ((ONE, (IDS, TWO)), 1, TWO),
    "dict": ({"ids": IDS, "hidden": ONE}, None, ONE),
    "dict, name": ({"hidden": ONE, "logits": TWO}, "logits", TWO),
    "dict, name that is also a method": ({"hidden": ONE, "values": TWO}, "values", TWO),
    "dict, integer key": ({0: ONE, 1: TWO}, 1, TWO),
    "ordered dict": (OrderedDict(hidden=ONE, logits=TWO), "logits", TWO),
    "named tuple": (Hidden(ONE, TWO), None, ONE),
    "named tuple, name": (Hidden(ONE, TWO), "logits", TWO),
    "named tuple, index": (Hidden(ONE, TWO), 1, TWO),
    "dataclass": (Output(IDS, ONE, TWO), None, ONE),
    "dataclass, name": (Output(IDS, ONE, TWO), "logits", TWO),
}


@pytest.mark.parametrize(("output", "index", "meant"), FOUND.values(), ids=FOUND)
def test_the_tensor_that_is_meant_is_picked(output, index, meant):
    assert torch.equal(pick_tensor(output, index), meant)
    assert samples_of(output, index) is pick_tensor(output, index)


@pytest.mark.parametrize(
    ("output", "index", "error", "text"),
    [
        ((ONE,), 3, IndexError, "range"),
        ({"hidden": ONE}, "logits", KeyError, "logits"),
        (Hidden(ONE, TWO), "loss", AttributeError, "loss"),
        (Output(IDS, ONE, TWO), "loss", AttributeError, "loss"),
    ],
)
def test_a_part_that_does_not_exist_is_named(output, index, error, text):
    with pytest.raises(error, match=text):
        pick_tensor(output, index)


NOTHING = {
    "integers": (torch.ones(2, 3, dtype=torch.long), "no floating tensor.*Tensor"),
    "bools": (torch.ones(2, 3, dtype=torch.bool), "no floating tensor"),
    "no tensor": ((1, "x", None), "no floating tensor.*tuple"),
    "None": (None, "no floating tensor.*NoneType"),
    "a class": (Output, "no floating tensor"),
    "empty batch": (torch.ones(0, 3), r"empty, shape \(0, 3\)"),
    "empty vector": (torch.ones(0), r"empty, shape \(0,\)"),
    "empty samples": (torch.ones(3, 0), r"empty, shape \(3, 0\)"),
}


@pytest.mark.parametrize(("output", "text"), NOTHING.values(), ids=NOTHING)
def test_an_output_with_nothing_to_measure_is_a_skipped_sample(output, text):
    with pytest.raises(SkippedSample, match=text):
        samples_of(output, None)


@pytest.mark.parametrize("shape", [(), (4,)])
def test_without_a_batch_dimension_there_is_one_sample(shape):
    assert samples_of(torch.ones(shape), None).shape == (1, max(1, *shape, 1))


def test_all_tensors_are_found_in_order():
    nested = {"a": [ONE, (TWO,)], "b": Output(IDS, ONE, TWO), "c": 3}
    assert [id(t) for t in tensors_in(nested)] == [id(t) for t in (ONE, TWO, IDS, ONE, TWO)]


@pytest.mark.parametrize(
    ("data", "expected"),
    [((ONE,), False), ([{"x": ONE.to("meta")}, ONE], True), ((), False), ((3, None, "x"), False)],
)
def test_tensors_of_a_tracer_have_no_numbers(data, expected):
    assert has_no_numbers(data) is expected


@pytest.mark.parametrize(
    ("args", "kwargs", "expected"), [((1, 2), {"x": 3}, 1), ((), {"x": 3, "y": 4}, 3), ((), {}, None)]
)
def test_the_first_input_is_the_first_argument_or_keyword(args, kwargs, expected):
    assert first_input(args, kwargs) == expected


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
