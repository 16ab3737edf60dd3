"""Looks for what is wrong while a model trains."""

import copy
import math
import time
import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from uuid import uuid4

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.optim import Optimizer

from ..diagnosis import Finding, RunFacts, SampleHistory, diagnose, signals, verdict
from ..diagnosis.check import FACTS
from ..diagnosis.finding import moved
from ..diagnosis.history import LOSS, TRAINING, VALIDATION, Numbers, Parameter, Steps
from ..diagnosis.notes import notes_of
from ..diagnosis.symptoms import Symptom
from ..diagnosis.symptoms.gradients import NotFinite
from ..engine.inputs import OUTPUT, TARGET
from ..engine.meter import Request
from ..engine.optimizers import Owned
from ..engine.passes import TRAINING_PASSES
from ..engine.reports import tell
from ..inspector import PyTorchInspector
from ..inspector.hidden_parameters import HiddenParameters
from ..inspector.inspector_state import InspectorState
from ..inspector.module_tree import named_parameters, walk
from ..lens.base import Lens
from ..lens.options import ALL
from ..lens.parameter_lens import ParameterLens
from ..numerical.norms import l2_norm
from ..numerical.spread import relative_spreads
from ..numerical.waiting import Pending, Waiting
from ..preprocessor import activations, attention, data, loss_inputs, routing
from ..preprocessor.accumulating import AccumulatingPreprocessor, SeparateStatistics
from ..preprocessor.batch_norm import BatchNormShifts
from ..preprocessor.geometry import GradientGeometry
from ..preprocessor.global_norm import GlobalNorm
from ..preprocessor.layer_spread import LayerSpread
from ..preprocessor.outputs import OutputNorm
from ..preprocessor.parameter_difference_geometry import ParameterDifferenceRatio
from ..preprocessor.parameter_facts import FactSeries
from ..preprocessor.parameters import ParameterNorm
from ..preprocessor.run_numbers import ExplicitCall, RunNumbers
from ..store.types import FINDING, SEVERITIES, Event
from ..visualizer.store_visualizer import store_in

PAUSE = 50
"""The next diagnosis waits this many times as long as the last one took."""

DIAGNOSING = "looking for what is wrong"

SIGNALS: dict[type[AccumulatingPreprocessor], dict[str, str]] = {
    GradientGeometry: {"norm": signals.GRADIENT, "correlation": signals.GRADIENT_COSINE},
    GlobalNorm: {"norm": signals.ALL_GRADIENTS},
    ParameterDifferenceRatio: {"ratio": signals.UPDATE_RATIO},
    activations.Activations: {
        activations.ZEROS: signals.ZEROS,
        activations.SATURATION: signals.SATURATION,
        activations.DEATH: signals.DEATH,
    },
    LayerSpread: {"batch spread": signals.LAYER_BATCH_SPREAD},
    FactSeries: {
        "was_empty": signals.GRADIENT_EMPTY,
        "changed": signals.CHANGED,
        "rate": signals.RATE,
        "group": signals.GROUP,
    },
    data.DataStatistics: {
        data.MEAN: signals.INPUT_MEAN,
        data.STD: signals.INPUT_STD,
        data.FEATURE_SPREAD: signals.FEATURE_SPREAD,
    },
    loss_inputs.LossInputs: {
        data.MEAN: signals.LOSS_INPUT_MEAN,
        data.STD: signals.LOSS_INPUT_STD,
        data.RANGE: signals.LOSS_INPUT_RANGE,
        loss_inputs.ROW_SUM: signals.ROW_SUM,
        loss_inputs.PERPLEXITY: signals.PERPLEXITY,
    },
    attention.AttentionWeights: {
        "entropy": signals.ATTENTION_ENTROPY,
        "largest logit": signals.ATTENTION_LOGIT,
    },
    routing.ExpertShares: {routing.LEAST_USED: signals.EXPERT_SHARE},
    BatchNormShifts: {"mean shift": signals.BATCH_NORM_MEAN, "variance ratio": signals.BATCH_NORM_VARIANCE},
}
"""What a diagnosis takes from preprocessors: the signal of each statistic; see :func:`_signals_of`."""

