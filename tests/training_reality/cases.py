"""The table: one row for each way to train. The tests train each row, and the page shows what they have found right."""

from functools import partial

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW

from tests.training_reality import loops, models
from tests.training_reality.case import (
    EVERYTHING,
    OF_SOME,
    Case,
    Refused,
    compiled_by_blocks,
    compiled_whole,
    of_parts,
    one,
    one_for_each_parameter,
)

NO_ACTIVATION = tuple(family for family in EVERYTHING if family != "activation rates")
ALL = "all"
RNN_PARAMETERS = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "weight")

EAGER = [
    Case("plain"),
    Case("without `optimizer=`", "a step is a training pass, and each backward pass a sample", view="backward"),
    Case("gradient accumulation", "one sample per step: the sum", loop=loops.accumulating),
    Case(
        "gradient accumulation without `optimizer=`",
        "each backward pass is a sample of the sum so far",
        loop=loops.accumulating,
        view="backward",
    ),
    Case("clipping", "what is left after clipping", loop=loops.clipping),
    Case('clipping, `gradient="before_clip"`', "what backward has computed", loop=loops.clipping, view="before_clip"),
    Case("autocast bfloat16", autocast=torch.bfloat16, tolerance=4e-2),
    Case("autocast float16", autocast=torch.float16, tolerance=1e-2),
    Case(
        "weights in bfloat16",
        model=models.half,
        precision=torch.bfloat16,
        tolerance=5e-2,
    ),
    Case("GradScaler", "unscaled", scale=2.0**10),
    Case("GradScaler, clipping", "unscaled and clipped", scale=2.0**10, loop=loops.clipping),
    Case(
        'GradScaler, clipping, `gradient="before_clip"`',
        "unscaled, before clipping",
        scale=2.0**10,
        loop=loops.clipping,
        view="before_clip",
    ),
    Case(
        "GradScaler, overflow",
        "the skipped step has no gradient and no update, is counted, and interrupts correlations",
        scale=2.0**10,
        loop=loops.overflowing,
    ),
    Case(
        "GradScaler, overflow, fused optimizer",
        "the same; the optimizer itself unscales and skips",
        scale=2.0**10,
        loop=loops.overflowing,
        optimizers=one(Adam, lr=0.01, fused=True),
    ),
    Case(
        'GradScaler, clipping, fused optimizer, `gradient="before_clip"`',
        scale=2.0**10,
        loop=loops.clipping,
        optimizers=one(SGD, fused=True),
        view="before_clip",
    ),
    Case(
        "GradScaler, parameters in no optimizer",
        "those are taken at backward, unscaled",
        scale=2.0**10,
        loop=loops.dropping_all_gradients,
        optimizers=of_parts("0", "2"),
    ),
    Case(
        "GradScaler without `optimizer=`",
        "gradients of the scaled loss: `grad_scaler=` needs `optimizer=`",
        scale=2.0**10,
        view="backward",
    ),
    Case("fused optimizer", optimizers=one(AdamW, lr=0.01, fused=True)),
    Case("foreach optimizer", optimizers=one(SGD, momentum=0.9, foreach=True)),
    Case("layers frozen, later unfrozen", "gradients begin when the layers train", loop=loops.unfreezing, since=3),
    Case("tied weights", "recorded once, under the first name", models.Tied, since=1),
    Case("a module called twice, others never", "each call is a sample", models.CalledTwice),
    Case("a module under two names", "recorded under the first one; each call is a sample", models.TwoNames),
    Case("evaluation in between", "evaluation passes are not recorded", loop=loops.evaluating),
    Case("sparse gradients", model=models.Sparse),
    Case(
        "gradient penalty (`create_graph=True`)",
        "gradients of outputs of the pass that trains; the pass that computes the penalty is not a sample",
        model=models.smooth,
        loop=loops.penalising,
    ),
    Case("short last batch", "a change of shape interrupts correlations of outputs", loop=loops.short_last_batch),
    Case("in-place activations", model=partial(models.mlp, inplace=True)),
    Case("convolution", model=models.convolution, channel_dim=1),
    Case(
        "several optimizers (GAN)",
        "each at its own steps; the steps of the first one count",
        models.Gan,
        loops.adversarial,
        of_parts("critic", "generator"),
    ),
    Case(
        "parameters in no optimizer",
        "those are taken at backward; `inspector.gradient_moments` says which",
        optimizers=of_parts("0", "2"),
    ),
    Case(
        "parameters added to the optimizer later",
        "taken at its steps from then on; updates begin then",
        loop=loops.joining,
        optimizers=of_parts("0"),
        since=3,
    ),
    Case(
        "steps inside backward",
        "one optimizer for each parameter; the steps of the first one count",
        loop=loops.stepping_inside_backward,
        optimizers=one_for_each_parameter,
    ),
    Case(
        'steps inside backward, `gradient="before_clip"`',
        "the gradient that the step uses",
        loop=loops.stepping_inside_backward,
        optimizers=one_for_each_parameter,
        view="before_clip",
    ),
    Case(
        "LBFGS, `step(closure)`",
        "one sample per step, from the last evaluation; outputs of every evaluation",
        loop=loops.closures,
        optimizers=one(torch.optim.LBFGS, max_iter=3),
    ),
    Case(
        "weight_norm, parametrizations",
        "the direction (`original1`) is shown as the weight",
        models.weight_normed,
        trained_factors={"0.weight": "0.parametrizations.weight.original1"},
    ),
    Case("lazy modules", "from the first pass on", models.lazy),
    Case(
        'LSTM, `parameters="all"`',
        "every parameter under its own name",
        partial(models.Recurrent, nn.LSTM),
        records=NO_ACTIVATION,
        parameters=ALL,
    ),
    Case(
        "GRU",
        "its parameters are named with `parameters=`",
        partial(models.Recurrent, nn.GRU),
        records=NO_ACTIVATION,
        parameters=RNN_PARAMETERS,
    ),
    Case(
        "MultiheadAttention",
        "its last layer is never called as a module, so it has no output",
        models.Attention,
        parameters=("in_proj_weight", "weight", "bias"),
    ),
    Case('TransformerEncoder, `parameters="all"`', model=models.Encoder, parameters=ALL),
    Case(
        "mixture of experts, BatchNorm",
        "each pass of a router and of a BatchNorm layer is a sample",
        models.mixture,
        records=(*EVERYTHING, *OF_SOME),
    ),
    Case(
        "mixture of experts, BatchNorm, gradient accumulation",
        "each micro-batch is a sample",
        models.mixture,
        loops.accumulating,
        records=(*EVERYTHING, *OF_SOME),
    ),
]

