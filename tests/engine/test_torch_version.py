"""A torch that is too old is refused where the engine is imported."""

import importlib
import re
from pathlib import Path

import pytest
import torch

from monitorch import MonitorchError, engine

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("version", ["2.11.0", "2.11.0a0+git1234", "2.13.0+cpu", "2.20.1", "3.0"])
def test_new_ones_are_fine(version):
    engine.check_torch(version)


@pytest.mark.parametrize("version", ["1.13.1", "2.4.1+cu121", "2.10.2", "2.9"])
def test_old_ones_are_refused_with_the_pip_line(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", torch.torch_version.TorchVersion(version))
    with pytest.raises(ImportError) as caught:
        importlib.reload(engine)
    assert isinstance(caught.value, MonitorchError)
    assert str(caught.value) == (
        f"monitorch needs torch 2.11 or newer, and this is torch {version}: pip install --upgrade 'torch>=2.11'"
    )


def test_pip_is_told_the_same():
    (required,) = re.findall(r'"torch>=([\d.]+)"', (ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert required == engine.OLDEST_TORCH
