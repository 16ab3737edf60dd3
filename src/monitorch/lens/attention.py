"""What attention does: whether its weights are spread out or collapsed, and how large its logits are."""

from typing import Any

from torch import nn

from ..gatherer.call_gatherer import CallGatherer
from ..preprocessor.attention import AttentionWeights
from . import options
from .base import Lens
from .options import Strings
from .views import LayerLines, Source


class Attention(Lens):
    """Entropy of attention weights, and the largest attention logit, of each layer that computes attention.

    *Entropy* is the mean of H / ln(n) over queries: H is the entropy of a query's weights, n how many keys are not
    masked for it; queries with fewer than two keys do not count. 1 means that all keys get the same weight, 0 that each
    query looks at one key only. Near 0 in a whole layer (below 0.15) attention has collapsed: look at the logits, then
    at the learning rate, or normalise queries and keys. Its standard error is shown as well, since at most 128 queries
    of each call are sampled, with all heads.

    *Largest logit* is the largest over these queries and their keys, as it goes into the softmax. The largest of all
    queries may be larger, but not larger than *logit bound*: max|q| max|k| scale. Above 50 and growing it comes before
    a collapse. Weights are those before dropout.

    Covered are calls of ``scaled_dot_product_attention``, of ``softmax`` over the last dimension of a tensor with four,
    and of ``multi_head_attention_forward``, which ``nn.MultiheadAttention`` calls: the models of torch and of Hugging
    Face, and most that are written by hand, also inside ``torch.compile(model)``. Not covered are the flash-attn
    package and flex attention; **inside compiled graphs** also checkpointed parts and, with a warning, a model called
    inside a larger compiled function. Mask values below -5000 count as masked.

    Each observed step costs one matrix product of 128 queries with the keys of up to eight sequences in each layer, a
    pass over all queries and keys for their norms, and about a microsecond per torch call. ``nn.MultiheadAttention``
    projects queries and keys once more for it. Idle steps cost nothing. With ``record_eval=True`` the fast path that
    ``nn.MultiheadAttention`` takes in eval mode is off while it is looked at: outputs may differ in the last digit.

    Args:
        inplace: keep only running moments, instead of every sample.
        record_eval: record evaluation passes too.
        evaluation_from_grad: what training is: gradients on (True), train mode (False), or both (None).
        log_scale: logarithmic axis for logits.
        line_aggregation: lines to draw for entropies: mean, std, min, max; with ``inplace=False`` also median, Q1, Q2,
            Q3, IQR.
        range_aggregation: bands to draw for entropies: std, min-max; with ``inplace=False`` also Q1-Q3; None for none.
        in_graphs: also look into compiled graphs, by adding operators to them. False leaves graphs unchanged, as the
            standard lens does: then nothing is shown for a compiled model.
    """

    def __init__(
        self,
        inplace: bool = True,
        record_eval: bool = False,
        evaluation_from_grad: bool | None = None,
        log_scale: bool = False,
        line_aggregation: Strings = "mean",
        range_aggregation: Strings | None = ("std", "min-max"),
        in_graphs: bool = True,
    ) -> None:
        lines = options.points("line_aggregation", line_aggregation, inplace)
        bands = options.ranges("range_aggregation", range_aggregation, inplace)
        weights = AttentionWeights(inplace, record_eval, evaluation_from_grad, in_graphs)
        views = [
            LayerLines("Attention Entropy", Source(weights, "entropy"), lines, bands, ylim=(0, 1)),
            # no more than the entropy itself: without limits, errors of nearly 0 would count as jumps of the layer
            LayerLines("Attention Entropy Error", Source(weights, "entropy error"), ["mean"], None, limits=(0, 1)),
            LayerLines("Attention Largest Logit", Source(weights, "largest logit"), ["max"], None, logy=log_scale),
            LayerLines("Attention Logit Bound", Source(weights, "logit bound"), ["max"], None, logy=log_scale),
        ]
        super().__init__([weights], views)

    def register_leaf_module(self, module: nn.Module, module_name: str, inspector_state: Any) -> None:
        """Listen to every module: which of them compute attention is known when they do."""
        gatherer = CallGatherer(module, self._preprocessors, module_name, inspector_state)
        self._watch(gatherer, module_name, module_name)

    register_non_leaf_module = register_leaf_module
