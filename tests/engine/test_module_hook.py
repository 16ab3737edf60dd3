"""A hook that is taken off and put back: in its place, with keyword arguments, while its module lives."""

import gc
import random
import weakref

import pytest
import torch
from torch import nn

from monitorch.engine.module_hook import ModuleHook


@pytest.fixture
def linear():
    return nn.Linear(2, 2)


@pytest.fixture
def called():
    return []


def note(called, name):
    return lambda *call: called.append((name, len(call)))


@pytest.mark.parametrize(("before", "arguments"), [(False, 4), (True, 3)])
def test_it_is_off_until_it_wakes(before, arguments, linear, called):
    hook = ModuleHook(linear, note(called, "ours"), before=before)
    for _ in range(2):
        linear(torch.ones(1, 2))
        hook.rest()
        linear(torch.ones(1, 2))
        hook.wake()
    assert called == [("ours", arguments)] * 2
    hook.remove()
    linear(torch.ones(1, 2))
    assert called == [("ours", arguments)] * 2
    assert not linear._forward_hooks
    assert not linear._forward_hooks_with_kwargs
    assert not linear._forward_pre_hooks_with_kwargs


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_it_keeps_its_place_among_others(before, first, linear, called):
    register = linear.register_forward_pre_hook if before else linear.register_forward_hook
    register(note(called, "earlier"))
    hook = ModuleHook(linear, note(called, "ours"), before=before, first=first)
    register(note(called, "later"))
    hooks = linear._forward_pre_hooks if before else linear._forward_hooks
    for _ in range(2):
        called.clear()
        linear(torch.ones(1, 2))
        assert [*hooks] == [*dict.keys(hooks)]  # in the order of insertion, too: that is where a compiler finds them
        assert [name for name, _ in called] == (["ours", "earlier", "later"] if first else ["earlier", "ours", "later"])
        hook.rest()
        hook.wake()


def test_hooks_that_come_or_go_while_it_rests_do_not_matter(linear, called):
    gone = linear.register_forward_hook(note(called, "gone"))
    hook = ModuleHook(linear, note(called, "ours"))
    goes = linear.register_forward_hook(note(called, "goes"))
    linear.register_forward_hook(note(called, "stays"))
    hook.rest()
    gone.remove()
    goes.remove()
    linear.register_forward_hook(note(called, "new"))
    hook.wake()
    linear(torch.ones(1, 2))
    assert sorted(name for name, _ in called) == ["new", "ours", "stays"]
    assert called.index(("ours", 4)) < called.index(("stays", 3))


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("seed", range(30))
def test_other_hooks_are_called_in_the_order_in_which_they_would_be_without_it(seed, first, before, linear, called):
    """Hooks come and go at random, also in front, while ours rest and wake."""
    stream, plain, handles = random.Random(seed), nn.Linear(2, 2), []

    def register(module, calls, name, prepend):
        method = module.register_forward_pre_hook if before else module.register_forward_hook
        return method(lambda *_: calls.append(name), prepend=prepend)

    expected, hooks = [], []
    for number in range(40):
        what = stream.choice(["come", "come", "go", "rest", "wake", "ours"])
        if what == "come":
            prepend = stream.random() < 0.3
            handles.append(
                [register(module, calls, number, prepend) for module, calls in ((plain, expected), (linear, called))]
            )
        elif what == "go" and handles:
            for handle in handles.pop(stream.randrange(len(handles))):
                handle.remove()
        elif what == "ours" and len(hooks) < 3:
            hooks.append(ModuleHook(linear, lambda *_: None, before=before, first=first))
        elif what in ("rest", "wake"):
            for hook in hooks:
                hook.rest()
                if what == "wake":
                    hook.wake()
        plain(torch.ones(1, 2)), linear(torch.ones(1, 2))
        assert called == expected


def test_a_hook_that_came_while_ours_was_off_stays_behind_it(linear, called):
    linear.register_forward_hook(note(called, "earlier"))
    hook = ModuleHook(linear, note(called, "ours"))
    linear.register_forward_hook(note(called, "later"))
    hook.rest()
    linear.register_forward_hook(note(called, "new"))
    linear.register_forward_hook(note(called, "in front"), prepend=True)
    hook.wake()
    linear(torch.ones(1, 2))
    assert [name for name, _ in called] == ["in front", "earlier", "ours", "later", "new"]


def test_somebody_may_clear_all_hooks(linear, called):
    hook = ModuleHook(linear, note(called, "ours"))
    linear._forward_hooks.clear()
    hook.rest()
    hook.wake()
    linear(torch.ones(1, 2))
    assert called == [("ours", 4)]


def test_it_does_not_keep_its_module(called):
    linear = nn.Linear(2, 2)
    hook, known = ModuleHook(linear, note(called, "ours")), weakref.ref(linear)
    del linear
    gc.collect()
    assert known() is None
    hook.rest()
    hook.wake()
    hook.remove()
