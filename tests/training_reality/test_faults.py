"""Whatever fails inside the package, training goes on bit-identically and one message says so.

Functions that fail are not listed here: a first run notes every function of the package that is called while a model is
trained, and then each of them in turn is made to fail at every call. That takes a minute: without the slow tests, only
the one of each file that is called first fails, which is nearest to where the file is used.
"""

import gc
import sys
from pathlib import Path
from types import FunctionType, MappingProxyType

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import monitorch
from monitorch import PyTorchInspector, lens
from monitorch.engine import graph, reports
from monitorch.engine.compilation import HookedMethod
from monitorch.preprocessor import AbstractBackwardPreprocessor, AbstractForwardPreprocessor
from tests.marks import slow

SOURCE = str(Path(monitorch.__file__).parent)
INJECTED = "injected"
# what catches and tells, and what the compiler may call while it traces: nothing could catch an error there
GUARDS = {reports.tell, reports.is_news, reports.cause_of, monitorch.errors.warn}
GUARD_CODES = {function.__code__ for function in GUARDS}
TRACED = {"is_compiled", "is_exported", "pick_tensor", "kind_of_pass", "GraphHook.__call__"}
# what catches the errors of all that it calls, and does nothing else
CATCHING = {graph._deliver.__qualname__}
X = torch.linspace(-1, 1, 24).reshape(8, 3)


def is_ours(frame):
    return frame is not None and frame.f_code.co_filename.startswith(SOURCE)


def is_behind_a_guard(frame):
    """Whether a call is made by the package, and neither by what tells of errors nor by what only stands for a hook."""
    if not is_ours(frame.f_back) or frame.f_back.f_code is HookedMethod.__call__.__code__:
        return False
    caller = frame.f_back
    while is_ours(caller):
        if caller.f_code in GUARD_CODES:
            return False
        caller = caller.f_back
    return True


def is_called_through(file, frame):
    while frame is not None and not frame.f_code.co_filename.endswith(file):
        frame = frame.f_back
    return frame is not None


class Calls:
    """Notes which functions of the package are called by others of it, and never from outside.

    Args:
        through: only those that are called, by whatever way, through this file.
    """

    def __init__(self, through):
        self.inside, self.outside, self._through = {}, set(), through

    def __enter__(self):
        sys.setprofile(self._note)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _note(self, frame, event, _):
        if event == "call" and is_ours(frame):
            if not is_behind_a_guard(frame):
                self.outside.add(frame.f_code)
            elif is_called_through(self._through, frame):
                self.inside.setdefault(frame.f_code)

    @property
    def functions(self):
        """By name, in the order of their first calls: all functions that have one of the codes."""
        codes = [code for code in self.inside if code not in self.outside | GUARD_CODES]
        found = {}
        gc.unfreeze()  # what was frozen is not listed
        for thing in gc.get_objects():
            if type(thing) is FunctionType and thing.__code__ in codes and thing.__qualname__ not in TRACED | CATCHING:
                name = f"{thing.__module__.removeprefix('monitorch.')}.{thing.__qualname__}"
                found.setdefault((name, thing.__code__), []).append(thing)
        gc.freeze()
        return {
            name: functions for (name, code), functions in sorted(found.items(), key=lambda one: codes.index(one[0][1]))
        }


def fail(*_, **__):
    ("calls",).append(True)
    raise RuntimeError("injected")


class Failing:
    """Makes functions raise while it is open, and counts how often they do."""

    def __init__(self, functions):
        self._functions, self.calls = functions, []

    def __enter__(self):
        self._codes = [function.__code__ for function in self._functions]
        # the code runs in another module: what it writes to has to be one of its constants
        constants = tuple(self.calls if one == ("calls",) else one for one in fail.__code__.co_consts)
        for function in self._functions:
            free = function.__code__.co_freevars
            function.__code__ = fail.__code__.replace(co_freevars=free, co_consts=constants)
        return self

    def __exit__(self, *_):
        for function, code in zip(self._functions, self._codes, strict=True):
            function.__code__ = code


