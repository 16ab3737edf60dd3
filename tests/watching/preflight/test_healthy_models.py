"""Healthy models get no warning, however odd they look."""

import pytest
import torch

from monitorch import preflight

from .models import HEALTHY

REMARKS = {
    "two_heads": [("no_gradient", "unused")],
    "time_first": [("no_progress", None)],
    "slow": [("no_progress", None)],
}
"""What is said about them all the same, as information."""


@pytest.mark.parametrize("name", HEALTHY)
def test_no_warning(name):
    torch.manual_seed(0)
    found = preflight(*HEALTHY[name]().all)
    assert [finding.line for finding in found if finding.severity != "info"] == []
    assert [(finding.symptom, finding.layer) for finding in found] == REMARKS.get(name, [])