NORMS = (signals.GRADIENT, signals.WEIGHT)
"""Signals that are norms, also where a lens shows them divided by the root of the number of elements."""


class StepLog:
    """Adds samples to the history, each with its step."""

    def __init__(self, history: SampleHistory, state: InspectorState) -> None:
        self._history, self._state = history, state

    def now(self) -> int:
        """The step that a new sample belongs to."""
        step = self._state.open_step()
        return self._state.step if step is None else step


class SignalLog(StepLog):
    """Takes the samples of one preprocessor.

    Args:
        named: the signal of each statistic.
        parameter: the parameter that is shown under the name of its module; None if names are already complete.
    """

    def __init__(
        self,
        history: SampleHistory,
        state: InspectorState,
        preprocessor: AccumulatingPreprocessor,
        named: dict[str, str],
        parameter: str | None = None,
    ) -> None:
        super().__init__(history, state)
        self._named, self._parameter = named, parameter
        self._statistics = preprocessor.statistics
        self._is_by_size = bool(getattr(preprocessor, "normalize", False))
        self._has_keys = isinstance(preprocessor, SeparateStatistics)
        # rows hold how many steps had ended before; for parameters, read between steps, that is the step itself
        self._is_before = hasattr(preprocessor, "request") and not isinstance(preprocessor, ParameterNorm)

    def keep(self, keys: list[Any], column: int, places: Steps, steps: Steps, samples: Numbers) -> None:
        """Add samples to the history."""
        if self._is_before:
            steps = steps + self._state.steps_have_ends
        if not self._has_keys:
            names = [self._name(key if isinstance(key, str) else str(key[0])) for key in keys]
            self._add(self._statistics[column], names, places, steps, samples)
            return
        kinds = np.array([key[1] for key in keys], object)[places]
        names = [self._name(str(key[0])) for key in keys]
        for statistic in set(kinds.tolist()):
            own = kinds == statistic
            self._add(statistic, names, places[own], steps[own], samples[own])

    def _name(self, layer: str) -> str:
        return layer if self._parameter is None else ".".join(filter(None, (layer, self._parameter)))

    def _add(self, statistic: str, names: Sequence[str], places: Steps, steps: Steps, samples: Numbers) -> None:
        signal = self._named.get(statistic)
        if signal is None:
            return
        if self._is_by_size and signal in NORMS:
            samples = samples * np.array([self._root_of_size(name) for name in names])[places]
        self._history.add(signal, names, places, steps, samples)

    def _root_of_size(self, parameter: str) -> float:
        """What a norm was divided by; NaN if that is not known."""
        known = self._history.facts.parameters.get(parameter)
        return math.nan if known is None else math.sqrt(known.size)


class LossLog(StepLog):
    """Collects losses; those computed by a module win over pushed ones."""

    seen: bool = False

    def __init__(
        self, history: SampleHistory, state: InspectorState, kinds: dict[str, str], rival: "LossLog | None"
    ) -> None:
        super().__init__(history, state)
        self._kinds, self._rival = kinds, rival

    def keep(self, keys: list[Any], column: int, places: Steps, steps: Steps, samples: Numbers) -> None:
        """Add losses to the history."""
        if self._rival is not None and self._rival.seen:
            return
        kinds = [self._kinds.get(key if isinstance(key, str) else key[0], "") for key in keys]
        known = np.array([bool(kinds[place]) for place in places.tolist()], bool)
        self.seen = self.seen or bool(known.any())
        self._history.add(LOSS, kinds, places[known], steps[known], samples[known])


