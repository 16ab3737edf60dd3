"""Writes docs/training_reality.md from the rows of the table: ``python -m tests.training_reality.make_page``."""

from pathlib import Path

from tests.training_reality.case import EVERYTHING, Case
from tests.training_reality.cases import CHECKPOINTING, COMPILED, EAGER, REFUSED
from tests.training_reality.combinations import UNSUPPORTED, WAYS, ways_of
from tests.training_reality.distributed.cases import LAYOUTS, Layout

PAGE = Path(__file__).parents[2] / "docs" / "training_reality.md"

INTRODUCTION = """\
# Right numbers, however you train

Each row of the table below is a test. It trains a small model that way and compares every number of every step with an
oracle: the same training done again in float64 by autograd alone. It also trains without the inspector and compares
the weights and the random stream. The rows live in `tests/training_reality/cases.py`; where there is a GPU they are
trained there as well.

Numbers are: {everything}. Norms come with correlations wherever consecutive tensors are compared.

## Gradients are what the optimizer consumes

```python
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.lens import ParameterGradientGeometry, ParameterUpdateGeometry

model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu")
lenses = [ParameterGradientGeometry(), ParameterUpdateGeometry(optimizer)]
inspector = PyTorchInspector(lenses, module=model, optimizer=optimizer, grad_scaler=scaler, visualizer="dummy")
for step in range(3):
    optimizer.zero_grad()
    scaler.scale(model(torch.randn(16, 4)).square().mean()).backward()
    scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)
    scaler.step(optimizer)
    scaler.update()
inspector.tick_epoch()  # gradients after accumulation, unscaling and clipping, and how many steps were skipped
inspector.detach()
```

* `optimizer=` (one or several): gradients of their parameters are taken at their steps. Without it each backward is a
  sample of what `.grad` holds by then.
* `gradient="before_clip"`: as they were when the last backward before the step ended, unscaled. It costs a copy of the
  gradients.
* `grad_scaler=`: all gradients, those of outputs too, are numbers of the loss itself. A step that the scaler skips has
  no gradient and no update, cuts correlations, counts as a step, and is shown in `skipped steps`. Without `optimizer=`
  it is refused: what a scaler skips are steps of an optimizer. Gradients of outputs are shown for skipped steps too,
  with what is not finite counted apart. A scaler that is not given is noticed by the gradient of the loss, where the
  loss is seen: a warning says so.
* Parameters that no given optimizer has are taken at backward; `inspector.gradient_moments` says when each is taken.
* An optimizer that steps with a closure shows its last evaluation.
* With `optimizer=` the loss of a step is one sample, too: the mean over its micro-batches, whether a `loss_fn` computes
  it, the model returns it or it is pushed. Where a model is told how many items all micro-batches have together
  (`num_items_in_batch`, as Hugging Face's Trainer does), its losses are parts, and are added up.

## The table

`taken` says when gradients of parameters are taken, `since` from which step on all series have numbers, `weights`
whether they are bit-identical with and without the inspector.

| way to train | recorded | taken | since | weights | remark |
|---|---|---|---|---|---|
"""

TOGETHER = """
## Together with checkpointing and torch.compile

The rows above again: with both kinds of checkpointing where the model has a middle to compute twice, compiled, and with
all of it at once. Each is a row of its own, with the same numbers, the same weights (compiled: within rounding) and not
one graph break more than without the inspector. CUDA graphs are those of `mode="reduce-overhead"`, on a GPU. What torch
itself cannot do says so. Before torch 2.13 compiled graphs go on without layers that were frozen when they were made.

| way to train | {ways} |
|---|{lines}|
"""

PROCESSES = """
## Several processes

Each row is started with torchrun; the oracle is one process in float64 with the batches of all. Numbers are those
above, loss and rates of gradients, with mean, deviation, extremes and median. Compiled weights are equal within
rounding, and there is not one graph break more. [processes.md](processes.md) says more.

| way to train | processes | recorded | weights | each as | remark |
|---|---|---|---|---|---|
"""

REFUSALS = """
## What torch does not support

| way to train | why there is no row |
|---|---|
"""


def row(case: Case) -> str:
    missing = [family for family in EVERYTHING if family not in case.records]
    recorded = "all but " + ", ".join(missing) if missing else "all"
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
        INTRODUCTION.format(everything=", ".join(EVERYTHING)),
        *map(row, [*EAGER, *CHECKPOINTING, *COMPILED]),
        TOGETHER.format(ways=" | ".join(WAYS), lines="|".join("---" for _ in WAYS)),
        *map(row_together, EAGER),
        *(PROCESSES, *map(row_of_processes, LAYOUTS)),
        *(REFUSALS, *refusals),
    )
    return "".join(parts)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
