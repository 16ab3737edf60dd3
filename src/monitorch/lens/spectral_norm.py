"""Spectral norms of weights, and their ranks."""

from ..preprocessor.spectrum import EFFECTIVE_RANK, SPECTRAL_NORM, STABLE_RANK, Spectrum
from . import options
from .options import Strings
from .parameter_state_lens import ParameterStateLens
from .views import LayerLines, Source


class SpectralNorm(ParameterStateLens):
    """Largest singular value of each weight matrix, and its effective rank.

    The spectral norm s1 is how much the matrix can lengthen a vector. The stable rank is |W|^2 / s1^2, with |W| the
    Frobenius norm: from 1, if one direction dominates, to the length of the smaller side. The effective rank is
    exp(-sum p ln p) of singular values p that add up to 1. A matrix of zeros has rank 0. Tensors with more than two
    dimensions are flattened to (first, rest); vectors are left out.

    How to read it: a spectral norm that grows without end makes outputs, or the logits of attention, grow as well. A
    rank that falls to a few means that a layer passes on little of what it gets.

    Power iteration takes ``iterations`` steps at each tick, four times as many at the first, and continues from there
    at the next. So the norm is a lower bound, at first one percent too small, at most six, and the stable rank an upper
    one. Costs ``2 * iterations`` products of the matrix with a vector at each tick, without waiting for the device, and
    one vector of memory. On a GPU matrices of the same shape are multiplied together, which takes copies of up to
    64 MiB during a tick.

    Args:
        parameters: names of the parameters to watch, or ``"all"`` for every one, shown as ``"lstm.weight_ih_l0"``.
        iterations: steps of power iteration at each tick.
        largest_svd: show the effective rank of matrices whose smaller side has at most this many elements; larger ones
            are left out, and a warning says so. It takes a singular value decomposition, which waits for the device.
            0 shows none.
        log_scale: logarithmic axis for norms.
    """

    _default = ("weight",)

    def __init__(
        self,
        parameters: Strings = "weight",
        *,
        iterations: int = 10,
        largest_svd: int = 0,
        log_scale: bool = False,
    ) -> None:
        steps, largest_svd = options.whole("iterations", iterations, 1), options.whole("largest_svd", largest_svd, 0)
        names = options.parameters(parameters)
        spectra = {name: Spectrum(name, steps, largest_svd) for name in names}
        shown = (SPECTRAL_NORM, STABLE_RANK, EFFECTIVE_RANK) if largest_svd else (SPECTRAL_NORM, STABLE_RANK)
        views = [
            LayerLines(
                options.parameter_title(name, statistic),
                Source(spectra[name], statistic),
                ["mean"],
                None,
                logy=log_scale and statistic == SPECTRAL_NORM,
            )
            for name in names
            for statistic in shown
        ]
        super().__init__(dict(spectra), views)
