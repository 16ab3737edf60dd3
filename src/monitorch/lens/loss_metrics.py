"""Loss and metrics over time."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from ..engine.loss_scale import UNKNOWN_SCALER
from ..engine.reports import is_news, tell
from ..errors import OptionError, short_repr, warn
from ..gatherer import FeedForwardGatherer
from ..numerical import Accumulator
from ..numerical.extraction import count_nonfinite, has_samples
from ..preprocessor import AbstractPreprocessor, LossModule
from . import options
from .pushed_lens import PushedLens
from .views import NamedLines


class LossMetrics(PushedLens):
    """Losses of training and evaluation, and pushed metrics.

    The loss is what ``loss_fn`` returns. Without a ``loss_fn``, or if it was not called, it is what you pass to
    ``push_loss``; without that, the ``loss`` field of the model's output. If the inspector has the optimizer, the mean
    of the training losses of all micro-batches of a step is one sample.

    Args:
        metrics: names of the pushed metrics to show.
        evaluation_from_grad: what counts as training: gradients enabled (True), train mode (False), or both (None).
        separate_loss_and_metrics: show losses and metrics in two plots.
        loss_fn: the module that computes the loss.
        loss_fn_inplace: keep only running moments of its results, instead of every one.
        loss_line: lines to draw for losses: mean, std, min, max; where every value is kept also median, Q1-Q3, IQR.
        loss_range: bands to draw for losses: std, min-max; where every value is kept also Q1-Q3.
        metrics_line: the same for metrics.
        metrics_range: the same for metrics.
    """

    def __init__(
        self,
        *,
        metrics: options.Strings | None = None,
        evaluation_from_grad: bool | None = None,
        separate_loss_and_metrics: bool = True,
        loss_fn: nn.Module | None = None,
        loss_fn_inplace: bool = True,
        loss_line: options.Strings = "mean",
        loss_range: options.Strings | None = "std",
        metrics_line: options.Strings = "mean",
        metrics_range: options.Strings | None = None,
    ) -> None:
        if loss_fn is not None and not isinstance(loss_fn, nn.Module):
            cure = "for a plain function leave loss_fn out, and call push_loss(loss) on the watch or inspector"
            raise OptionError(f"loss_fn takes a module such as nn.MSELoss(), not {short_repr(loss_fn)}; {cure}")
        self._loss_fn, self._metrics = loss_fn, options.strings("metrics", metrics)
        self._losses = LossModule(loss_fn_inplace, evaluation_from_grad, field_only=loss_fn is None)
        kept = loss_fn_inplace if loss_fn is not None else None
        lines, bands = options.points("loss_line", loss_line, kept), options.ranges("loss_range", loss_range, kept)
        tags = ("Loss", "Metrics") if separate_loss_and_metrics else ("Loss & Metrics", "Loss & Metrics")
        views = [NamedLines(tags[0], self._read_losses, lines, bands)]
        lines, bands = options.points("metrics_line", metrics_line), options.ranges("metrics_range", metrics_range)
        if self._metrics:
            views.append(NamedLines(tags[1], self._read_metrics, lines, bands))
        super().__init__([self._losses], views)

    @property
    def loss_fn(self) -> nn.Module | None:
        """The module that computes the loss."""
        return self._loss_fn

    def loss(self, *, train: bool, method: str | None = None) -> float:
        """The loss of the tick that has just ended, by one of the methods in ``loss_line``; NaN if none was seen."""
        name, methods = self._loss_names()[0 if train else 1], self._views[0].lines
        method = method or methods[0]
        if method not in methods:
            raise KeyError(f"method={method!r} is not in loss_line; choose from {methods}")
        return self._last_number(f"{name} {method}")

    def recent_losses(self) -> list[tuple[int, float]]:
        """The training losses of the last steps, each with its step, where steps are known; waits for the device."""
        name = self._loss_names()[0]
        pushed = [] if self._call is None else self._call.recent(name)
        seen = self._losses.recent(name)
        chosen = (pushed or seen) if self._loss_fn is None else (seen or pushed)  # in the same order as for the plots
        return [(step, float(loss)) for step, loss in chosen]

    def register_foreign_preprocessor(self, ext_ppr: AbstractPreprocessor, inspector_state: Any) -> None:
        """Receive the pushed numbers and the names of the losses, and watch ``loss_fn``."""
        super().register_foreign_preprocessor(ext_ppr, inspector_state)
        if self._call is ext_ppr:
            self._losses.set_loss_strs(*self._loss_names())
            self._losses.open_step = getattr(inspector_state, "open_step", None)
            self._losses.finished_step = getattr(inspector_state, "finished_step", None)
            self._losses.tell = getattr(inspector_state, "report", None)
            self._listen(self._loss_fn, inspector_state)

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Watch ``loss_fn``, or without one the whole model."""
        if module_name == "":
            self._losses.ask_model(module)
            self._listen(module if self._loss_fn is None else self._loss_fn, inspector_state)

    register_non_leaf_module = register_leaf_module

    def finalize_epoch(self) -> None:
        """Read the losses, and warn if they are scaled by an unknown GradScaler."""
        super().finalize_epoch()
        try:
            is_unusual = any(map(count_nonfinite, self._read_losses(None).values()))
            if is_unusual and hasattr(self._state, "notice"):
                self._state.notice("a loss that is not finite")
            self._look_for_a_scaler()
        except Exception as error:
            tell(self._state, "looking for a GradScaler", error)

    def _look_for_a_scaler(self) -> None:
        gradient, engine = self._losses.gradient, getattr(self._state, "engine", None)
        failure, gradient.failure = gradient.failure, None
        if failure is not None:
            raise failure
        scale = gradient.scale()
        is_unknown = engine is not None and self._state.loss_scale is None and engine.takes_scaled_gradients
        if scale is not None and is_unknown and is_news(self._state, UNKNOWN_SCALER):
            text = f"the gradient of the loss is {scale:g}, not 1, as with a GradScaler, so the gradients shown are"
            warn(f"{text} too large by that factor; pass the scaler as grad_scaler=")

    def _listen(self, module: nn.Module | None, inspector_state: Any) -> None:
        if module is not None and not self._gatherers:
            self._watch(FeedForwardGatherer(module, [self._losses], "loss", inspector_state), "loss", "")

    def hold(self, step: int, names: Iterable[str]) -> None:
        """Keep the evaluation losses seen so far at this step, if they are among the names."""
        self._losses.hold(step, names)

    def _read_losses(self, step: int | None) -> dict[str, Accumulator]:
        seen, pushed = self._at(self._losses, step), self._pushed(self._loss_names(), step)
        if self._loss_fn is None:
            return {**seen, **pushed}
        return {**seen, **{name: kept for name, kept in pushed.items() if not has_samples(seen.get(name, []))}}

    def _read_metrics(self, step: int | None) -> dict[str, Accumulator]:
        return self._pushed(self._metrics, step)
