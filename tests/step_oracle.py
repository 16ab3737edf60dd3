"""What NumPy says about the steps of an optimizer, to compare with what a watch shows."""

import numpy as np
import pytest

CLOSE = {"rel": 1e-5}


def array(tensor):
    return tensor.detach().double().numpy().copy()


class Oracle:
    """What NumPy says about the steps of named tensors."""

    def __init__(self, named):
        self._named, self._before = dict(named), {}
        self.gradient, self.updates, self.ratios = 0.0, {}, {}

    def begin(self):
        self._before = {name: array(own) for name, own in self._named.items()}

    def end(self):
        """After the step, while gradients are there."""
        gradients = [array(own.grad) for own in self._named.values() if own.grad is not None]
        self.gradient = np.sqrt(sum((one**2).sum() for one in gradients))
        norms = {name: np.linalg.norm(before) for name, before in self._before.items()}
        self.updates = {name: np.linalg.norm(array(own) - self._before[name]) for name, own in self._named.items()}
        self.ratios = {name: moved / norms[name] for name, moved in self.updates.items() if norms[name]}


def shown(watched, lens, tag):
    return {r.layer: r.value for r in watched.records() if (r.lens, r.tag, r.statistic) == (lens, tag, "mean")}


def assert_right(watched, oracle, *, updates=True):
    """The last tick shows what the oracle knows of the last step."""
    records = {(r.lens, r.statistic): r.value for r in watched.records()}
    assert records["GradientNorm", "gradient_norm mean"] == pytest.approx(oracle.gradient, **CLOSE)
    if updates:
        geometry = shown(watched, "ParameterUpdateGeometry", "Parameter Update Norm")
        assert geometry == pytest.approx(oracle.updates, **CLOSE)
        assert shown(watched, "UpdateRatio", "Parameter Update Ratio") == pytest.approx(oracle.ratios, **CLOSE)