class OwnPreprocessor(AbstractForwardPreprocessor, AbstractBackwardPreprocessor):
    """One that gatherers cannot measure for: it is handed tensors."""

    value = MappingProxyType({})

    def process_fw(self, name, module, layer_input, layer_output):
        layer_output.detach().sum()

    def process_bw(self, name, module, grad_input, grad_output):
        grad_output[0].sum()


class Net(nn.Module):
    def __init__(self, reentrant=False):
        super().__init__()
        torch.manual_seed(1)
        self.first, self.act, self.drop, self.last = nn.Linear(3, 5), nn.ReLU(), nn.Dropout(0.2), nn.Linear(5, 1)
        self.reentrant = reentrant

    def forward(self, x):
        if self.reentrant:
            hidden = checkpoint(lambda x: self.act(self.first(x)), x.requires_grad_(), use_reentrant=True)
        else:
            hidden = self.act(self.first(x))
        return self.last(self.drop(hidden))


class Scenario:
    """A model, how it is watched and how it is trained; six steps, an evaluation, and a tick after every other step."""

    options = MappingProxyType({})
    reentrant = False
    through = ".py"

    def __init__(self):
        self.model, self.loss_fn = Net(self.reentrant), nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.called = self.model
        self.inspector = None

    def watch(self):
        own = {"optimizer": self.optimizer} if self.options.get("optimizer", True) else {}
        options = {name: value for name, value in self.options.items() if name != "optimizer"}
        self.inspector = PyTorchInspector(self.lenses(), module=self.called, visualizer="dummy", **own, **options)

    def lenses(self):
        return [
            lens.LossMetrics(loss_fn=self.loss_fn),
            lens.OutputNorm(include=nn.Linear),
            lens.OutputActivation(),
            lens.OutputGradientGeometry(skip_activation=False),
            lens.ParameterGradientGeometry(),
            lens.ParameterGradientActivation(),
            lens.ParameterUpdateGeometry(self.optimizer),
            lens.ParameterNorm(),
            lens.ParameterCond(),
        ]

    def step(self, number):
        self.optimizer.zero_grad()
        self.loss_fn(self.called(X.clone()), X[:, :1]).backward()
        self.optimizer.step()

    def train(self):
        torch.manual_seed(2)
        for number in range(6):
            self.step(number)
            if self.inspector is not None and number % 2:
                self.inspector.push_loss(1.0, train=True)
                self.inspector.log(rate=0.1)
                self.inspector.tick_epoch()
            if number == 3:
                with torch.no_grad():
                    self.loss_fn(self.called.eval()(X.clone()), X[:, :1])
                self.called.train()
        return [parameter.detach().clone() for parameter in self.model.parameters()]


class EveryStep(Scenario):
    """All steps are observed."""


class EveryThird(Scenario):
    options = MappingProxyType({"every": 3})


class Quiet(Scenario):
    """Nearly all steps are idle, and nobody is told of them; losses are watched by themselves, too."""

    options = MappingProxyType({"every": 40})


class WithoutOptimizer(Scenario):
    options = MappingProxyType({"optimizer": False})


class BeforeClip(Scenario):
    options = MappingProxyType({"gradient": "before_clip"})

    def step(self, number):
        self.optimizer.zero_grad()
        self.loss_fn(self.called(X.clone()), X[:, :1]).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 0.1)
        self.optimizer.step()


class Reentrant(Scenario):
    reentrant = True


class Scaled(Scenario):
    def __init__(self):
        super().__init__()
        self.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        self.options = {"grad_scaler": self.scaler}

    def step(self, number):
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss_fn(self.called(X.clone()), X[:, :1])).backward()
        if number == 2:
            self.model.last.bias.grad.fill_(torch.inf)
        self.scaler.step(self.optimizer)
        self.scaler.update()


