"""Steps and passes that the user tells of: numbers against NumPy, for any optimizer, root and bank of parameters."""

import gc
import weakref

import pytest
import torch
from torch import nn

import monitorch
from monitorch.errors import MonitorchWarning, OptionError
from monitorch.lens import ParameterNorm
from monitorch.store import open_run
from tests.step_oracle import Oracle, assert_right, shown


class Sign:
    """An optimizer that is not torch's and keeps its parameters to itself."""

    def __init__(self, parameters):
        self._trained = list(parameters)

    @torch.no_grad()
    def step(self):
        for own in self._trained:
            own -= 0.01 * own.grad.sign()


class GroupedSign(Sign):
    """The same with parameter groups, as most have them."""

    def __init__(self, parameters):
        super().__init__(parameters)
        self.param_groups = [{"params": self._trained, "lr": 0.01}]


class Both:
    """Two optimizers for two parts, only one of them of torch."""

    def __init__(self, parameters):
        first, *others = parameters
        self.given = [torch.optim.SGD([first], lr=0.1), GroupedSign(others)]

    def step(self):
        for one in self.given:
            one.step()


def new_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 2))


def batches(count, micro=1):
    generator = torch.Generator().manual_seed(1)
    return torch.randn(count, micro, 4, 3, generator=generator)


def watch(*args, **options):
    return monitorch.watch(*args, **{"every": 1, "tick_every": 1, "visualizer": "dummy", **options})


GIVEN = {
    "no groups": (Sign, lambda optimizer: optimizer),
    "groups": (GroupedSign, lambda optimizer: optimizer),
    "by hand": (Sign, lambda _: "by hand"),
    "with one of torch": (Both, lambda optimizer: optimizer.given),
}


@pytest.mark.parametrize("micro", [1, 3])
@pytest.mark.parametrize("given", GIVEN)
def test_steps_of_foreign_optimizers_are_measured_from_the_first_on(given, micro):
    model, (kind, give) = new_model(), GIVEN[given]
    optimizer, oracle = kind(model.parameters()), Oracle(model.named_parameters())
    with watch(model, give(optimizer)) as watched:
        for step, batch in enumerate(batches(4, micro), 1):
            oracle.begin()
            for x in batch:
                (model(x).square().mean() / micro).backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            oracle.end()
            watched.step()
            model.zero_grad()
            assert watched.inspector.state.step == step
            assert_right(watched, oracle)
        assert set(watched.inspector.gradient_moments.values()) == {"at_step"}


@pytest.mark.parametrize("compiled", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_steps_that_are_not_observed_are_counted_and_do_not_reach_into_those_that_are(compiled):
    model = new_model()
    optimizer, oracle = Sign(model.parameters()), Oracle(model.named_parameters())
    run = torch.compile(model, backend="aot_eager") if compiled else model
    with watch(run, optimizer, every=3, tick_every=3) as watched:
        for step, (x,) in enumerate(batches(9), 1):
            oracle.begin()
            model.zero_grad()
            run(x).square().mean().backward()
            optimizer.step()
            oracle.end()
            watched.step()
            if step % 3 == 0:
                assert_right(watched, oracle)
        assert (watched.inspector.state.passes, watched.inspector.state.step) == (9, 9)


def test_verbs_do_nothing_where_watching_is_switched_off(monkeypatch):
    monkeypatch.setenv("MONITORCH", "off")
    tensors = bank()
    with watch(parameters=tensors) as watched:
        for _ in range(3):
            watched.forward()
            loss_of(tensors).backward()
            watched.step()
        assert (watched.inspector.state.step, watched.records()) == (0, [])


def test_training_is_the_same_with_and_without():
    ends = []
    for is_watched in (False, True):
        model = new_model()
        optimizer, random = Sign(model.parameters()), []
        watched = watch(model, optimizer) if is_watched else None
        for (x,) in batches(5):
            model.zero_grad()
            if watched is not None:
                watched.forward()
            nn.functional.dropout(model(x), 0.5).square().mean().backward()
            optimizer.step()
            if watched is not None:
                watched.step()
            random.append(torch.rand(1).item())
        if watched is not None:
            watched.close()
        ends.append((random, [own.detach().numpy().tobytes() for own in model.parameters()]))
    assert ends[0] == ends[1]


def test_without_an_optimizer_gradients_are_read_at_steps_as_soon_as_the_user_tells_of_them():
    model = new_model()
    optimizer, oracle = Sign(model.parameters()), Oracle(model.named_parameters())
    with watch(model) as watched:
        for step, batch in enumerate(batches(5, 2), 1):
            oracle.begin()
            model.zero_grad()
            for x in batch:
                model(x).square().mean().backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)
            optimizer.step()
            oracle.end()
            watched.step()
            assert watched.inspector.state.step == step
            if step > 2:  # the second tick still holds what came after the first one
                assert_right(watched, oracle, updates=False)


