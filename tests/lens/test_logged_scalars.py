"""Numbers that are logged by name without being declared."""

import torch

from monitorch.inspector import PyTorchInspector
from monitorch.lens.logged_scalars import LoggedScalars


def test_tag(tags_of):
    assert tags_of(LoggedScalars()) == [("Logged", False, True, True, "NUMERICAL", None)]


def test_means_of_a_tick_are_shown_and_not_repeated(shown):
    inspector = PyTorchInspector([], visualizer=shown)
    inspector.log(learning_rate=0.1, entropy=torch.tensor(2.0))
    inspector.log(entropy=4.0)
    inspector.tick_epoch()
    assert shown.values("Logged") == {"Logged": {"learning_rate mean": 0.1, "entropy mean": 3.0}}
    inspector.log(entropy=1.0)
    inspector.tick_epoch()
    assert shown.values("Logged") == {"Logged": {"entropy mean": 1.0}}
    inspector.tick_epoch()
    assert shown.values("Logged") == {}


def test_lens_without_an_inspector_has_nothing_to_show(shown):
    lens = LoggedScalars()
    lens.finalize_epoch()
    lens.vizualize(shown, 1)
    assert shown.calls == [(1, "Logged", {}, {})]
