"""The common part of the two lenses on the geometry of parameters."""

from ..preprocessor.geometry import GeometryPreprocessor
from . import options
from .options import Strings
from .parameter_lens import ParameterLens
from .views import View, geometry_views


class ParameterGeometry(ParameterLens):
    """Norm of a quantity of each parameter, such as its gradient, and its cosine with the one before."""

    _what: str
    _preprocessor: type[GeometryPreprocessor]

    def __init__(
        self,
        inplace: bool = True,
        normalize_by_size: bool = False,
        log_scale: bool = False,
        compute_correlation: bool = True,
        parameters: Strings = ("weight", "bias"),
        line_aggregation: Strings = "mean",
        range_aggregation: Strings | None = ("std", "min-max"),
        *,
        correlation: str = "exact",
    ) -> None:
        how = options.comparison("correlation", correlation)
        lines = options.points("line_aggregation", line_aggregation, inplace)
        bands = options.ranges("range_aggregation", range_aggregation, inplace)
        geometries = {
            parameter: self._preprocessor(compute_correlation, normalize_by_size, inplace, eps=0.0, comparison=how)
            for parameter in options.parameters(parameters)
        }
        views: list[View] = []
        for parameter, geometry in geometries.items():
            what = options.parameter_title(parameter, self._what)
            views += geometry_views(what, geometry, lines, bands, log_scale, correlation_ylim=(1, -1))
        super().__init__(dict(geometries), views)