class Closures(Scenario):
    def __init__(self):
        super().__init__()
        self.optimizer = torch.optim.LBFGS(self.model.parameters(), max_iter=2)

    def step(self, number):
        def closure():
            self.optimizer.zero_grad()
            loss = self.loss_fn(self.called(X.clone()), X[:, :1])
            loss.backward()
            return loss

        self.optimizer.step(closure)


class OwnLens(lens.OutputNorm):
    """A lens whose preprocessor is the user's."""

    def __init__(self):
        super().__init__()
        self.own = OwnPreprocessor()

    def _gather(self, module, module_name, inspector_state):
        from monitorch.gatherer import BackwardGatherer, FeedForwardGatherer

        self._gatherers.append(BackwardGatherer(module, [self.own], module_name, inspector_state))
        return FeedForwardGatherer(module, [self.own], module_name, inspector_state)


class OwnPreprocessors(Scenario):
    def lenses(self):
        return [OwnLens()]


class Sketched(Scenario):
    def lenses(self):
        return [lens.ParameterGradientGeometry(correlation="sketch")]


class Compiled(Scenario):
    """What operators call that stand in graphs; the rest is called as in eager training."""

    through = "engine/graph.py"

    def __init__(self):
        super().__init__()
        torch.compiler.reset()
        self.model.drop.p = 0.0  # a compiled model draws other random numbers
        self.called = torch.compile(self.model, backend="aot_eager")


class Watched(Scenario):
    """Through monitorch.watch, with ticks of its own."""

    def watch(self):
        self.watched = monitorch.watch(
            self.model, self.optimizer, loss_fn=self.loss_fn, every=1, tick_every=2, visualizer="dummy"
        )
        self.inspector = None  # the loop is untouched


class Reporting(Watched):
    """The loop tells the watch of its own numbers, evaluates now and then, and closes the watch."""

    watched = None

    def train(self):
        torch.manual_seed(2)
        for number in range(6):
            self.step(number)
            if self.watched is not None:
                self.watched.push_loss(torch.tensor(1.0))
                self.watched.log({"rate": 0.1}, step=number)
                self.watched.log(accuracy=0.5)
            if number in (1, 4):
                with torch.no_grad():
                    self.loss_fn(self.called.eval()(X.clone()), X[:, :1])
                self.called.train()
        if self.watched is not None:
            self.watched.tick()
            self.watched.close()
        return [parameter.detach().clone() for parameter in self.model.parameters()]


SLOW = (
    Reporting,
    EveryStep,
    Watched,
    EveryThird,
    Quiet,
    WithoutOptimizer,
    BeforeClip,
    Reentrant,
    Scaled,
    Closures,
    OwnPreprocessors,
    Sketched,
    Compiled,
)


def first_of_each_file(functions):
    return {found[0].__module__: (name, found) for name, found in reversed(functions.items())}.values()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("kind", "which"), [(Reporting, first_of_each_file), *(slow(kind, dict.items) for kind in SLOW)]
)
def test_training_goes_on_bit_identically_whatever_fails(kind, which, unexpected_warnings):
    expected = kind().train()
    rehearsal = kind()
    rehearsal.watch()
    with Calls(kind.through) as calls:
        rehearsal.train()
    assert not unexpected_warnings
    functions = calls.functions
    assert len(functions) > 20
    wrong = {}
    for name, failing in which(functions):
        reports._told_by_nobody.clear()
        scenario = kind()
        scenario.watch()
        try:
            with Failing(failing) as injected:
                found = scenario.train()
        except Exception as error:
            wrong[name] = f"raises {type(error).__name__}: {error}"
            continue
        finally:
            while torch._C._len_torch_function_stack():  # what takes a mode off may have been made to fail
                torch.overrides._pop_mode()
        told = [message for message in unexpected_warnings if INJECTED in message]
        unexpected_warnings.clear()
        if not all(map(torch.equal, found, expected)):
            wrong[name] = "changes the training"
        elif len(told) != bool(injected.calls):  # some results are kept and not computed again
            wrong[name] = f"is told {len(told)} times: {told}"
    assert not wrong, "\n".join(f"{name}: {what}" for name, what in wrong.items())
