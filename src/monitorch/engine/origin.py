"""Finds the first tensor that was not finite.

After one step of an optimizer a single NaN has made everything NaN, so only the first one tells what is wrong. Rows are
judged step by step, in the order in which they were measured.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from ..numerical.moments import group_ends, group_starts
from .buffers import BASELINE, METER, STEP, TAG, Infos
from .gradients import AT_STEP
from .meter import ALL_GRADIENTS, GRADIENT, OUTPUT, OUTPUT_GRADIENT, PARAMETER, UPDATE, Meter
from .passes import WITH_GRAD
from .rows import Mask, Places
from .state import State
from .tensors import tensors_in

FORWARD, BACKWARD, IN_STEP = "forward", "backward", "step"
"""Where it happened."""

OPERATION, INPUT = "operation", "input"
"""Besides measured tensors, it can be the result of an operation between layers, or the data."""

UNUSUAL = "numbers that are not finite"
"""What is worth a closer look: see ``Cadence.notice``."""

MOST_LOOKS = 256
"""How many layers are inspected before rows are judged; whatever follows the first is a consequence."""


class Origin(NamedTuple):
    """The first tensor that was not finite.

    Attributes:
        step: the step in which it was measured.
        where: in the ``"forward"`` or ``"backward"`` pass, or in the ``"step"`` of the optimizer.
        what: ``"output"``, ``"output gradient"``, ``"gradient"``, ``"update"`` or ``"parameter"``; ``"operation"`` for
            one between layers, ``"input"`` for what the first layer got.
        layer: the name of the layer; for an operation that of the module around it.
        parameter: the name of the parameter in the layer, if it is one.
        last_good: the last step before it that was measured and fine. If it is not the step before, it may have begun
            in between.
        text: all of it in a sentence.
        between: the measured layers on both sides, if it happened between two: the last that was fine and the first
            that was not, in the order of the pass.
    """

    step: int
    where: str
    what: str
    layer: str
    parameter: str | None
    last_good: int
    text: str
    between: tuple[str, str] | None = None


class Look(NamedTuple):
    """What a closer look at a layer has found, at the moment when its output was not finite."""

    inputs_finite: bool | None = None
    """None if that cannot be known."""
    parameter: str | None = None
    """A parameter of the layer that was not finite itself."""


class Seen(NamedTuple):
    """A row of a step."""

    meter: Meter
    is_broken: bool


class OriginFinder:
    """Finds the first tensor that was not finite, once in a run.

    A non-finite number is a fault if it does damage: a parameter, its gradient or its update is not finite, or, where
    those are not measured, the gradient of an output. A non-finite output alone, such as attention scores masked with
    -Inf, is not a fault: a layer that had such an output while all gradients were finite is not suspected any more. If
    only outputs are measured, a layer whose output was never finite is taken for a mask. Steps that a GradScaler skips
    do no damage.

    Args:
        state: the state of the inspector, which is told.
        meters: all meters of the engine, by number.
    """

    def __init__(self, state: State, meters: Sequence[Meter]) -> None:
        self._state, self._meters = state, meters
        self._held: list[tuple[Infos, Mask]] = []
        """Rows since the first step that is suspicious and not judged."""
        self._looks: dict[tuple[int, int], Look] = {}
        self._skipped: set[int] = set()
        self._is_harmless: Mask = np.zeros(0, bool)
        """By meter, whether its outputs may be infinite."""
        self._was_finite: Mask = np.zeros(0, bool)
        """By meter, whether it has ever measured a tensor that was finite."""
        self._is_parameter: Mask = np.zeros(0, bool)
        self._is_output: Mask = np.zeros(0, bool)
        self._is_sum: Mask = np.zeros(0, bool)
        """By meter, whether it measures many tensors together; if it is broken, which tensor is unknown."""
        self.order: dict[str, int] = {}
        """In which order layers run: that of a step in which outputs were measured."""
        self._last_good = 0

    @property
    def _is_done(self) -> bool:
        return self._state.first_not_finite is not None

    def skip(self, steps: Iterable[int]) -> None:
        """The optimizer has not used the gradients of these steps."""
        self._skipped.update(steps)

    def look(self, meter: Meter, module: nn.Module, inputs: Any, output: Any) -> None:
        """Look at a layer on a CPU whose output is not finite: is it because of what it got, or of its parameters?"""
        number = meter.number
        is_known = number < len(self._is_harmless) and self._is_harmless[number]
        if self._is_done or is_known or len(self._looks) >= MOST_LOOKS:
            return
        results = {tensor.data_ptr() for tensor in tensors_in(output)}
        inputs_finite = _all_finite(tensors_in(inputs), results)
        broken = (name for name, own in module.named_parameters() if _all_finite([own]) is False)
        self._looks[self._state.step, number] = Look(inputs_finite, next(broken, None))

    def take(self, infos: Infos, is_broken: Mask) -> None:
        """Take rows, in the order in which they were measured."""
        if self._is_done:
            return
        self._make_room()
        is_telling = ~(self._is_sum[infos[:, METER]] & is_broken)
        infos, is_broken = infos[is_telling], is_broken[is_telling]
        if not self.order:
            self._learn_order(infos)
        meters = infos[:, METER]
        if self._held or (is_broken & ~self._is_harmless[meters]).any():
            self._held.append((infos, is_broken))
        else:
            self._pass(infos)
        self._was_finite[meters[~is_broken]] = True

    def judge(self, ended: int, *, is_last: bool = False) -> None:
        """Judge the steps before ``ended``, which are complete; with ``is_last`` also one that may never end."""
        if self._is_done or not self._held:
            return
        infos, is_broken = (np.concatenate(parts) for parts in zip(*self._held, strict=True))
        order = np.argsort(infos[:, STEP], kind="stable")
        infos, is_broken, self._held = infos[order], is_broken[order], []
        starts = group_starts(infos[:, STEP])
        for start, end in zip(starts, group_ends(starts, len(infos)), strict=True):
            own, broken = infos[start:end], is_broken[start:end]
            step, suspicious = int(own[0, STEP]), broken & ~self._is_harmless[own[:, METER]]
            is_open = step >= ended
            origin = self._origin(step, own, broken, is_open, is_last) if suspicious.any() else None
            if origin is not None:
                self._looks, self._skipped = {}, set()
                self._state.tell_of_origin(origin)
                return
            if is_open:
                self._held.append((own, broken))
            else:
                self._pass(own)
        self._looks = {place: look for place, look in self._looks.items() if place[0] >= ended}
        self._skipped = {step for step in self._skipped if step >= ended}

    def _make_room(self) -> None:
        more = len(self._meters) - len(self._is_parameter)
        if more:
            kinds, none = np.array([meter.kind for meter in self._meters[-more:]]), np.zeros(more, bool)
            self._is_harmless = np.concatenate([self._is_harmless, none])
            self._was_finite = np.concatenate([self._was_finite, none])
            self._is_parameter = np.concatenate([self._is_parameter, kinds == PARAMETER])
            self._is_output = np.concatenate([self._is_output, kinds == OUTPUT])
            self._is_sum = np.concatenate([self._is_sum, kinds == ALL_GRADIENTS])

    def _learn_order(self, infos: Infos) -> None:
        outputs = infos[self._is_output[infos[:, METER]]]
        for number in outputs[outputs[:, STEP] == outputs[:1, STEP], METER].tolist():
            self.order.setdefault(self._meters[number].name, len(self.order))

    def _pass(self, infos: Infos) -> None:
        """These rows show nothing wrong."""
        if len(infos):
            self._last_good = max(self._last_good, int(self._numbers(infos).max()))

    def _numbers(self, infos: Infos) -> Places:
        """The number of the step of each row: where steps have ends, a row is made before its step is counted."""
        numbers: Places = infos[:, STEP] + (self._state.steps_have_ends & ~self._is_parameter[infos[:, METER]])
        return numbers

    def _origin(self, step: int, infos: Infos, is_broken: Mask, is_open: bool, is_last: bool) -> Origin | None:
        """What was first in a step, if there is a fault; else notes which outputs may be infinite."""
        seen = self._by_kind(infos, is_broken)
        has_ends = self._state.steps_have_ends
        parameters = _broken(seen[PARAMETER])
        if parameters and has_ends:  # measured between the step before and this one
            return self._of_parameter(step, parameters[0], step)
        if is_open and not (is_last and self._state.loss_scale is None):
            return None  # more may come, or the step may be skipped
        if step in self._skipped:
            return None
        if not parameters and not self._does_damage(seen):
            if not is_open and seen[OUTPUT_GRADIENT] + seen[GRADIENT] and not _broken(seen[OUTPUT_GRADIENT]):
                self._is_harmless[[meter.number for meter in _broken(seen[OUTPUT])]] = True
            return None
        number = step + has_ends
        suspected = [row for row in seen[OUTPUT] if not self._is_harmless[row.meter.number]]
        if _broken(suspected):
            return self._of_output(number, step, seen[OUTPUT], _broken(suspected)[0])
        if _broken(seen[OUTPUT_GRADIENT]) or _broken(seen[GRADIENT]):
            return self._of_gradient(number, seen)
        if _broken(seen[UPDATE]):
            meter = _broken(seen[UPDATE])[0]
            finite = {row.meter.parameter_name for row in seen[GRADIENT]}
            known = "; its gradient was finite" if meter.parameter_name in finite else ""
            return self._made(number, IN_STEP, meter, f"in the optimizer's step {number:,}{known}")
        return self._of_parameter(number, parameters[0], number) if parameters else None

    def _by_kind(self, infos: Infos, is_broken: Mask) -> dict[str, list[Seen]]:
        found = defaultdict[str, list[Seen]](list)
        for number, tag, broken in zip(
            infos[:, METER].tolist(), infos[:, TAG].tolist(), is_broken.tolist(), strict=True
        ):
            meter = self._meters[number]
            if meter.kind != OUTPUT or tag % BASELINE >= WITH_GRAD:  # evaluation passes do not count
                found[meter.kind].append(Seen(meter, broken))
        return found

    def _does_damage(self, seen: dict[str, list[Seen]]) -> bool:
        """Whether non-finite numbers reach what the optimizer uses, as far as measured."""
        for kinds in ((GRADIENT, UPDATE), (OUTPUT_GRADIENT,)):
            rows = [row for kind in kinds for row in seen[kind]]
            if rows:
                return bool(_broken(rows))
        return any(self._was_finite[meter.number] for meter in _broken(seen[OUTPUT]))

    def _of_output(self, number: int, step: int, outputs: list[Seen], meter: Meter) -> Origin:
        """The first output that was not finite, or what made it so."""
        names = [row.meter.name for row in outputs[: outputs.index(Seen(meter, True))] if not row.is_broken]
        after = next((name for name in reversed(names) if name != meter.name), None)
        when, layer = f"in the forward pass of step {number:,}", f"layer {meter.name!r}"
        look = self._looks.get((step, meter.number), Look())
        if look.parameter is not None:
            found = _named(meter.name, look.parameter)
            text = (
                f"the parameter {found!r} was the first that was not finite: it was already so before step {number:,}"
            )
            return self._told(number - 1, IN_STEP, PARAMETER, meter.name, look.parameter, text, number - 1)
        if look.inputs_finite is False and after is not None:
            around = _around(after, meter.name)
            place = f"layer {around!r}" if around else "the model"
            text = f"an operation in {place}, after layer {after!r}, was the first whose result was not finite, {when}"
            text += f": the inputs of {layer} were not finite, the output of layer {after!r} was"
            return self._told(number, FORWARD, OPERATION, around, None, text)._replace(between=(after, meter.name))
        if look.inputs_finite is False:
            text = f"the input of {layer}, the first one that ran, was not finite, {when}: look at the data"
            return self._told(number, FORWARD, INPUT, meter.name, None, text)
        if look.inputs_finite:
            known = "; its inputs were finite"
        elif after is None:
            known = "; no layer was measured before it"
        else:
            known = f"; the output of layer {after!r}, which was measured before it, was finite"
        return self._made(number, FORWARD, meter, f"{when}{known}")

    def _of_gradient(self, number: int, seen: dict[str, list[Seen]]) -> Origin:
        """The first gradient that was not finite: those of outputs come in order, those of parameters do not."""
        when = f"in the backward pass of step {number:,}"
        if not seen[OUTPUT]:
            when += "; outputs were not measured in this step, so it may come from the forward pass"
        flow, gradients = seen[OUTPUT_GRADIENT], _broken(seen[GRADIENT])
        first = next((place for place, row in enumerate(flow) if row.is_broken), len(flow))
        # clipping turns all of them NaN if one is: then they say nothing
        may_be_clipped = self._state.gradient == AT_STEP or not flow
        are_all = may_be_clipped and len(gradients) == len(seen[GRADIENT]) > 1
        if first == len(flow) or not are_all:
            reached = {row.meter.name: place for place, row in reversed(list(enumerate(flow[:first])))}
            # backward reaches last what runs first; layers whose outputs are not measured come in model order
            places = (
                (reached.get(meter.name, len(flow)), -self.order.get(meter.name, -1), -meter.number)
                for meter in gradients
            )
            gradients = [meter for _, meter in sorted(zip(places, gradients, strict=True), key=itemgetter(0))]
            if gradients and (first == len(flow) or gradients[0].name in reached):
                known = (
                    "; all gradients were non-finite, as after clipping, so another one may be the cause"
                    if are_all
                    else ""
                )
                return self._made(number, BACKWARD, gradients[0], f"{when}{known}")
        if first:
            known = f"; that of layer {flow[first - 1].meter.name!r}, which came before it, was finite"
        else:
            known = "; no gradient came before it, so look at the loss"
        found = self._made(number, BACKWARD, flow[first].meter, f"{when}{known}")
        return found._replace(between=(flow[first - 1].meter.name, found.layer)) if first else found

    def _of_parameter(self, number: int, meter: Meter, unmeasured: int) -> Origin:
        return self._made(number, IN_STEP, meter, f"after step {number:,}", unmeasured)

    def _made(self, number: int, where: str, meter: Meter, how: str, unmeasured: int | None = None) -> Origin:
        of_layer = {OUTPUT: "the output", OUTPUT_GRADIENT: "the gradient of the output"}
        of_parameter = {GRADIENT: "the gradient of ", UPDATE: "the update of ", PARAMETER: ""}
        if meter.kind in of_layer:
            what = f"{of_layer[meter.kind]} of layer {meter.name!r}"
        else:
            what = f"{of_parameter[meter.kind]}the parameter {_named(meter.name, meter.parameter_name)!r}"
        text = f"{what} was the first that was not finite, {how}"
        return self._told(number, where, meter.kind, meter.name, meter.parameter_name, text, unmeasured)

    def _told(
        self,
        number: int,
        where: str,
        what: str,
        layer: str,
        parameter: str | None,
        text: str,
        unmeasured: int | None = None,
    ) -> Origin:
        """Add which steps before it were not measured; ``unmeasured`` is the last one that may not have been."""
        first, last = self._last_good + 1, number - 1 if unmeasured is None else unmeasured
        if first < last:
            text += f". Steps {first:,} to {last:,} were not measured: it may have begun there"
        elif first == last:
            text += f". Step {first:,} was not measured: it may have begun there"
        return Origin(number, where, what, layer, parameter, self._last_good, text)


def _broken(rows: list[Seen]) -> list[Meter]:
    return [row.meter for row in rows if row.is_broken]


def _named(layer: str, parameter: str | None) -> str:
    return ".".join(filter(None, (layer, parameter)))


def _around(first: str, second: str) -> str:
    """The module that both layers are in, or that one of them is in the other.

    >>> _around("blocks.0.norm", "blocks.0.mlp.fc"), _around("conv", "fc")
    ('blocks.0', '')
    """
    common = list[str]()
    for one, other in zip(first.split("."), second.split("."), strict=False):
        if one != other:
            break
        common.append(one)
    return ".".join(common)


def _all_finite(tensors: Iterable[Tensor], changed: Iterable[int] = ()) -> bool | None:
    """Whether these tensors are finite; None if one cannot be looked at, or was ``changed`` since, by its address."""
    found: bool | None = True
    for tensor in _floating(tensors):
        if tensor.device.type != "cpu" or tensor.layout is not torch.strided or tensor.data_ptr() in changed:
            found = None
        elif not bool(tensor.detach().isfinite().all()):
            return False
    return found


def _floating(tensors: Iterable[Tensor]) -> Iterator[Tensor]:
    return (tensor for tensor in tensors if tensor.is_floating_point() or tensor.is_complex())