class LiveDiagnosis:
    """Keeps the history of a run that is being watched, and its findings.

    Args:
        inspector: whose lenses to read.
        model: what is trained.
        loss_fn: what computes the loss.
        symptoms: what to look for.
    """

    def __init__(
        self,
        inspector: PyTorchInspector,
        model: nn.Module,
        optimizers: Sequence[Optimizer],
        loss_fn: nn.Module | None,
        symptoms: Sequence[Symptom],
    ) -> None:
        self._known_inspector, self._state, self._symptoms = weakref.ref(inspector), inspector.state, symptoms
        self.history = SampleHistory(_facts(model, optimizers, loss_fn, inspector))
        self._model = weakref.ref(model)
        self._findings: list[Finding] = []
        self.last_verdict: str | None = None
        """The verdict of the last diagnosis; None before the first. Reading it never waits."""
        self._looked_at, self._due = -1, 0.0
        self._noted: dict[str, Any] = {}
        self._told: dict[str, int] = {}
        """The severity already reported for each finding, by id. A finding that comes and goes is reported once, unless
        it gets worse."""
        self._id = uuid4().hex
        known = [lens for lens in inspector.lenses if isinstance(lens, Lens)]
        preprocessors = [part for lens in known for part in lens.preprocessors]
        self._targets = next((part for part in preprocessors if isinstance(part, loss_inputs.LossInputs)), None)
        self._spreads = [part for part in preprocessors if isinstance(part, LayerSpread)]
        own = [lens.by_parameter for lens in known if isinstance(lens, ParameterLens)]
        parameters = {id(part): name for named in own for name, part in named.items() if name != ALL}
        with_gradient = {name for named in own for name, part in named.items() if type(part) is GradientGeometry}
        self.history.facts.gradients_of = None if ALL in with_gradient else sorted(with_gradient)
        self._listen(preprocessors, inspector.pushed, parameters)
        self._first = FirstStep(self, optimizers[0]) if optimizers else None
        self._hidden: HiddenParameters | None = None

    def _listen(
        self, preprocessors: Iterable[AccumulatingPreprocessor], pushed: ExplicitCall, parameters: Mapping[int, str]
    ) -> None:
        kinds = {pushed.train_loss_str: TRAINING, pushed.non_train_loss_str: VALIDATION}
        rival = None
        for part in preprocessors:
            if isinstance(part, RunNumbers):
                rival = LossLog(self.history, self._state, kinds, None)
                part.log_to(rival)
            elif named := _signals_of(part):
                parameter = parameters.get(id(part))
                part.log_to(SignalLog(self.history, self._state, part, named, parameter))
        pushed.log_to(LossLog(self.history, self._state, kinds, rival))

    @property
    def findings(self) -> list[Finding]:
        """All findings so far, first causes first."""
        self._state.settle()
        if self._looked_at != self.history.step:
            self.look()
        return list(self._findings)

    def pending(self) -> list[Pending]:
        """What a tick should copy to the CPU."""
        return [] if self._first is None else self._first.pending()

    def resume(self) -> None:
        """The run continues an earlier one whose first steps are not known here."""
        self.history.facts.since = self._state.step

    def end_tick(self) -> None:
        """A tick is complete: take its facts, and diagnose unless that is too soon."""
        try:
            self._take_facts()
            self._store_samples()
            if time.perf_counter() >= self._due:
                self.look()
        except Exception as error:
            tell(self._state, DIAGNOSING, error)

    def look(self) -> None:
        """Look for everything now; new findings become events."""
        begin = time.thread_time()
        known = {one.id: one for one in self._findings}
        self._findings = diagnose(self.history, self._symptoms, known.values(), self._report, self._state.rest)
        self._looked_at, self.last_verdict = self.history.step, verdict(self._findings)
        for one in self._findings:
            if one.is_open and SEVERITIES.index(one.severity) > self._told.get(one.id, 0):
                self._tell(one)
        self._note()
        took = time.thread_time() - begin
        self._due = time.perf_counter() + PAUSE * took

    def _tell(self, one: Finding) -> None:
        is_worse, self._told[one.id] = one.id in self._told, SEVERITIES.index(one.severity)
        if one.symptom == NotFinite.id and self.history.facts.origin is not None:
            return  # the event about the first tensor has said so
        now = f"Now {'an error' if one.severity == 'error' else f'a {one.severity}'}. " if is_worse else ""
        body = {"text": now + one.explanation, "numbers": {"since": one.step}, FINDING: one.id}
        step = self.history.step  # the text gives the numbers of this step; the finding may be older
        self._state.events.put(Event(step, one.title, one.severity, time=time.time(), layer=one.layer, body=body))

    def close(self) -> None:
        """Look a last time, so that a stored run has all findings."""
        try:
            if self._looked_at != self.history.step:
                self.look()
        except Exception as error:
            tell(self._state, DIAGNOSING, error)

    def _note(self) -> None:
        """Show findings, and store them and facts where they have changed."""
        for part in getattr(self._visualizer, "parts", (self._visualizer,)):
            if hasattr(part, "show_findings"):
                part.show_findings(self._findings)
        store = store_in(self._visualizer)
        if store is None:
            return
        shown = [moved(one, store.first_step).to_json() for one in self._findings]
        facts: dict[str, Any] = {"notes": notes_of(self.history), FACTS: self._known_facts()}
        if self.history.step:  # a run without a step is not healthy
            facts["findings"] = shown
        for name, known in facts.items():
            if self._noted.get(name) != known:
                self._noted[name] = known
                store.note(**{name: known})

    def _known_facts(self) -> dict[str, Any]:
        return copy.deepcopy(self.history.facts.to_json())

    def _store_samples(self) -> None:
        store = store_in(self._visualizer)
        for signal, samples in self.history.samples.items() if store is not None else ():
            new = samples.take_new()
            if new is not None and store is not None:
                names = {"first": new.first, "names": new.names, "replaces": new.replaces}
                if not store.keep_samples(signal, new.samples, writer=self._id, **names):
                    samples.store_again()

    @property
    def _visualizer(self) -> Any:
        inspector = self._known_inspector()
        return None if inspector is None else inspector.visualizer

    def _report(self, symptom: str, error: Exception) -> None:
        tell(self._state, f"looking for {symptom}", error)

    def _take_facts(self) -> None:
        facts, origin = self.history.facts, self._state.first_not_finite
        store = store_in(self._visualizer)
        if store is not None:
            facts.since = facts.since or store.first_step  # a stored run that continues without a saved watch state
        order = None if self._state.engine is None else self._state.engine.origins.order
        if order and not facts.ran:
            facts.run_in_order(list(order))
        if origin is not None and facts.origin is None:
            between = None if origin.between is None else list(origin.between)
            facts.origin = {**origin._asdict(), "between": between}
        if self._targets is not None:
            facts.loss_shapes = facts.loss_shapes or {name: list(own) for name, own in self._targets.shapes.items()}
            outputs = facts.loss_shapes.get(OUTPUT)
            if facts.batch is None and outputs and not self._targets.has_classes:
                facts.batch = float(outputs[0])
            counts = self._targets.counts()
            target = counts.get(TARGET)
            if target is not None:
                facts.classes = len(target)
                facts.target_counts = _added(facts.target_counts, target)
                samples = self.history.samples.get(signals.PERPLEXITY)
                facts.batch = sum(facts.target_counts) / max(1, 0 if samples is None else samples.steps_seen)
            predicted = counts.get(OUTPUT)
            if predicted is not None:
                facts.predicted_counts = [int(count) for count in predicted]
        facts.computes_in_half |= any(part.computes_in_half for part in self._spreads)
        self._look_at_parameters()
        self._look_for_hidden_ones()
        if self._first is not None:
            self._first.deliver()

    def _look_for_hidden_ones(self) -> None:
        """Tensors that torch does not know of, as they are at the first tick, and whether they are left behind."""
        model = self._model()
        if self._hidden is not None:
            self.history.facts.hidden = self._hidden.left_behind()
        elif model is not None:
            self._hidden = HiddenParameters(model)

    def _look_at_parameters(self) -> None:
        """Parameters that were frozen may be trained now, and others may have got their shape."""
        known = self.history.facts.parameters.items()
        open_ones = {name: own for name, own in known if not own.trainable or not own.shape}
        model = self._model() if open_ones else None
        for name, parameter in () if model is None else named_parameters(model):
            if name in open_ones:
                open_ones[name].trainable, open_ones[name].shape = parameter.requires_grad, shape_of(parameter)


