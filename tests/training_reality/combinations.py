"""Every way to train also with checkpointing, with the compiler, and with both, where torch can do that."""

from dataclasses import replace
from functools import partial

from tests.training_reality import models
from tests.training_reality.case import compiled_by_blocks, compiled_whole
from tests.training_reality.cases import EAGER

CHECKPOINTABLE = (models.mlp, models.half, models.smooth, models.weight_normed, models.lazy)
"""Models with something between the first and the last layer."""


def checkpointed(case, *, reentrant):
    return replace(case, model=partial(models.Checkpointed, reentrant, case.model))


def compiled(case):
    by_parts = case.model is models.Gan  # its whole is never called
    how = compiled_by_blocks if by_parts else compiled_whole(backend="aot_eager")
    return replace(case, compiled=how, exact=False)


def graphed(case):
    return replace(case, compiled=compiled_whole(mode="reduce-overhead"), exact=False)


WAYS = {
    "reentrant checkpointing": partial(checkpointed, reentrant=True),
    "checkpointing": partial(checkpointed, reentrant=False),
    "compiled": compiled,
    "compiled, reentrant checkpointing": lambda case: compiled(checkpointed(case, reentrant=True)),
    "compiled, checkpointing": lambda case: compiled(checkpointed(case, reentrant=False)),
    "CUDA graphs": graphed,
    "CUDA graphs, checkpointing": lambda case: graphed(checkpointed(case, reentrant=False)),
}

PENALTY, FROZEN = "gradient penalty (`create_graph=True`)", "layers frozen, later unfrozen"
NO_DOUBLE_BACKWARD = "no second backward", "does not currently support double backward"
NO_GRAD = "no `autograd.grad`", "incompatible with .grad()"

UNSUPPORTED = {
    (FROZEN, "reentrant checkpointing"): ("needs inputs that train", "None of the inputs have requires_grad=True"),
    (PENALTY, "reentrant checkpointing"): NO_GRAD,
    (PENALTY, "compiled"): NO_DOUBLE_BACKWARD,
    (PENALTY, "compiled, reentrant checkpointing"): NO_DOUBLE_BACKWARD,
    (PENALTY, "compiled, checkpointing"): NO_DOUBLE_BACKWARD,
    (PENALTY, "CUDA graphs"): NO_DOUBLE_BACKWARD,
    (PENALTY, "CUDA graphs, checkpointing"): NO_DOUBLE_BACKWARD,
}
"""What torch cannot do: why, and what it says."""


def together(case, way):
    return replace(WAYS[way](case), name=f"{case.name} + {way}")


def ways_of(case):
    """What can go together with a row, whether torch supports it or not."""
    with_middle = case.model in CHECKPOINTABLE
    return [way for way in WAYS if with_middle or not ("checkpointing" in way or "CUDA" in way)]


_TOGETHER = [together(case, way) for case in EAGER for way in ways_of(case) if (case.name, way) not in UNSUPPORTED]
COMBINATIONS = [case for case in _TOGETHER if "CUDA" not in case.name]
CUDA_GRAPHS = [case for case in _TOGETHER if "CUDA" in case.name]
"""For a GPU."""
