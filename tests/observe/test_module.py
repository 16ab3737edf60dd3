"""Extras: plain values that belong to a module."""

import pytest
import torch
from torch import nn

from monitorch.observe import Module
from monitorch.observe.module import nested


@pytest.fixture
def module():
    made = Module()
    made.register_extra("count", 1)
    return made


def test_extra_is_read_set_and_deleted_like_an_attribute(module):
    module.count += 1
    assert (module.count, module.get_extra("count")) == (2, 2)
    assert "count" in dir(module)
    del module.count
    with pytest.raises(AttributeError):
        _ = module.count


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        (3, 1, TypeError),
        ("", 1, KeyError),
        ("a.b", 1, KeyError),
        ("count", 1, KeyError),
        ("forward", 1, KeyError),
        ("x", torch.ones(1), TypeError),
        ("x", nn.ReLU(), TypeError),
    ],
)
def test_what_cannot_be_an_extra(module, name, value, error):
    with pytest.raises(error):
        module.register_extra(name, value)


def test_extras_of_submodules(module):
    outer = nn.Sequential(module)
    holder = Module()
    holder.inner = outer
    assert holder.get_extra("inner.0.count") == 1
    for missing in ("inner.0.other", "inner.count", "nowhere.count"):
        with pytest.raises(AttributeError):
            holder.get_extra(missing)


def test_state_dictionary_is_a_snapshot(module):
    module.register_extra("seen", [1])
    saved = module.state_dict()
    module.count = 9
    module.seen.append(2)
    assert saved["_extra_state"] == {"count": 1, "seen": [1]}
    module.load_state_dict(saved)
    assert (module.count, module.seen) == (1, [1])
    module.seen.append(3)
    assert saved["_extra_state"]["seen"] == [1]


def test_property_wins_over_modules_and_methods_can_be_patched():
    class Sized(Module):
        @property
        def size(self):
            return self._size

        @size.setter
        def size(self, value):
            self._size = value

    module = Sized()
    module.size = nn.Linear(1, 1)
    assert isinstance(module.size, nn.Linear)
    assert list(dict(module.named_children())) == ["_size"]
    module.forward = lambda x: x + 1
    assert module(1) == 2


def test_nested_attributes():
    model = nn.Sequential(nn.Linear(2, 3))
    assert nested(model, "") is model
    assert nested(model, "0.weight") is model[0].weight
    with pytest.raises(AttributeError, match=r"Sequential has no '0\.wait': Linear has no attribute 'wait'"):
        nested(model, "0.wait")
