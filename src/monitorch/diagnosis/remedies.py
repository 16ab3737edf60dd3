"""What to try, worked out from a run: which layers to initialise again, and by what to multiply learning rates."""

import math
from collections.abc import Sequence

import numpy as np

from . import signals
from .finding import Remedy
from .run import DISTANCES, FEWEST, RunView, median, nan_median

USUAL_UPDATE, FIRST_UPDATE, CAREFUL_UPDATE = 1e-2, 4e-2, 1e-2
"""Typical |update| / |weight| of runs that learn: after five to ten steps, in the first step, and in the first step of
a run that larger steps would make diverge."""

LARGE_UPDATE = 0.03
"""Steps of this size may have killed what is dead now."""

IDLE_SHARE = 0.01
"""A learning rate below this share of its maximum has little effect."""

CLIPPED = 1e-4
"""By this share gradients that are clipped may differ, by rounding."""

LARGE_GAIN, SMALL_GAIN = 3.0, 0.25
"""Weights beyond these are larger, or smaller, than any usual initialisation makes them."""

LEAKY = ("LeakyReLU", "PReLU", "RReLU", "GELU", "SiLU", "Mish", "ELU", "SELU", "CELU")
"""Activations of modules through which a gradient passes below 0, too."""

RECTIFIERS = (*LEAKY, "ReLU", "Hardswish", "ReLU6")
SQUASHERS = ("Sigmoid", "Tanh", "Softsign", "Hardtanh", "Hardsigmoid", "LogSigmoid")
"""Activations of modules: those that let large numbers through, and those that do not."""

SAFE_ACTIVATION = "ELU"
"""What to use instead: its slope is 1 for most inputs, and its units cannot die, however narrow a layer is."""

NO_ACTIVATIONS = ("Dropout", "Identity", "Flatten", "Pool", "Upsample", "Pad", "Shuffle", "Softmax", "Fold", "Loss")
"""Parts of class names of parameter-free modules that are not activations."""


SOMETHING_CHANGED = Remedy("Compare data, labels and settings before and after this step, and go back to a checkpoint.")
"""Where what was learned is lost for good."""

REGISTER = Remedy(
    "Before the optimizer is made, put modules into nn.ModuleList or nn.ModuleDict, and make tensors nn.Parameter."
)
"""Where torch does not know what belongs to the model."""


def of_hidden(names: Sequence[str]) -> str:
    """What is wrong with tensors that torch does not know.

    >>> of_hidden(["scale"]).partition(":")[0]
    'scale gets a gradient, but nothing trains or saves it'
    """
    more = len(names) - 1
    where = "in a plain list, dictionary or attribute. Torch does not look for parameters there"
    if not more:
        return f"{names[0]} gets a gradient, but nothing trains or saves it: it is {where}."
    others = "another" if more == 1 else f"{more:,} others"
    return f"{names[0]} and {others} get gradients, but nothing trains or saves them: they are {where}."


def gains(run: RunView, *, at_first: bool = True) -> dict[str, float]:
    """The gain of each layer's weights, now or at first, in the order of the model; of several weights the largest.

    Embeddings have no inputs, and parameters outside of layers belong to none, so they have no gain.
    """
    found: dict[str, float] = {}
    for name, gain in gains_of_weights(run, at_first=at_first).items():
        layer = run.facts.parameters[name].layer
        if layer and "Embedding" not in run.facts.layers.get(layer, ""):
            found[layer] = max(gain, found.get(layer, 0.0))
    return dict(sorted(found.items(), key=lambda one: run.place(one[0])))


def gains_of_weights(run: RunView, *, at_first: bool = True) -> dict[str, float]:
    """The gain of each weight, now or at first: root mean square times the square root of the fan-in.

    That is the norm of one row. Torch's default gives 0.6, Xavier 1, He 1.4.
    """
    table = run.table(signals.WEIGHT).select(run.weights)
    found: dict[str, float] = {}
    if not table or (at_first and not run.saw_the_start):
        return found
    for name in table.places:
        known = table.column(name)[np.isfinite(table.column(name))]
        if len(known):
            found[name] = float(known[0 if at_first else -1]) / root_of_rows(run, name)
    return found


