"""Writes the page of ways to train from the rows of the table: ``python -m tests.training_reality.make_page``."""

from pathlib import Path

from tests.training_reality.case import EVERYTHING, OF_SOME, Case
from tests.training_reality.cases import CHECKPOINTING, COMPILED, EAGER, REFUSED
from tests.training_reality.combinations import UNSUPPORTED, WAYS, ways_of
from tests.training_reality.distributed.cases import LAYOUTS, Layout

PAGE = Path(__file__).parents[2] / "docs" / "how_it_works" / "ways_to_train.md"

INTRODUCTION = """\
# Right numbers, however you train

Each row of the table below is a test. It trains a small model in that way and compares every number of every step with
an oracle: the same training again, in float64, with autograd alone. It also trains without the inspector and compares
the weights and the random number stream. The rows are in `tests/training_reality/cases.py`; if there is a GPU, they
also run there.

The numbers are: {everything}; in two rows also {of_some}. Norms come with correlations if consecutive tensors are
compared. Updates come with the numbers of `ParameterFacts`; gradients come with those of `SignalToNoise` where a step
has parts or uses Adam.

Gradients are the ones the optimizer uses: [Mixed precision, clipping, accumulation](../how_to/precision.md) says what
that means for each.

## The table

`taken` says when parameter gradients are measured, `since` is the first step at which all series have numbers, and
`weights` says whether weights are bit-identical with and without the inspector.

| way to train | recorded | taken | since | weights | remark |
|---|---|---|---|---|---|
"""

TOGETHER = """
## Together with checkpointing and torch.compile

The same rows again: with both kinds of checkpointing (if the model has a middle part that can be recomputed), compiled,
and compiled with checkpointing. Each is a test of its own, with the same numbers, the same weights (compiled: within
rounding) and no more graph breaks than without the inspector. CUDA graphs are those of `mode="reduce-overhead"`, on a
GPU. Where torch itself cannot do it, the cell says why. Before torch 2.13 compiled graphs ignore layers that were
frozen when the graph was made.

| way to train | {ways} |
|---|{lines}|
"""

PROCESSES = """
## Several processes

Each row runs in real processes; the oracle is one process in float64 with all batches. The numbers are those above plus
the loss and gradient rates, each with mean, deviation, extremes and median. Compiled weights are equal within rounding,
and there are no more graph breaks. More in [Several processes](../how_to/processes.md).

| way to train | processes | recorded | weights | each as | remark |
|---|---|---|---|---|---|
"""

SITUATIONS = """
## Other situations

Each of these also has a test, most of them in `tests/training_reality/test_unusual_training.py`. GPT-2, BERT, Llama,
T5, ViT, Mixtral and Whisper, built from small configurations, are in `test_real_models.py`.

| situation | what happens |
|---|---|
| a pass under `torch.func`, `vmap`, forward-mode AD, tracing or export, or with fake tensors | is not recorded |
| Hessian-vector products; gradients of an input alone while parameters train | are not recorded |
| an optimizer whose `step()` calls the `step()` of its base class | makes one step |
| an optimizer whose `step()` is never called (SAM with `first_step`) | a warning says to call `watched.step()` |
| an optimizer that another one replaces in mid-training | a warning says to watch again |
| an optimizer that is not a torch optimizer, or none at all | is measured from one `watched.step()` to the next |
| tensors that belong to no module | `watch(parameters={"name": tensor})` shows them |
| step hooks that change gradients | the changed gradients are shown, whenever the hook was registered |
| a model whose layers are called but not the model itself (Lightning) | a pass begins with its first layer |
| an optimizer that trains another model; a model none of whose layers is called | a warning |
| parameters that are replaced, in the model and in the optimizer | are followed under the same name |
| layers that are replaced, added, removed, wrapped or renamed | are followed from the next tick on |
| parameters that a layer gets or loses (LoRA, `weight_norm`, pruning) | are followed from the next tick on |
| `model.double()` during training | cosines are right, or have no sample |
| a module that returns its own parameter | one sample per step, and no hook is left on the parameter |
| scripted parts (`torch.jit`) | are left out, with a warning |
| sparse outputs, float64 numbers near 1e200 | are measured |
| a default device or dtype, warnings as errors | training continues; warnings that would be errors are printed |
| anything that fails inside monitorch | a warning; weights stay bit-identical |
"""

REFUSALS = """
## What torch does not support

| way to train | why there is no row |
|---|---|
"""


def row(case: Case) -> str:
    missing = [family for family in EVERYTHING if family not in case.records]
    recorded = "all but " + ", ".join(missing) if missing else "all"
    recorded = ", ".join([recorded, *(family for family in OF_SOME if family in case.records)])
    taken = {"at_step": "at the step", "before_clip": "before clipping", "backward": "at backward"}[case.view]
    weights = "identical" if case.exact else "equal within rounding"
    return f"| {case.name} | {recorded} | {taken} | {case.since} | {weights} | {case.note} |\n"


def row_together(case: Case) -> str:
    possible = ways_of(case)
    cells = [UNSUPPORTED.get((case.name, way), ("yes",))[0] if way in possible else "" for way in WAYS]
    return f"| {case.name} | {' | '.join(cells)} |\n"


def row_of_processes(layout: Layout) -> str:
    ways = ", ".join(layout.variants)
    return f"| {layout.name} | {layout.processes} | all | identical | {ways} | {layout.note} |\n"


def page() -> str:
    refusals = [f"| {refused.name} | {refused.why} |\n" for refused in REFUSED]
    parts = (
        INTRODUCTION.format(everything=", ".join(EVERYTHING), of_some=" and ".join(OF_SOME)),
        *map(row, [*EAGER, *CHECKPOINTING, *COMPILED]),
        TOGETHER.format(ways=" | ".join(WAYS), lines="|".join("---" for _ in WAYS)),
        *map(row_together, EAGER),
        *(PROCESSES, *map(row_of_processes, LAYOUTS)),
        SITUATIONS,
        *(REFUSALS, *refusals),
    )
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
