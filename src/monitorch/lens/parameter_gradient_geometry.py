"""How large the gradients of each parameter are, and how their direction changes."""

from ..preprocessor import GradientGeometry
from .parameter_geometry import ParameterGeometry
from .parameter_gradient_lens import ParameterGradientLens


class ParameterGradientGeometry(ParameterGeometry, ParameterGradientLens):
    """Norm of each parameter's gradient, and its cosine with the one before.

    Args:
        inplace: keep only running moments, instead of every sample.
        normalize_by_size: divide norms by the root of the number of elements.
        log_scale: logarithmic axis for norms.
        compute_correlation: compare consecutive gradients.
        parameters: names of the parameters to watch, or ``"all"`` for every one, shown as ``"lstm.weight_ih_l0"``.
        line_aggregation: lines to draw: mean, std, min, max; with ``inplace=False`` also median, Q1, Q2, Q3, IQR.
        range_aggregation: bands to draw: std, min-max; with ``inplace=False`` also Q1-Q3; None for none.
        correlation: ``"exact"`` keeps a copy of the last gradient; ``"sketch"`` keeps only a random projection of 4,096
            numbers, so the cosine has a standard error of 0.022, at most 0.031; ``"auto"`` keeps copies while those of
            all lenses take little memory, and sketches of what comes later.
    """

    _what = "gradient"
    _preprocessor = GradientGeometry