def root_of_rows(run: RunView, weight: str) -> float:
    """The norm of a weight divided by this is its gain."""
    return math.sqrt(run.size(weight) / math.prod(run.facts.parameters[weight].shape[1:]))


def feeding(run: RunView, activation: str) -> list[str]:
    """The layer with weights that feeds an activation, and layers with parameters in between, such as norms.

    Calls of functions have the name of that layer already.
    """
    here, layers = run.place(activation), {own.layer: own.is_weight for own in run.facts.parameters.values()}
    for own in run.facts.parameters.values():
        layers[own.layer] |= own.is_weight
    before = sorted((name for name in layers if name and run.place(name) <= here), key=run.place)
    source = max((place for place, name in enumerate(before) if layers[name]), default=0)
    return before[source:] or [activation]


def hidden_activations(run: RunView) -> dict[str, str]:
    """The kinds of the modules that may be activations between layers with weights, by name."""
    own = {one.layer for one in run.facts.parameters.values()}
    places = [run.place(one.layer) for one in run.facts.parameters.values() if one.is_weight]
    return {
        name: kind
        for name, kind in run.facts.layers.items()
        if places
        and name not in own
        and min(places) < run.place(name) < max(places)
        and not any(part in kind for part in NO_ACTIVATIONS)
    }


def usual_gain(run: RunView) -> float:
    """The gain that suits the activations of the model."""
    kinds = list(hidden_activations(run).values())
    return 1.0 if any(kind in SQUASHERS for kind in kinds) else round(math.sqrt(2), 2)


def let_through(run: RunView) -> Remedy:
    """Other activations instead of sigmoids; new weights where they are too small, or nothing else can be done."""
    sizes, kinds = gains(run), hidden_activations(run)
    squashing = [name for name, kind in kinds.items() if kind in SQUASHERS]
    is_small = bool(sizes) and float(np.median(list(sizes.values()))) < SMALL_GAIN
    if is_small or not squashing:
        text = "Initialise weights larger (He or Xavier), normalise between layers, or add skip connections."
        layers = list(sizes) or [run.layer_of(name) or name for name in run.weights]
        return Remedy(text, "reinit", {"layers": layers, "gain": usual_gain(run)})
    text = "Use ELU, GELU or ReLU, normalisation, skip connections, or He initialisation."
    sigmoids = [name for name in squashing if "igmoid" in kinds[name]]
    return Remedy(text, "replace_activation", {"layers": sigmoids or squashing, "by": SAFE_ACTIVATION})


def were_large(run: RunView, step: int, layers: Sequence[str] = ()) -> bool:
    """Whether steps were large just before this one, for most weights or for those of one of these layers."""
    table = run.table(signals.UPDATE_RATIO).select(run.weights)
    before = table.values[table.steps <= step][-FEWEST:]
    own = [place for place, name in enumerate(table.places) if run.layer_of(name) in layers]
    sizes = [median(nan_median(before)), *(median(before[:, place]) for place in own)] if len(before) else []
    return any(size > LARGE_UPDATE for size in sizes)


def rate_before(run: RunView, *, is_higher: bool) -> float | None:
    """What to multiply learning rates by to undo a jump, of a factor of ten or more; None if there was none."""
    highest = run.highest_rates
    with np.errstate(all="ignore"):
        jumps = highest[:-1] / highest[1:]
    jumps[~np.isfinite(jumps) | (jumps == 0)] = 1.0  # from or to a rate of 0
    if not len(jumps):
        return None
    factor = float(jumps.max() if is_higher else jumps.min())
    return factor if factor >= 10 or factor <= 0.1 else None


