"""What the page says torch does not support, it does not."""

import pytest

from tests.training_reality.cases import REFUSED


@pytest.mark.parametrize("refused", REFUSED, ids=lambda refused: refused.name)
def test_torch_refuses(refused):
    with pytest.raises(RuntimeError, match=refused.says):
        refused.attempt()
