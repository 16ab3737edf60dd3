"""Hooks come and go with the objects that made them."""

import copy
import gc
import pickle

import pytest
import torch
from torch import nn

from monitorch.observe import ContextualHook, Hook, StateHook

X = torch.ones(1, 2)


def hooks_on(module):
    return len(module._forward_pre_hooks) + len(module._forward_hooks)


class Named(ContextualHook):
    def __init__(self, **kwargs):
        super().__init__("before", "after", **kwargs)
        self.calls = []

    def before(self, module, args):
        self.calls.append("before")
        return "ignored"

    def after(self, module, args, output):
        self.calls.append("after")
        return "ignored"


class Counting(StateHook):
    fired = 0

    def hook(self, module):
        self.fired += 1


def test_hook_may_change_input_and_output():
    hook = Hook(lambda module, args: (args[0] * 2,), lambda module, args, output: output + 1)
    hook.register(module := nn.Identity())
    assert module(X).tolist() == [[3, 3]]
    hook.deregister()
    hook.deregister()
    assert not hook.registered
    assert module(X).tolist() == [[1, 1]]


def test_keywords_reach_torch():
    seen = []
    hook = Hook(
        lambda module, args, kwargs: seen.append(kwargs),
        lambda module, args, kwargs, output: seen.append(output.shape),
        prehook_kwargs={"with_kwargs": True},
        posthook_kwargs={"with_kwargs": True},
    )
    hook.register(module := nn.Linear(2, 3))
    module(input=X)
    assert [*seen[0], seen[1]] == ["input", (1, 3)]


def test_order_of_hooks():
    order, module = [], nn.Identity()
    hooks = [
        Hook(posthook=lambda *_, name=name: order.append(name), posthook_kwargs={"prepend": name == "c"})
        for name in "abc"
    ]
    for hook in hooks:
        hook.register(module)
    module(X)
    assert order == ["c", "a", "b"]


def test_contextual_hook_calls_its_methods_and_changes_nothing():
    hook = Named()
    hook.register(module := nn.Identity())
    assert module(X) is X
    assert hook.calls == ["before", "after"]


def test_modes_can_be_switched_at_any_time():
    hook = Named(train_update=False)
    hook.register(module := nn.Identity())
    assert (hook.trainexec, hook.evalexec) == (False, True)
    module(X)
    assert hook.calls == []
    hook.trainexec, hook.evalexec = 1, []
    assert (hook.trainexec, hook.evalexec) == (True, False)
    assert hook.trainexec is True
    module(X)
    module.eval()(X)
    assert hook.calls == ["before", "after"]


def test_missing_method_is_told_at_the_first_pass():
    hook = ContextualHook(posthook="nowhere")
    hook.register(module := nn.Identity())
    with pytest.raises(AttributeError, match="nowhere"):
        module(X)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (Hook, RuntimeError, "give it a prehook"),
        (ContextualHook, RuntimeError, "give it a prehook"),
        (lambda: Hook(3), TypeError, "a hook must be a function, not 3"),
        (lambda: ContextualHook(print), TypeError, "names of its methods"),
        (lambda: Named().register(3), TypeError, "takes a torch.nn.Module, not int"),
        (lambda: Counting(3), TypeError, "takes a torch.nn.Module, not int"),
    ],
)
def test_wrong_arguments(make, error, message):
    with pytest.raises(error, match=message):
        make()


def test_second_registration_is_refused_and_changes_nothing():
    hook, first, second = Named(), nn.Identity(), nn.Identity()
    hook.register(first)
    with pytest.raises(RuntimeError, match=r"Named\(Hook\) is already registered to a module.*deregister\(\) first"):
        hook.register(second)
    assert (hooks_on(first), hooks_on(second), hook.registered) == (2, 0, True)


def test_failed_registration_leaves_nothing():
    hook, module = Named(posthook_kwargs={"no_such_option": 1}), nn.Identity()
    with pytest.raises(TypeError, match="no_such_option"):
        hook.register(module)
    assert (hooks_on(module), hook.registered) == (0, False)


def test_modules_without_elements_can_be_hooked():
    hook = Named()
    hook.register(module := nn.Sequential())
    module(X)
    assert hook.calls == ["before", "after"]


def test_dropped_hook_takes_its_functions_along_at_once():
    module, hook = nn.Identity(), Named()
    hook.register(module)
    gc.disable()
    try:
        del hook
        assert hooks_on(module) == 0
    finally:
        gc.enable()


def test_hook_is_registered_until_it_is_taken_off_even_if_its_module_goes_first():
    hook, module = Named(), nn.Identity()
    hook.register(module)
    del module
    gc.collect()
    assert hook.registered
    hook.deregister()
    assert not hook.registered


def test_hook_whose_module_is_gone_can_move_on():
    hook, module = Named(), nn.Identity()
    hook.register(module)
    del module
    gc.collect()
    hook.register(other := nn.Identity())
    other(X)
    assert hook.calls == ["before", "after"]
    hook.deregister()
    assert hooks_on(other) == 0


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_copy_of_a_hooked_module_has_a_life_of_its_own(duplicate):
    hook, module = Named(), nn.Linear(2, 2)
    hook.register(module)
    copied = duplicate(module)
    assert torch.equal(copied(X), module(X))
    assert hook.calls == ["before", "after"]
    del hook
    copied(X)


def test_pickle_of_a_hooked_module_does_not_need_this_package():
    hook, module = Named(), nn.Linear(2, 2)
    hook.register(module)
    assert b"monitorch" not in pickle.dumps(module)


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda thing: pickle.loads(pickle.dumps(thing))])
def test_copy_of_a_hook_is_on_no_module(duplicate):
    hook, module = Named(), nn.Identity()
    hook.register(module)
    copied = duplicate(hook)
    assert not copied.registered
    copied.register(other := nn.Identity())
    other(X)
    assert (hook.calls, copied.calls) == ([], ["before", "after"])


@pytest.mark.parametrize("as_prehook", [True, False])
def test_state_hook_fires_with_its_module_and_by_hand(as_prehook):
    hook = Counting(module := nn.Identity(), eval_update=False, as_prehook=as_prehook)
    hook()
    assert (hook.fired, hooks_on(module)) == (0, 0)
    hook(force=True)
    hook.register()
    hook.register()
    hook()
    module(X)
    assert (hook.fired, hooks_on(module)) == (3, 1)
    module.eval()(X)
    hook.forward()
    assert hook.fired == 3
    hook(ignore_mode=True)
    assert hook.fired == 4
    with pytest.raises(RuntimeError, match="was made for another module"):
        hook.register(nn.Identity())


def test_state_hook_after_a_failed_pass():
    hook = Counting(module := nn.Linear(2, 2), always_call=True)
    hook.register()
    with pytest.raises(RuntimeError):
        module(torch.ones(1, 5))
    assert hook.fired == 1