@pytest.mark.parametrize("given", [None, "by hand"])
def test_a_stored_run_without_an_optimizer_tells_once_how_to_see_updates(given, tmp_path, capsys):
    model = new_model()
    with monitorch.watch(model, given, folder=tmp_path) as watched:
        for (x,) in batches(3):
            model(x).square().mean().backward()
            watched.step()
    told = capsys.readouterr().out.count("parameter updates are not measured: pass the optimizer")
    assert told == (given is None)


def test_a_watch_whose_steps_nobody_tells_of_says_so_once():
    model = new_model()
    optimizer = Sign(model.parameters())
    watched = watch(model, optimizer)

    def train():
        for (x,) in batches(6):
            model.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()

    with pytest.warns(MonitorchWarning, match=r"no step, .*call step\(\) of the watch.*of Sign are not") as told:
        train()
    assert len(told) == 1
    assert (watched.inspector.state.passes, watched.inspector.state.step) == (6, 0)
    watched.close()


def test_parameters_that_change_between_steps_are_no_update():
    """As when the weights of an average are put in for an evaluation and stay."""
    model = new_model()
    optimizer, oracle = Sign(model.parameters()), Oracle(model.named_parameters())
    with watch(model, optimizer) as watched:
        for (x,) in batches(4):
            with torch.no_grad():
                for own in model.parameters():
                    own *= 1.5
            oracle.begin()
            model.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            oracle.end()
            watched.step()
            assert_right(watched, oracle)


class Siamese(nn.Module):
    """A root that is never called, whose first layer runs twice in a pass."""

    def __init__(self):
        super().__init__()
        self.encoder, self.head = nn.Linear(3, 4), nn.Linear(4, 1)

    def compare(self, x):
        return (self.head(self.encoder(x).tanh()) - self.head(self.encoder(-x).tanh())).square().mean()


@pytest.mark.parametrize("kind", [torch.optim.SGD, Sign], ids=["torch", "foreign"])
@pytest.mark.parametrize("was_called", [False, True])
def test_passes_of_a_root_that_is_never_called_begin_where_the_user_says(kind, was_called):
    torch.manual_seed(0)
    model, losses = Siamese(), []
    optimizer, oracle = kind(model.parameters()), Oracle(model.named_parameters())
    with watch(model, optimizer) as watched:
        if was_called:
            model.compare(torch.ones(2, 3))  # passes began with the first layer
        before = watched.inspector.state.passes
        assert before == 2 * was_called
        for step, (x,) in enumerate(batches(5), 1):
            oracle.begin()
            model.zero_grad()
            watched.forward()
            loss = model.compare(x)
            watched.push_loss(loss)
            loss.backward()
            optimizer.step()
            oracle.end()
            if kind is Sign:
                watched.step()
            losses.append(loss.item())
            assert (watched.inspector.state.passes - before, watched.inspector.state.step) == (step, step)
            assert_right(watched, oracle)
            (found,) = (r for r in watched.records() if r.statistic == "train_loss mean")
            assert (found.step, found.value) == (step, pytest.approx(losses[-1]))


def test_an_evaluation_that_the_user_tells_of_is_none_of_training():
    model = Siamese()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, tick_every=2) as watched:
        for (x,) in batches(4):
            model.zero_grad()
            watched.forward()
            model.compare(x).backward()
            optimizer.step()
            with torch.no_grad():
                watched.forward()
                watched.push_loss(model.compare(x), train=False)
            model.eval()
            watched.forward()
            model.compare(x)
            model.train()
        assert (watched.inspector.state.passes, watched.inspector.state.step) == (4, 4)
    assert [r.step for r in watched.records() if r.statistic == "val_loss mean"] == [4]


def test_telling_of_passes_late_when_most_steps_are_idle_loses_none():
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, lenses=[ParameterNorm()], every=50, tick_every=1000) as watched:
        for is_told in (False, True):
            for _ in range(120):
                if is_told:
                    watched.forward()
                model(torch.ones(2, 3)).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        assert (watched.inspector.state.passes, watched.inspector.state.step) == (240, 240)


def test_a_call_of_the_root_after_forward_still_tells_of_its_inputs():
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer) as watched:
        for (x,) in batches(3):
            watched.forward()
            model(x).square().mean().backward()
            optimizer.step()
        names = {(r.lens, r.statistic) for r in watched.records()}
        assert watched.inspector.state.passes == 3
    assert ("LoggedScalars", "samples per second mean") in names
    assert any(lens == "InputStatistics" for lens, _ in names)


