"""Where the data of a record live: on its owner, within its constraints, saved and copied with it."""

import copy
import gc
import pickle

import pytest
import torch
from torch import nn

from monitorch.observe import Module, RecordTensor
from monitorch.observe.shaped import ShapedTensor

X = torch.tensor


def new_record(**options):
    owner = Module()
    value = options.pop("value", None)
    return RecordTensor.create(owner, "speed", 1.0, 3.0, value, **options), owner


def filled(samples, **options):
    record, owner = new_record(**options)
    for sample in map(torch.as_tensor, samples):
        record.push(sample.float().reshape(sample.shape or 1))
    return record, owner


def test_latest_pop_and_value():
    record, owner = filled([1, 2, 3])
    record.latest = X([4.0])
    assert record.pop().tolist() == [4]
    assert record.latest.tolist() == [3]
    del record.latest
    assert record.latest.tolist() == [2]
    assert record.value is owner._speed_data
    for nothing in (None, torch.empty(0)):
        record.value = nothing
        assert record.ignored
    record.push(X([7.0, 8.0]))
    assert record.shape == (2,)


def test_constraints():
    record, _owner = filled([torch.ones(2, 3)], constraints={-1: 3, 0: 2}, live=True)
    assert (record.constraints, record.dimensionality, record.valid) == ({-1: 3, 0: 2}, 2, True)
    with pytest.raises(ValueError, match="cannot have shape"):
        record.value = torch.ones(3, 2, 4)
    record.reconstrain(0, 4)
    assert record.latest.tolist() == [[0] * 3, [0] * 3, [1] * 3, [1] * 3]
    record.reconstrain(0, None)
    record.reconstrain(-1, 1)
    assert record.constraints == {-1: 1}
    assert record.shape == (4, 1)
    with pytest.raises(ValueError, match="sizes by dimension must be"):
        record.reconstrain(0, 7)
    assert record.constraints == {-1: 1}


def test_constraints_hold_for_the_first_sample():
    record, _owner = new_record(constraints={0: 2})
    with pytest.raises(ValueError, match="cannot have shape"):
        record.push(torch.ones(3))
    assert record.ignored


def test_initialize_and_reset():
    record, _owner = new_record(fill=7)
    record.initialize((2,), dtype=torch.float64)
    assert record.value.tolist() == [[7, 7]] * 3
    record.push(torch.ones(2))
    record.reset()
    assert (record.value.sum(), record.pointer, record.value.dtype) == (0, 0, torch.float64)
    record.push(torch.ones(2))
    record.reset(None)
    assert record.value.tolist() == [[0, 0], [0, 0], [1, 1]]
    record.deinitialize(use_uninitialized=True)
    assert record.ignored
    record.push(torch.ones(4))
    assert record.shape == (4,)


def test_parameter_as_storage():
    record, owner = new_record(value=nn.Parameter(torch.zeros(1)))
    record.push(X([2.0]))
    assert record.latest.tolist() == [2]
    assert [name for name, _ in owner.named_parameters()] == ["_speed_data"]


def test_what_is_saved():
    _, plain = filled([1])
    _, full = filled([1], persist_temporal=True, persist_constraints=True)
    _, bare = filled([1], persist_data=False)
    assert set(plain.state_dict()) == {"_speed_data", "_extra_state"}
    assert plain.state_dict()["_extra_state"] == {"_speed_pointer": 1}
    assert {"_speed_dt", "_speed_duration", "_speed_inclusive", "_speed_constraints"} < set(
        full.state_dict()["_extra_state"]
    )
    assert set(bare.state_dict()) == {"_extra_state"}


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_copy_belongs_to_the_copy_of_its_owner(duplicate):
    record, owner = filled([1, 2])
    copied = duplicate(owner)
    copied.speed.push(X([9.0]))
    assert copied.speed.owner is copied
    assert (record.latest.tolist(), copied.speed.latest.tolist()) == ([2], [9])
    del record, owner
    gc.collect()
    assert copied.speed.readrange(3)[0].tolist() == [1, 2, 9]


def test_record_and_owner_do_not_keep_each_other():
    record, owner = filled([1])
    del record, owner.speed
    assert not [name for name in (*owner._buffers, *owner._extras) if name.startswith("_speed")]
    record, owner = filled([1])
    del owner
    with pytest.raises(RuntimeError, match="is gone"):
        record.peek()


def test_shaped_tensor_by_itself():
    owner = Module()
    shaped = ShapedTensor.create(owner, "map", torch.ones(2, 3), {0: 2, -1: 3}, live=True)
    assert owner.map is shaped
    assert (shaped.attributes.data, shaped.attributes.constraints) == ("_map_data", "_map_constraints")
    assert (shaped.constraints, shaped.dimensionality, shaped.valid) == ({0: 2, -1: 3}, 2, True)
    with pytest.raises(ValueError, match="sizes by dimension must be"):
        shaped.value = torch.ones(3, 3)
    shaped.value = None
    assert shaped.ignored
    loose = ShapedTensor(owner, "loose", torch.ones(2), {0: 2, -1: 2}, strict=False)
    assert (loose.dimensionality, loose.valid) == (1, True)
    loose.value = torch.ones(3)  # checked only if it is live
    assert not loose.valid