def clipped_to(run: RunView) -> float | None:
    """The norm to which all gradients together are clipped in every step; None if they are not.

    Then that norm stays the same, while those of single parameters differ from step to step.
    """
    table = run.table(signals.GRADIENT)
    norms = table.values[-4 * FEWEST :]
    if len(norms) < FEWEST or not np.isfinite(norms).all():
        return None
    whole = np.sqrt((norms**2).sum(axis=1))
    own = np.ptp(norms, axis=0) / np.maximum(norms.mean(axis=0), 1e-300)
    spread = np.ptp(whole) / whole.mean() if whole.mean() > 0 else math.inf
    return float(whole.mean()) if spread < 0.01 and spread < 0.1 * median(own) else None


def clipped_at(run: RunView) -> float | None:
    """The value at which each element of a gradient is clipped in every step; None if none is.

    Then the root mean square of several gradients is that value, whatever the batch is.
    """
    table = run.table(signals.GRADIENT).select(run.facts.parameters)
    norms = table.values[-4 * FEWEST :]
    if len(norms) < FEWEST or not np.isfinite(norms).all():
        return None
    sizes = norms / np.sqrt([run.size(name) for name in table.places])
    highest = float(sizes.max(initial=0.0))
    count = (sizes > (1 - CLIPPED) * highest).sum(axis=1)
    return highest if highest > 0 and count.min() > 1 else None


def of_schedule(run: RunView, *, for_long: bool = False) -> str | None:
    """The advice to check the schedule, if it has taken all learning rates to nearly 0; else None.

    With ``for_long`` only if they have been there for half of the run, since many schedules end there.
    """
    highest = run.highest_rates
    is_idle = highest < IDLE_SHARE * highest.max(initial=0.0)
    if not len(highest) or not is_idle[-1]:
        return None
    begin = len(highest) - int(np.argmin(is_idle[::-1]))
    if for_long and run.step - run.table(signals.RATE).steps[begin] < run.step / 2:
        return None
    return f"Look at the schedule: it has taken the learning rate from {highest.max():.3g} to {highest[-1]:.3g}."


def of_targets(run: RunView) -> str | None:
    """The advice to rescale targets of a distance that are far from 0; else None."""
    mean, std = run.targets
    if run.facts.loss_fn not in DISTANCES or not abs(mean) > std:
        return None
    return (
        f"Give targets mean 0 and standard deviation 1, or start the bias of the last layer at their mean: they are "
        f"about {mean:,.3g}, give or take {std:,.3g}."
    )


def lower_rate(run: RunView, update: float, text: str) -> Remedy:
    """Lower learning rates: to what they were, or until the first update has a usual size, and at least to a tenth."""
    factor = rate_before(run, is_higher=False)
    if factor is None:
        usual = FIRST_UPDATE if update > 1 else CAREFUL_UPDATE
        factor = min(max(usual / update, 1e-3), 0.1) if update > 0 else 0.1
    return Remedy(text, "scale_lr", {"factor": rounded(factor)})


def lower_group_rate(run: RunView, name: str, step: int) -> Remedy | None:
    """Train the group of this parameter as the others were at a step; None if its rate was not far above theirs."""
    table = run.table(signals.RATE)
    if name not in table.places:
        return None
    rates = table.at_steps(np.array([step]))[0]
    own = rates[table.places.index(name)]
    usual = median(rates[(rates > 0) & (rates < own)])
    if not own >= 10 * usual:
        return None
    group = [place for place, rate in zip(table.places, rates.tolist(), strict=True) if rate == own]
    text = (
        f"Lower the learning rate of the group of {name}: it was {own:.2g} at step {step:,}, and {usual:.2g} elsewhere."
    )
    return Remedy(text, "set_group_lr", {"parameters": group, "lr": rounded(usual)})


def raise_rate(run: RunView, update: float, text: str) -> Remedy:
    """Raise learning rates: to what they were, or until updates have a usual size."""
    factor = rate_before(run, is_higher=True)
    if factor is None:
        factor = min(max(USUAL_UPDATE / update, 10.0), 1e6) if update > 0 else 10.0
    return Remedy(text, "scale_lr", {"factor": rounded(factor)})


def rounded(value: float) -> float:
    """With one digit.

    >>> rounded(0.00512), rounded(357.0)
    (0.005, 400.0)
    """
    return float(f"{value:.1g}") if value > 0 else value