def bank():
    torch.manual_seed(0)
    return {
        "scale": torch.randn(3, requires_grad=True),
        "codes.left": nn.Parameter(torch.randn(2, 4)),
        "codes.right": torch.randn(5, requires_grad=True),
    }


def loss_of(tensors):
    return sum((own.double() ** 4).sum() for own in tensors.values())


@pytest.mark.parametrize("kind", [torch.optim.Adam, Sign, None], ids=["torch", "foreign", "none"])
@pytest.mark.parametrize("tells", [True, False])
def test_a_bank_of_parameters_needs_no_model(kind, tells):
    tensors = bank()
    optimizer, oracle = (kind or Sign)(tensors.values()), Oracle(tensors)
    with watch(parameters=tensors, optimizer=None if kind is None else optimizer) as watched:
        assert watched.inspector.layers == ["", "codes"]
        for step in range(1, 5):
            for own in tensors.values():
                own.grad = None
            if tells:
                watched.forward()
            oracle.begin()
            loss = loss_of(tensors)
            loss.backward()
            if tells:
                watched.push_loss(loss)
            optimizer.step()
            oracle.end()
            if kind is not torch.optim.Adam:
                watched.step()
            assert watched.inspector.state.step == step
            # nobody told when the first step began
            assert_right(watched, oracle, updates=tells or step > 1 or kind is torch.optim.Adam)
            found = [(r.step, r.value) for r in watched.records() if r.statistic == "train_loss mean"]
            assert found == ([(step, pytest.approx(loss.item()))] if tells else [])
    assert set(shown(watched, "ParameterNorm", "Parameter Norm")) == set(tensors)


@pytest.mark.parametrize("kind", [torch.optim.SGD, Sign], ids=["torch", "foreign"])
def test_a_bank_stands_beside_a_model_under_names_of_its_own(kind):
    model, tensors = new_model(), bank()
    named = dict(model.named_parameters()) | {f"parameters.{name}": own for name, own in tensors.items()}
    optimizer, oracle = kind([*model.parameters(), *tensors.values()]), Oracle(named)
    with watch(model, optimizer, parameters=tensors) as watched:
        for (x,) in batches(3):
            oracle.begin()
            for own in named.values():
                own.grad = None
            (model(x * tensors["scale"]).square().mean() + loss_of(tensors)).backward()
            optimizer.step()
            oracle.end()
            if kind is Sign:
                watched.step()
            assert_right(watched, oracle)
        assert watched.inspector.layers == ["", "0", "1", "2", "parameters", "parameters.codes"]


def test_a_tensor_that_the_model_has_is_shown_once():
    model = new_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with watch(model, optimizer, parameters={"again": model[0].weight}) as watched:
        model(torch.ones(2, 3)).square().mean().backward()
        optimizer.step()
    assert set(shown(watched, "ParameterNorm", "Parameter Norm")) == {name for name, _ in model.named_parameters()}


def test_a_stored_bank_is_diagnosed_and_resumed(tmp_path):
    tensors, states = bank(), []
    for resume in (False, True):
        optimizer = Sign(tensors.values())
        watched = monitorch.watch(
            parameters=tensors, optimizer=optimizer, run="bank", folder=tmp_path, resume=resume, every=1, tick_every=2
        )
        if states:
            watched.load_state_dict(states[-1])
        for _ in range(4):
            for own in tensors.values():
                own.grad = None
            watched.forward()
            loss_of(tensors).backward()
            optimizer.step()
            watched.step()
        states.append(watched.state_dict())
        watched.close()
    with open_run(tmp_path / "bank") as run:
        assert (run.status, run.last_step) == ("finished", 8)
        assert run.meta["optimizers"] == [{"kind": "Sign"}]
        assert run.meta["model"] == {"kind": "ParameterBank", "parameters": 16, "trained parameters": 16}
        assert "findings" in run.meta


def test_a_watch_of_a_bank_keeps_it_until_it_is_closed():
    tensors = bank()
    watched = watch(parameters=tensors)
    known = weakref.ref(tensors.pop("scale"))
    gc.collect()
    assert known() is not None
    watched.close()
    gc.collect()
    assert known() is None
    with pytest.warns(MonitorchWarning, match=r"this watch is closed, so forward\(\) does nothing"):
        watched.forward()


def test_a_probe_cannot_copy_a_foreign_optimizer():
    model = new_model()
    with watch(model, Sign(model.parameters())) as watched:
        with pytest.raises(OptionError, match="cannot make an optimizer like 'Sign' for a copy"):
            watched.probe(torch.ones(4, 3), torch.ones(4, 2), loss_fn=nn.MSELoss(), overfit=3)
        report = watched.probe(torch.ones(4, 3), torch.ones(4, 2), loss_fn=nn.MSELoss())
    assert report.train_loss == pytest.approx(report.eval_loss)
