"""A module on demand."""

from monitorch.gatherer import EpochModuleGatherer


def test_hands_over_the_module_at_each_call(keeper, state, linear):
    gatherer = EpochModuleGatherer(linear, [keeper], "lin", state)
    gatherer()
    gatherer()
    assert keeper.calls == [("lin", linear)] * 2


def test_puts_no_hook_and_lets_go_of_the_module(keeper, state, linear, count_hooks):
    gatherer = EpochModuleGatherer(linear, [keeper], "lin", state)
    assert count_hooks(linear, linear.weight) == 0
    gatherer.detach()
    assert linear not in vars(gatherer).values()
