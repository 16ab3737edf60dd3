"""What the page says torch does not support, it does not."""

import pytest

from tests.training_reality.cases import EAGER, REFUSED
from tests.training_reality.combinations import UNSUPPORTED, together
from tests.training_reality.journal import Training


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.name)
def test_torch_refuses(refused):
    with pytest.raises(RuntimeError, match=refused.says):
        refused.attempt()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of the compiler's own
@pytest.mark.parametrize(("row", "way"), UNSUPPORTED, ids=str)
def test_torch_cannot_do_both(row, way):
    case = together(next(case for case in EAGER if case.name == row), way)
    model = case.model()
    training = Training(model, model if case.compiled is None else case.compiled(model), case.optimizers(model))
    with pytest.raises((RuntimeError, UserWarning), match=UNSUPPORTED[row, way][1]):
        case.loop(training)