class FirstStep:
    """Checks, in the first observed step, whether the units of a weight are identical and get identical gradients."""

    def __init__(self, diagnosis: LiveDiagnosis, optimizer: Optimizer) -> None:
        self._diagnosis = weakref.ref(diagnosis)
        self._names: list[tuple[str, str]] = []
        self._waiting, self._step = Waiting(), 0
        engine = diagnosis._state.engine
        self._steps = None if engine is None else engine.steps(optimizer)
        if self._steps is not None:
            self._steps.before.append(self._look)

    def _look(self, *_: Any) -> None:
        diagnosis = self._diagnosis()
        if self._steps is not None and self._look in self._steps.before:
            self._steps.before = [listener for listener in self._steps.before if listener != self._look]
        model = None if diagnosis is None else diagnosis._model()
        if diagnosis is None or model is None:
            return
        self._step = diagnosis._state.step + 1
        with torch.no_grad():
            for name, parameter in named_parameters(model):
                is_plain = type(parameter.data) is Tensor and parameter.layout is torch.strided
                has_numbers = parameter.numel() > 0 and not parameter.is_meta
                if parameter.dim() < 2 or not is_plain or not parameter.is_floating_point() or not has_numbers:
                    continue
                self._names.append((signals.WEIGHT, name))
                self._waiting.add(len(self._names) - 1, l2_norm(parameter.detach()), self._step - 1)
                if len(parameter) > 1:
                    self._take(signals.WEIGHT_ALIKE, name, parameter.detach())
                    if parameter.grad is not None and parameter.grad.layout is torch.strided:
                        self._take(signals.GRADIENT_ALIKE, name, parameter.grad)

    def _take(self, signal: str, name: str, tensor: Tensor) -> None:
        if tensor.is_floating_point() and not tensor.is_meta:
            self._names.append((signal, name))
            (spread,) = relative_spreads(tensor.detach().flatten(1)[None], 1)
            self._waiting.add(len(self._names) - 1, spread, self._step)

    def pending(self) -> list[Pending]:
        """What a tick should copy to the CPU."""
        return self._waiting.take()

    def deliver(self) -> None:
        """Put what has arrived into the history."""
        diagnosis = self._diagnosis()
        if not self._waiting or diagnosis is None:
            return
        for place, number, step in zip(*map(list, self._waiting.arrived()), strict=True):
            signal, name = self._names[place]
            diagnosis.history.add(signal, [name], np.array([0]), np.array([step]), np.array([number]))


