"""What a tick shows of facts about parameters; single steps are tested where they are looked at."""

import pytest
import torch
from torch import nn

from monitorch.errors import OptionError
from monitorch.lens import ParameterFacts


def test_shares_are_over_the_steps_of_a_tick_and_the_rest_is_of_the_last_step(new_net, make_batches, watch, shown):
    model = new_net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    inspector = watch(model, ParameterFacts(optimizer), optimizer=optimizer)
    for rate, (inputs, targets) in zip((0.5, 0.0, 0.25, 0.0), make_batches((5,) * 4), strict=True):
        optimizer.param_groups[0]["lr"] = rate
        if rate:
            optimizer.zero_grad()  # forgotten where there is no rate
        nn.functional.mse_loss(model(inputs), targets).backward()
        optimizer.step()
    inspector.tick_epoch()
    found = {tag: shown.values(tag)["first.weight"] for tag in shown.tags if tag != "Logged"}
    checksum = found.pop("Parameter Checksum")["last"]
    assert checksum == int(checksum) < 2**24
    assert found == {
        "Gradient Was Empty": {"mean": 0.5},
        "Parameter Changed": {"mean": pytest.approx(1 / 3)},
        "Parameter Optimizer": {"last": 0.0},
        "Parameter Group": {"last": 0.0},
        "Parameter Learning Rate": {"last": 0.0},
    }


def test_a_checkpoint_keeps_what_was_seen(new_net, make_batches, watch, shown):
    def run(*, saved):
        torch.manual_seed(0)
        model = new_net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
        inspector = watch(model, ParameterFacts(optimizer), optimizer=optimizer)
        for inputs, targets in make_batches((5,) * 4):
            nn.functional.mse_loss(model(inputs), targets).backward()
            optimizer.step()
            if saved:
                inspector.load_state_dict(inspector.state_dict())
        inspector.tick_epoch()
        return [shown.values(tag) for tag in shown.tags if tag != "Logged"]

    assert run(saved=True) == run(saved=False)


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (None, "an optimizer is needed, not None: pass the one that trains the model, or a list of them"),
        ([], r"an optimizer is needed, not \[\]"),
        ([None], r"an optimizer is needed, not \[None\]"),
        ("adam", "'adam' is not a torch.optim.Optimizer object"),
        (torch.optim.Adam, "is not a torch.optim.Optimizer object"),
        (nn.Linear(1, 1).parameters(), "is not a torch.optim.Optimizer object"),
    ],
)
def test_wrong_optimizers_are_refused(wrong, text):
    with pytest.raises(OptionError, match=text):
        ParameterFacts(wrong)


@pytest.mark.parametrize("form", [lambda one: one, lambda one: [one], iter, lambda one: (one,)])
def test_one_optimizer_or_any_iterable_of_them(form):
    optimizer = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    given = form([optimizer] if form is iter else optimizer)
    assert ParameterFacts(given).optimizers == (optimizer,)
