"""Pools share monitors where they would record the same, and nowhere else."""

import copy
import gc
import pickle

import pytest
import torch
from torch import nn

from monitorch.observe import MonitorPool, Observable, OutputMonitor, PassthroughReducer, StateMonitor

X = torch.ones(1, 2)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.cells = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})

    def forward(self, x):
        return self.cells["b"](self.cells["a"](x))

    def path(self, cell, attr, *, sep="."):
        return sep.join(("cells", cell, attr))


class Cell(Observable):
    def __init__(self, net, name):
        super().__init__(net, "path", (name,), {"sep": "."})

    def local_remap(self, attr):
        return (attr,), {}


@pytest.fixture
def net():
    return Net()


@pytest.fixture
def pool():
    made = MonitorPool()
    yield made
    for monitor in made.monitors:  # some never see a sample, and would say so
        monitor.deregister()


@pytest.fixture
def make():
    return StateMonitor.partialconstructor(PassthroughReducer(1.0))


def test_observable_makes_monitors_on_its_basis(net, make):
    cell = Cell(net, "a")
    assert cell.realign_attribute("bias") == "cells.a.bias"
    monitor = cell.add_monitor("bias", "bias", make, None)
    net(X)
    assert torch.equal(monitor.latest, net.cells["a"].bias)
    assert cell.monitors.bias is cell.monitors["bias"] is monitor
    assert list(cell.monitors) == ["bias"]
    assert monitor.tags == {}
    del monitor
    assert len(cell.monitors) == 0
    with pytest.raises(AttributeError, match="no monitor 'bias'"):
        _ = cell.monitors.bias


def test_observable_does_not_keep_its_basis():
    cell = Cell(net := Net(), "a")
    del net
    gc.collect()
    with pytest.raises(RuntimeError, match="is gone"):
        cell.realign_attribute("bias")


def test_observable_asks_for_its_remap_and_a_method(net):
    with pytest.raises(NotImplementedError, match="local_remap"):
        Observable(net, "path", None, None).realign_attribute("bias")
    with pytest.raises(TypeError, match="'nowhere' is not a method of Net"):
        Observable(net, "nowhere", None, None)


def test_alike_monitors_are_one(net, pool, make):
    first, second = pool.add_observed("x", Cell(net, "a")), pool.add_observed("y", Cell(net, "a"))
    kept = [first, second]
    shared = pool.add_monitor("x", "bias", "bias", make, tau=1)
    assert pool.add_monitor("y", "bias", "bias", make, tau=1) is shared
    assert pool.add_monitor("x", "bias", "weight", make, tau=2) is shared  # the name is taken
    others = [
        pool.add_monitor("y", "other", "bias", make, tau=1),
        pool.add_monitor("y", "weight", "weight", make, tau=1),
        pool.add_monitor("y", "third", "bias", make, tau=2),
    ]
    assert len({id(monitor) for monitor in (shared, *others)}) == 4
    assert len(list(pool.monitors)) == 4
    assert len(list(pool.named_monitors)) == 5
    assert dict(pool.named_monitors_of("x")) == {"bias": shared}
    assert list(pool.named_monitors_of("nobody")) == []
    assert [observable for observable, _ in pool.pool] == kept
    assert shared.tags == {"tau": 1, "_attr": "cells.a.bias"}


def test_observable_takes_its_own_monitor_before_that_of_another(net, make):
    first, second = Cell(net, "a"), Cell(net, "a")
    monitors = [cell.add_monitor("bias", "bias", make, (), tau=1) for cell in (first, second)]
    pool = [(cell, {"bias": monitor}) for cell, monitor in zip((first, second), monitors, strict=True)]
    for cell, monitor in zip((first, second), monitors, strict=True):
        assert cell.add_monitor("bias", "bias", make, pool, tau=1) is monitor
    for monitor in monitors:
        monitor.deregister()


def test_monitors_of_different_models_are_never_shared(pool, make):
    nets = [Net(), Net()]
    cells = [pool.add_observed(name, Cell(net, "a")) for name, net in zip("xy", nets, strict=True)]
    monitors = [pool.add_monitor(name, "bias", "bias", make) for name in "xy"]
    assert len(cells) == 2
    nets[1](X)
    assert monitors[0].latest is None
    assert torch.equal(monitors[1].latest, nets[1].cells["a"].bias)