CHECKPOINTING = [
    Case("checkpointing, reentrant", "the repetition is not counted", partial(models.Checkpointed, True)),
    Case("checkpointing, non-reentrant", "the repetition is not counted", partial(models.Checkpointed, False)),
]

COMPILED = [
    Case(
        "torch.compile",
        "weights equal within rounding, not bit by bit",
        compiled=compiled_whole(),
        exact=False,
    ),
    Case("torch.compile, fullgraph", compiled=compiled_whole(backend="aot_eager", fullgraph=True), exact=False),
    Case(
        "torch.compile, attached after the first run",
        "the inspector has the model compiled again, with a warning",
        compiled=compiled_whole(backend="aot_eager"),
        attach_after=True,
        exact=False,
    ),
    Case("torch.compile, blocks one by one", model=models.blocks, compiled=compiled_by_blocks, exact=False),
    Case(
        "torch.compile, `mode='reduce-overhead'`",
        "CUDA graphs where there is a GPU",
        compiled=compiled_whole(mode="reduce-overhead"),
        exact=False,
    ),
]


def closure_under_scaler():
    model = models.mlp()
    scaler = torch.amp.GradScaler("cpu")
    scaler.step(torch.optim.LBFGS(model.parameters()), closure=lambda: None)


def fused_and_foreach():
    return torch.optim.SGD(models.mlp().parameters(), lr=0.1, fused=True, foreach=True)


REFUSED = [
    Refused(
        "`step(closure)` under a GradScaler",
        "a GradScaler takes no closure",
        closure_under_scaler,
        "Closure use is not currently supported",
    ),
    Refused(
        "fused and foreach at once",
        "an optimizer is one or the other",
        fused_and_foreach,
        "cannot be `True` together",
    ),
]