def _signals_of(part: AccumulatingPreprocessor) -> dict[str, str]:
    """What a diagnosis takes from a preprocessor: nothing from a subclass, which measures something else."""
    if type(part) is OutputNorm:
        # only of training passes: they also tell which layers ran
        is_wanted = part.normalize and part.request() == Request(passes=TRAINING_PASSES[None])
        return {"value": signals.OUTPUT} if is_wanted else {}
    if type(part) is ParameterNorm:
        return dict.fromkeys(part.statistics, signals.WEIGHT)  # named after the parameters
    return SIGNALS.get(type(part), {})


def _added(known: list[int], more: Any) -> list[int]:
    size = max(len(known), len(more))
    both = np.pad(np.array(known, np.int64), (0, size - len(known))) + np.pad(more, (0, size - len(more)))
    return [int(count) for count in both]


def shape_of(parameter: nn.Parameter) -> tuple[int, ...]:
    """The shape of a parameter; empty while it is not initialised."""
    return () if is_lazy(parameter) else tuple(parameter.shape)


def _facts(
    model: nn.Module, optimizers: Sequence[Optimizer], loss_fn: nn.Module | None, inspector: PyTorchInspector
) -> RunFacts:
    owned = Owned(*optimizers)
    own = {name.rpartition(".")[0] for name, _ in named_parameters(model)}
    layers = {
        name: type(module).__name__ if is_leaf else ""
        for name, module, is_leaf in walk(model)
        if is_leaf or (name and name in own)
    }
    parameters = {
        name: Parameter(
            name.rpartition(".")[0],
            shape_of(parameter),
            str(parameter.dtype).removeprefix("torch."),
            parameter.requires_grad,
            not optimizers or parameter in owned,
        )
        for name, parameter in named_parameters(model)
    }
    return RunFacts(
        layers=layers,
        parameters=parameters,
        loss_fn=None if loss_fn is None else type(loss_fn).__name__,
        loss_is_mean=getattr(loss_fn, "reduction", "mean") == "mean"
        and all(getattr(loss_fn, name, None) is None for name in ("weight", "pos_weight")),
        loss_is_sum=getattr(loss_fn, "reduction", "mean") == "sum",
        optimizers=len(optimizers) or 1,
        loss_scale=inspector.state.loss_scale is not None,
        since=inspector.state.step,
    )
