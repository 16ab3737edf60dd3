"""What the page says torch does not support, it does not."""

import pytest
import torch

from tests.training_reality.cases import EAGER, REFUSED
from tests.training_reality.combinations import GRAPHED, UNSUPPORTED, together
from tests.training_reality.journal import Training

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HERE = [pair for pair in UNSUPPORTED if DEVICE == "cuda" or pair[1] not in GRAPHED]


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.name)
def test_torch_refuses(refused):
    with pytest.raises(RuntimeError, match=refused.says):
        refused.attempt()


# the compiler's own, and what is left of a graph that failed
@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning",
    "ignore:TensorFloat32",
    "ignore:The CUDA Graph is empty",
    r"ignore:\nOnline softmax is disabled",
)
@pytest.mark.parametrize(("row", "way"), HERE, ids=str)
def test_torch_cannot_do_both(row, way):
    case = together(next(case for case in EAGER if case.name == row), way)
    model = case.model().to(DEVICE)
    training = Training(model, model if case.compiled is None else case.compiled(model), case.optimizers(model))
    with pytest.raises((RuntimeError, UserWarning), match=UNSUPPORTED[row, way][1]):
        case.loop(training)
