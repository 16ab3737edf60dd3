"""Watching a model with one call: which lenses, which ticks, and what is left afterwards."""

import copy
import gc
import pickle
import weakref

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters

import monitorch
from monitorch import model_watch
from monitorch.errors import LifecycleError, MonitorchWarning, OptionError
from monitorch.lens import OutputNorm, ParameterGradientGeometry, ParameterNorm
from monitorch.visualizer.record_sink import RecordSink


class Collector(RecordSink):
    """Keeps every number by tick, tag, layer and statistic."""

    def __init__(self):
        self.numbers, self.ticks, self.closed = {}, 0, False

    def write(self, records):
        self.numbers.update({(r.epoch, r.tag, r.layer, r.statistic): r.value for r in records})

    def flush(self):
        self.ticks += 1

    def close(self):
        self.closed = True

    def line(self, tag, layer, statistic="mean"):
        return {e: v for (e, *rest), v in self.numbers.items() if rest == [tag, layer, statistic]}

    def layers_of(self, tag):
        return {layer for _, seen, layer, _ in self.numbers if seen == tag}


class OwnLoss(nn.Module):
    """A model that returns its loss, as those of transformers do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(3, 1)

    def forward(self, inputs):
        prediction = self.layer(inputs)
        return {"loss": prediction.pow(2).mean(), "logits": prediction}


class Training:
    """A model with what trains it, watched by a collector."""

    def __init__(self):
        self.model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.loss_fn = nn.MSELoss()
        self.shown = Collector()
        self.losses, self.gradients = [], []

    def watch(self, optimizer=None, **options):
        return monitorch.watch(self.model, optimizer, **{"visualizer": self.shown, "tick_every": 4} | options)

    def run(self, steps):
        for step in range(steps):
            self.model.zero_grad()
            prediction = self.model(torch.linspace(-1, 1, 12).reshape(4, 3) * (step + 1))
            loss = self.loss_fn(prediction, torch.ones(4, 1))
            loss.backward()
            self.losses.append(loss.item())
            self.gradients.append(np.linalg.norm(self.model[0].weight.grad.double().numpy()))
            self.optimizer.step()

    def evaluate(self):
        self.model.eval()
        with torch.no_grad():
            loss = self.loss_fn(self.model(torch.ones(4, 3)), torch.ones(4, 1)).item()
        self.model.train()
        return loss

    def count_hooks(self):
        modules = [*self.model.modules(), self.loss_fn]
        parts = [*modules, *self.model.parameters(), self.optimizer]
        hooks = [getattr(part, name) for part in parts for name in dir(part) if name.endswith("_hooks")]
        return sum(len(found) for found in hooks if isinstance(found, dict))


@pytest.fixture
def training():
    return Training()


def means(samples, size=4):
    return {n + 1: np.mean(samples[i : i + size]) for n, i in enumerate(range(0, len(samples), size))}


@pytest.mark.parametrize("with_optimizer", [True, False])
@pytest.mark.parametrize("steps", [1, 4, 10])
def test_ticks_come_every_few_steps_and_the_rest_at_the_end(training, with_optimizer, steps):
    with training.watch(training.optimizer if with_optimizer else None, loss_fn=training.loss_fn) as watch:
        training.run(steps)
        assert training.shown.ticks == (steps if with_optimizer else steps - 1) // 4
    assert watch.inspector.visualizer is training.shown
    assert training.shown.ticks == -(-steps // 4)
    assert training.shown.line("Loss", "Loss", "train_loss mean") == pytest.approx(means(training.losses))
    assert training.shown.line("Parameter Gradient Norm", "0.weight") == pytest.approx(means(training.gradients))


def test_updates_are_shown_for_each_of_several_optimizers_and_the_first_one_counts(training):
    first, second = (torch.optim.SGD(training.model[i].parameters(), lr=0.1) for i in (0, 2))
    training.optimizer = second
    with training.watch([first, second]):
        training.run(5)
        assert training.shown.ticks == 0
        first.step()
    assert training.shown.ticks == 1
    assert training.shown.layers_of("Parameter Update Norm") == {"0.weight", "0.bias", "2.weight", "2.bias"}


def test_accumulated_and_evaluated_passes_are_no_steps_of_an_optimizer(training):
    with training.watch(training.optimizer, tick_every=2):
        for _ in range(3):
            for _ in range(5):
                training.model(torch.ones(2, 3)).sum().backward()
            training.evaluate()
            training.optimizer.step()
        assert training.shown.ticks == 1


def test_without_an_optimizer_evaluation_belongs_to_the_steps_before_it(training):
    with training.watch(loss_fn=training.loss_fn, tick_every=2):
        training.run(2)
        loss = training.evaluate()
        training.run(1)
    assert training.shown.line("Loss", "Loss", "val_loss mean") == pytest.approx({1: loss})


def test_a_step_with_a_closure_is_one_step(training):
    training.optimizer = torch.optim.LBFGS(training.model.parameters(), max_iter=5)

    def closure():
        training.optimizer.zero_grad()
        loss = training.loss_fn(training.model(torch.ones(4, 3)), torch.ones(4, 1))
        loss.backward()
        return loss

    with training.watch(training.optimizer, tick_every=2):
        for _ in range(3):
            training.optimizer.step(closure)
        assert training.shown.ticks == 1


def test_nothing_new_means_no_tick_at_the_end(training):
    with training.watch(training.optimizer):
        training.run(8)
    with training.watch(training.optimizer):
        pass
    assert training.shown.ticks == 2


def test_evaluation_after_the_last_tick_is_shown_at_the_end(training):
    with training.watch(training.optimizer, loss_fn=training.loss_fn):
        training.run(4)
        loss = training.evaluate()
    assert training.shown.line("Loss", "Loss", "val_loss mean") == pytest.approx({2: loss})


@pytest.mark.parametrize("steps", [4, 5])
def test_among_other_processes_only_steps_make_a_last_tick(training, steps, monkeypatch):
    monkeypatch.setattr(model_watch, "_has_peers", lambda: True)
    with training.watch(training.optimizer):
        training.run(steps)
        training.evaluate()  # perhaps by one process only, and a tick would wait for the others
    assert training.shown.ticks == (steps + 3) // 4


def test_tick_by_hand_begins_a_new_one(training):
    with training.watch(training.optimizer) as watch:
        training.run(3)
        watch.tick()
        training.run(3)
        assert training.shown.ticks == 1
        training.run(1)
        assert training.shown.ticks == 2
    assert training.shown.line("Parameter Gradient Norm", "0.weight")[1] == pytest.approx(
        np.mean(training.gradients[:3])
    )


def test_logged_numbers_are_shown(training):
    with training.watch() as watch:
        watch.log(accuracy=0.25)
        watch.log(accuracy=0.75)
    assert [value for (_, _, _, name), value in training.shown.numbers.items() if "accuracy" in name] == [0.5]


def test_loss_in_the_output_needs_no_loss_fn():
    model, shown = OwnLoss(), Collector()
    with monitorch.watch(model, visualizer=shown):
        loss = model(torch.ones(2, 3))["loss"]
    assert shown.line("Loss", "Loss", "train_loss mean") == pytest.approx({1: loss.item()})


STANDARD = "LossMetrics OutputNorm OutputActivation OutputGradientGeometry ParameterGradientGeometry"


@pytest.mark.parametrize(
    ("with_optimizer", "options", "expected"),
    [
        (True, {}, f"{STANDARD} ParameterUpdateGeometry ParameterNorm"),
        (False, {}, f"{STANDARD} ParameterNorm"),
        (True, {"depth": 0}, "LossMetrics OutputGradientGeometry"),
    ],
    ids=["optimizer", "no optimizer", "not deep"],
)
def test_standard_lenses_by_default(training, with_optimizer, options, expected):
    with training.watch(training.optimizer if with_optimizer else None, **options) as watch:
        assert [type(lens).__name__ for lens in watch.inspector.lenses] == expected.split()


def test_a_list_of_lenses_is_taken_as_it_is(training):
    lenses = [OutputNorm(), ParameterNorm()]
    with training.watch(lenses=lenses) as watch:
        assert watch.inspector.lenses is lenses


def test_lenses_of_a_list_may_find_nothing_but_say_so():
    with pytest.warns(MonitorchWarning, match="OutputNorm found no layer"):
        monitorch.watch(nn.Linear(1, 1), lenses=[OutputNorm()], visualizer="dummy").close()


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({"lenses": "all"}, OptionError, "lenses='all' is unknown; choose 'standard' or pass a list"),
        ({"lenses": ["ParameterNorm"]}, OptionError, "is no lens"),
        ({"lenses": [ParameterNorm()], "loss_fn": nn.MSELoss()}, OptionError, "into your list instead"),
        ({"loss_fn": nn.functional.mse_loss}, OptionError, "loss_fn takes a module"),
        ({"tick_every": 0}, OptionError, "tick_every=0 must be a whole number of steps, at least 1"),
        ({"tick_every": True}, OptionError, "tick_every=True must be"),
        ({"tick_every": 2.5}, OptionError, r"tick_every=2\.5 must be"),
        ({"optimizer": "adam"}, OptionError, "optimizer takes a torch.optim.Optimizer or a list of them, not 'adam'"),
        ({"optimizer": [torch.optim.SGD]}, OptionError, "optimizer takes a torch.optim.Optimizer"),
        ({"every": 0}, OptionError, "every=0 must be a whole number"),
        ({"budget": 2}, OptionError, "budget=2 must be a share of time"),
        ({"visualizer": "paper"}, OptionError, "visualizer='paper' is unknown"),
        ({"depth": "deep"}, OptionError, "depth takes a whole number"),
        ({"depht": 1}, TypeError, "depht"),
        ({"module": nn.Linear(1, 1)}, TypeError, "module"),
    ],
)
def test_bad_options_are_refused_and_leave_the_model_alone(training, options, error, text):
    with pytest.raises(error, match=text):
        training.watch(**options)
    gc.collect()
    assert training.count_hooks() == 0


@pytest.mark.parametrize("model", ["model", None, torch.ones(1)])
def test_what_is_no_model_is_refused(model):
    with pytest.raises(OptionError, match=r"a model is a torch\.nn\.Module"):
        monitorch.watch(model)


def test_after_the_end_nothing_is_left(training):
    with training.watch(training.optimizer, loss_fn=training.loss_fn) as watch:
        training.run(5)
        assert training.count_hooks() > 0
    assert training.count_hooks() == 0
    ticks = training.shown.ticks
    training.run(10)
    watch.close()
    assert training.shown.ticks == ticks


@pytest.mark.parametrize("call", [lambda watch: watch.tick(), lambda watch: watch.log(a=1.0)])
def test_a_closed_watch_says_so(training, call):
    watch = training.watch()
    watch.close()
    with pytest.raises(LifecycleError, match="this watch is closed"):
        call(watch)


def fail_in_block(training, error):
    with training.watch(training.optimizer):
        training.run(2)
        raise error("by the user")


@pytest.mark.parametrize("error", [ZeroDivisionError, KeyboardInterrupt])
def test_an_error_in_the_block_comes_out_after_the_last_tick(training, error):
    with pytest.raises(error, match="by the user"):
        fail_in_block(training, error)
    assert training.shown.line("Parameter Gradient Norm", "0.weight") == pytest.approx(means(training.gradients))
    assert training.count_hooks() == 0


def test_an_error_in_one_of_several_processes_makes_no_tick(training, monkeypatch):
    monkeypatch.setattr(model_watch, "_has_peers", lambda: True)
    with pytest.raises(ZeroDivisionError, match="by the user"):
        fail_in_block(training, ZeroDivisionError)
    assert training.shown.ticks == 0
    assert training.count_hooks() == 0


class Broken(Collector):
    """A visualizer that cannot show anything."""

    def flush(self):
        raise ValueError("no ink")


def test_a_tick_that_fails_is_told_once_and_training_goes_on(training):
    training.shown = Broken()
    watch = training.watch(training.optimizer)
    with pytest.warns(MonitorchWarning, match="a tick failed: ValueError: no ink") as caught:
        training.run(12)
    watch.tick()
    assert len(caught) == 1


def test_a_tick_that_fails_is_an_error_on_request(training):
    training.shown = Broken()
    training.watch(training.optimizer, on_error="raise")
    with pytest.raises(ValueError, match="no ink"):
        training.run(4)


def test_a_last_tick_that_fails_does_not_hide_the_error_of_the_block(training):
    training.shown = Broken()
    with pytest.warns(MonitorchWarning, match="no ink"), pytest.raises(ZeroDivisionError, match="by the user"):
        fail_in_block(training, ZeroDivisionError)
    assert training.count_hooks() == 0


def test_a_last_tick_that_fails_leaves_no_hook(training):
    training.shown = Broken()
    watch = training.watch(training.optimizer)
    training.run(1)
    with pytest.warns(MonitorchWarning, match="no ink"):
        watch.close()
    assert training.count_hooks() == 0


def test_plain_call_lasts_without_being_kept(training):
    training.watch(training.optimizer)
    gc.collect()
    training.run(8)
    assert training.shown.ticks == 2


def test_watch_goes_with_its_model(training):
    watch = weakref.ref(training.watch(training.optimizer, loss_fn=training.loss_fn))
    training.run(5)
    model = weakref.ref(training.model)
    del training.model
    gc.collect()
    assert model() is None
    assert watch() is None
    assert len(training.optimizer._optimizer_step_post_hooks) == 0
    assert len(training.loss_fn._forward_hooks) == 0
    training.optimizer.step()


def test_watching_again_closes_the_first_watch(training):
    first = training.watch(training.optimizer)
    hooks = training.count_hooks()
    training.run(1)
    second = training.watch(training.optimizer)
    assert (training.shown.ticks, training.count_hooks()) == (1, hooks)
    assert "closed" in repr(first)
    assert "closed" not in repr(second)
    second.close()
    assert training.count_hooks() == 0


def test_the_same_lenses_may_watch_again(training):
    lenses = [ParameterGradientGeometry()]
    for _ in range(2):
        training.watch(training.optimizer, lenses=lenses)
        training.run(4)
    assert training.shown.line("Weight Gradient Norm", "0") == pytest.approx({1: np.mean(training.gradients[4:])})


def test_other_hooks_of_the_user_stay(training):
    calls = []
    training.model.register_forward_pre_hook(lambda *_: calls.append(1))
    training.optimizer.register_step_post_hook(lambda *_: calls.append(2))
    with training.watch(training.optimizer):
        training.run(1)
    training.run(1)
    assert calls == [1, 2, 1, 2]


def test_switched_off_by_the_environment_nothing_happens(training, monkeypatch):
    monkeypatch.setenv("MONITORCH", "off")
    with training.watch(training.optimizer, loss_fn=training.loss_fn) as watch:
        assert training.count_hooks() == 0
        training.run(9)
        watch.log(anything=1.0)
        watch.tick()
    assert training.shown.numbers == {}


def test_training_is_not_changed():
    weights = []
    for watched in (False, True):
        torch.manual_seed(1)
        training = Training()
        if watched:
            training.watch(training.optimizer, loss_fn=training.loss_fn, tick_every=2)
        training.run(7)
        weights.append([parameter.detach().numpy().tobytes() for parameter in training.model.parameters()])
    assert weights[0] == weights[1]


def test_copies_and_pickles_get_a_stand_in_that_does_nothing(training):
    watch = training.watch()
    for copied in (copy.deepcopy(watch._pin), pickle.loads(pickle.dumps(watch._pin))):
        assert copied(training.model, ()) is None
    assert b"monitorch" not in pickle.dumps(watch._pin)
    assert not watch._has_news


@pytest.fixture
def _fresh_compiler():
    torch.compiler.reset()
    counters.clear()
    yield
    torch.compiler.reset()


# the compiler hides these warnings of its own, but cannot where warnings are errors
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
@pytest.mark.filterwarnings("ignore:.*should not be instantiated:DeprecationWarning")
@pytest.mark.usefixtures("_fresh_compiler")
@pytest.mark.parametrize("with_optimizer", [False, True])
def test_a_compiled_model_is_watched_in_one_graph(training, with_optimizer):
    compiled = torch.compile(training.model, backend="aot_eager", fullgraph=True)
    optimizer = training.optimizer if with_optimizer else None
    with monitorch.watch(compiled, optimizer, loss_fn=training.loss_fn, visualizer=training.shown, tick_every=2):
        for _ in range(5):
            compiled(torch.ones(2, 3)).sum().backward()
            training.optimizer.step()
        assert training.shown.ticks == 2
        compiled.eval()
        compiled(torch.ones(2, 3))
    assert training.count_hooks() == 0
    compiled.train()
    compiled(torch.ones(2, 3))
    assert training.shown.ticks == 3


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    "tracer",
    [
        lambda model, x: torch.export.export(model, (x,)),
        lambda model, x: torch.jit.trace(model, x, check_trace=False),
        lambda model, x: torch.func.vmap(model)(x),
    ],
    ids=["export", "trace", "vmap"],
)
def test_tracing_is_no_step(training, tracer):
    with training.watch():
        tracer(training.model, torch.ones(2, 3))
    assert training.shown.ticks == 0


def test_figures_are_there_after_the_end(training):
    with training.watch(training.optimizer, visualizer="matplotlib") as watch:
        training.run(8)
    visualizer = watch.inspector.visualizer
    assert visualizer._history.epochs == (1, 2)
    assert visualizer.show_fig().axes
    visualizer.reset_fig()


def test_a_visualizer_that_the_watch_made_is_closed_and_one_of_the_user_is_not(training, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with training.watch(visualizer="tensorboard") as watch:
        training.run(1)
    assert watch.inspector.visualizer._closed
    training.watch().close()
    assert not training.shown.closed


def test_the_inspector_is_told_of_optimizer_and_cadence(training):
    with training.watch(training.optimizer, every=3, budget=0.1) as watch:
        assert watch.inspector.optimizers == (training.optimizer,)
        assert (watch.inspector.state.cadence.every, watch.inspector.state.cadence.budget) == (3, 0.1)
    with training.watch() as watch:
        assert watch.inspector.optimizers == ()
        assert (watch.inspector.state.cadence.every, watch.inspector.state.cadence.budget) == (1, None)


def test_repr_counts_ticks(training):
    watch = training.watch(training.optimizer)
    training.run(9)
    assert repr(watch) == "Watch(Sequential, tick_every=4, ticks=2)"
    watch.close()
    assert repr(watch) == "Watch(Sequential, tick_every=4, ticks=3, closed)"