def test_deleting_one_name_keeps_the_other_recording(net, pool, make):
    cells = [pool.add_observed(name, Cell(net, "a")) for name in "xy"]
    monitor, _ = (pool.add_monitor(name, "bias", "bias", make) for name in "xy")
    pool.del_monitor("x", "bias")
    assert monitor.registered
    net(X)
    assert monitor.reducer.count == 1
    pool.del_monitor("y", "bias")
    assert not monitor.registered
    assert list(pool.monitors) == []
    assert len(cells) == 2
    with pytest.raises(AttributeError, match="no monitor 'bias' of 'y'"):
        pool.del_monitor("y", "bias")


def test_unique_monitor_replaces_and_stops_the_old_one(net, pool, make):
    cells = [pool.add_observed(name, Cell(net, "a")) for name in "xy"]
    old = pool.add_monitor("x", "bias", "bias", make)
    new = pool.add_monitor("x", "bias", "bias", make, True)
    assert (new is old, old.registered, new.registered) == (False, False, True)
    assert pool.get_monitor("x", "bias") is new
    assert pool.add_monitor("y", "bias", "bias", make) is not new
    assert len(cells) == 2


def test_pool_in_eval_mode_adds_monitors_that_wait(net, pool, make):
    cells = [pool.add_observed(name, Cell(net, "a")) for name in "xy"]
    active = pool.add_monitor("x", "bias", "bias", make)
    pool.eval()
    assert pool.add_monitor("y", "bias", "bias", make) is active
    assert active.registered
    assert not pool.add_monitor("y", "weight", "weight", make).registered
    assert len(cells) == 2


def test_names_of_observables(net, pool, make):
    cell = pool.add_observed("x", Cell(net, "a"))
    assert pool.get_observed("x") is cell
    with pytest.raises(RuntimeError, match="another name"):
        pool.add_observed("x", Cell(net, "b"))
    with pytest.raises(TypeError, match="not an Observable"):
        pool.add_observed("y", net)
    with pytest.raises(KeyError, match="no observable 'y'; it has 'x'"):
        pool.get_observed("y")
    with pytest.raises(AttributeError, match="no observable 'y'"):
        pool.add_monitor("y", "bias", "bias", make)
    monitor = pool.add_monitor("x", "bias", "bias", make)
    del cell
    gc.collect()
    with pytest.raises(KeyError, match="no observable 'x'; it has none"):
        pool.get_observed("x")
    with pytest.raises(AttributeError, match="no observable 'x'"):
        pool.add_monitor("x", "weight", "weight", make)
    with pytest.raises(RuntimeError, match=r"del_observed\(\) first"):
        pool.add_observed("x", Cell(net, "b"))
    pool.del_observed("x")
    pool.del_observed("x")
    assert not monitor.registered
    assert pool.get_monitor("x", "bias") is None
    assert pool.add_observed("x", other := Cell(net, "b")) is other


def test_output_monitors_are_put_on_the_part(net, pool):
    class Part(Cell):
        def local_remap(self, attr):
            return ("",), {}

    net.path = lambda cell, attr, *, sep: f"cells.{cell}"
    part = pool.add_observed("x", Part(net, "b"))
    monitor = pool.add_monitor("x", "out", "", OutputMonitor.partialconstructor(PassthroughReducer(1.0)))
    assert torch.equal(net(X), monitor.latest)
    assert part.monitors.out is monitor


class CellModule(nn.Linear, Cell):
    """A layer that is also an observable."""

    def __init__(self, net, name):
        nn.Linear.__init__(self, 2, 2)
        Cell.__init__(self, net, name)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_observable_inside_its_basis_is_copied_with_it(net, make, duplicate):
    net.cells["a"] = CellModule(net, "a")
    monitor = net.cells["a"].add_monitor("bias", "bias", make, None)
    copied = duplicate(net)
    assert copied.cells["a"].basis is copied
    for each in (net, copied):
        each(X)
    assert monitor.reducer.count == 1


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_copies_do_not_observe(net, pool, make, duplicate):
    cell = pool.add_observed("x", Cell(net, "a"))
    pool.add_monitor("x", "bias", "bias", make)
    net(X)
    copied_pool, (copied_net, copied_cell) = duplicate(pool), duplicate((net, cell))
    assert [monitor.registered for monitor in copied_pool.monitors] == [False]
    assert next(copied_pool.monitors).reducer.count == 1
    assert copied_cell.basis is copied_net
    assert len(copied_cell.monitors) == 0
