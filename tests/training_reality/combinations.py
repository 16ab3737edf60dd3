"""Every way to train also with checkpointing, with the compiler, and with both, where torch can do that."""

from dataclasses import replace
from functools import partial

import torch
from torch.torch_version import TorchVersion

from tests.training_reality import loops, models
from tests.training_reality.case import compiled_by_blocks, compiled_whole
from tests.training_reality.cases import EAGER

CHECKPOINTABLE = (models.mlp, models.half, models.smooth, models.weight_normed, models.lazy, models.mixture)
"""Models with something between the first and the last layer."""


def checkpointed(case, *, reentrant):
    return replace(case, model=partial(models.Checkpointed, reentrant, case.model))


def compiled(case):
    by_parts = case.model is models.Gan  # its whole is never called
    how = compiled_by_blocks if by_parts else compiled_whole(backend="aot_eager")
    return replace(case, compiled=how, exact=False)


def graphed(case):
    loop = partial(loops.clipping, parts=1) if case.loop is loops.clipping else case.loop
    return replace(case, compiled=compiled_whole(mode="reduce-overhead"), exact=False, loop=loop)


WAYS = {
    "reentrant checkpointing": partial(checkpointed, reentrant=True),
    "checkpointing": partial(checkpointed, reentrant=False),
    "compiled": compiled,
    "compiled, reentrant checkpointing": lambda case: compiled(checkpointed(case, reentrant=True)),
    "compiled, checkpointing": lambda case: compiled(checkpointed(case, reentrant=False)),
    "CUDA graphs": graphed,
    "CUDA graphs, checkpointing": lambda case: graphed(checkpointed(case, reentrant=False)),
}
GRAPHED = [way for way in WAYS if way.startswith("CUDA graphs")]
"""Those for a GPU."""

PENALTY, FROZEN = "gradient penalty (`create_graph=True`)", "layers frozen, later unfrozen"
NO_DOUBLE_BACKWARD = "no second backward", "does not currently support double backward"
NO_GRAD = "no `autograd.grad`", "incompatible with .grad()"
NO_ACCUMULATION = "overwrites gradients", "has been overwritten by a subsequent run"
ACCUMULATING = (
    *("gradient accumulation", "gradient accumulation without `optimizer=`"),
    "mixture of experts, BatchNorm, gradient accumulation",
    "parameters in no optimizer",  # nobody drops their gradients
)

UNSUPPORTED = {
    (FROZEN, "reentrant checkpointing"): ("needs inputs that train", "None of the inputs have requires_grad=True"),
    (PENALTY, "reentrant checkpointing"): NO_GRAD,
    (PENALTY, "compiled"): NO_DOUBLE_BACKWARD,
    (PENALTY, "compiled, reentrant checkpointing"): NO_DOUBLE_BACKWARD,
    (PENALTY, "compiled, checkpointing"): NO_DOUBLE_BACKWARD,
    **{(PENALTY, way): NO_DOUBLE_BACKWARD for way in GRAPHED},
    **{(row, way): NO_ACCUMULATION for row in ACCUMULATING for way in GRAPHED},
}
"""What torch cannot do: why, and what it says."""


def together(case, way):
    return replace(WAYS[way](case), name=f"{case.name} + {way}")


def ways_of(case):
    """What can go together with a row, whether torch supports it or not."""
    with_middle = case.model in CHECKPOINTABLE
    return [way for way in WAYS if with_middle or not ("checkpointing" in way or way in GRAPHED)]


def combinations(*, on_gpu):
    """Rows for this release of torch."""
    pairs = [(case, way) for case in EAGER for way in ways_of(case) if on_gpu or way not in GRAPHED]
    return [together(*pair) for pair in pairs if not _is_left_out(*pair)]


def _is_left_out(case, way):
    is_compiled = way not in ("reentrant checkpointing", "checkpointing")
    # before torch 2.13 a graph goes on without the gradients of layers that were frozen when it was made
    is_too_new = case.name == FROZEN and is_compiled and torch.__version__ < TorchVersion("2.13")
    return is_too_new or (case.name, way) in UNSUPPORTED
