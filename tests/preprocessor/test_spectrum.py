"""Singular values of weights, compared with NumPy."""

import copy
import math
import pickle

import numpy as np
import pytest
import torch

from monitorch.errors import SkippedSample
from monitorch.preprocessor import spectrum as spectrum_module
from monitorch.preprocessor.spectrum import Spectrum

stream = np.random.default_rng(5)


def with_singular_values(rows, columns, values):
    left = np.linalg.qr(stream.normal(size=(rows, rows)))[0][:, : len(values)]
    right = np.linalg.qr(stream.normal(size=(columns, columns)))[0][:, : len(values)]
    return left * values @ right.T


MATRICES = {
    "wide": stream.normal(size=(4, 9)),
    "tall": stream.normal(size=(9, 4)),
    "one number": np.array([[-3.0]]),
    "one row": stream.normal(size=(1, 6)),
    "one column": stream.normal(size=(6, 1)),
    "images": stream.normal(size=(4, 3, 2, 2)),
    "rank one": np.outer(stream.normal(size=5), stream.normal(size=7)),
    "equal singular values": with_singular_values(6, 6, [2.0] * 6),
    "two largest": with_singular_values(6, 8, [5.0, 5.0, 1.0, 0.1]),
    "tiny": 1e-20 * stream.normal(size=(5, 5)),
    "huge": 1e15 * stream.normal(size=(5, 5)),
}


def numbers(array):
    singular = np.linalg.svd(array.reshape(len(array), -1), compute_uv=False)
    shares = singular[singular > singular[0] * 1e-9] / singular.sum()
    return {
        "spectral norm": singular[0],
        "stable rank": np.sum(singular**2) / singular[0] ** 2,
        "effective rank": np.exp(-np.sum(shares * np.log(shares))),
    }


def means(spectrum, name="layer"):
    return {statistic: found.mean for statistic, found in spectrum.value[name].items()}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", MATRICES)
def test_numbers_are_those_of_numpy(name, dtype):
    weight = torch.tensor(MATRICES[name], dtype=dtype)
    spectrum = Spectrum("weight", iterations=300, largest_svd=10)
    spectrum.process_parameter("layer", weight)
    expected = numbers(weight.double().numpy())
    assert means(spectrum) == {statistic: pytest.approx(number, rel=1e-4) for statistic, number in expected.items()}


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.complex64])
def test_other_kinds_of_numbers(dtype):
    array = stream.normal(size=(6, 8)) + 1j * stream.normal(size=(6, 8)) * dtype.is_complex
    weight = torch.tensor(array if dtype.is_complex else array.real).to(dtype)
    spectrum = Spectrum("weight", iterations=300, largest_svd=10)
    spectrum.process_parameter("layer", weight)
    expected = numbers(weight.to(torch.complex128).numpy())
    assert means(spectrum) == {statistic: pytest.approx(number, rel=1e-4) for statistic, number in expected.items()}


@pytest.fixture
def together(monkeypatch):
    """Matrices of the same shape wait for each other, as they do on a GPU."""
    monkeypatch.setattr(spectrum_module, "ALONE", frozenset())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex64, torch.bfloat16])
def test_matrices_that_are_taken_together_have_the_numbers_of_each(dtype, together):
    weights = {name: torch.tensor(array).to(dtype) for name, array in MATRICES.items()}
    weights |= {f"{name}, turned": weight.flip(0) * 2 for name, weight in weights.items()}
    weights["nothing"] = torch.zeros_like(weights["wide"])
    spectrum = Spectrum("weight", iterations=150, largest_svd=0)
    for _ in range(2):  # it goes on where it stopped
        for name, weight in weights.items():
            spectrum.process_parameter(name, weight)
        found = {name: means(spectrum, name) for name in weights}
        assert {type(vector) for vector in spectrum.state_dict()["vectors"].values()} == {torch.Tensor}
        assert math.isclose(found.pop("nothing")["spectral norm"], 0.0)
        for name in found:
            expected = numbers(weights[name].to(torch.complex128 if dtype.is_complex else torch.float64).numpy())
            assert found[name] == {own: pytest.approx(expected[own], rel=1e-3) for own in found[name]}
        spectrum.reset()


def test_one_more_matrix_takes_no_more_operations(together, host_syncs):
    found = []
    for count in (2, 12):
        spectrum = Spectrum("weight", iterations=10, largest_svd=0)
        with host_syncs() as counter:
            for number in range(count):
                spectrum.process_parameter(str(number), torch.ones(3, 4))
            spectrum.pending(spectrum.release())
        assert (counter.operators["aten::bmm"], counter.waits) == (80, 0)
        found.append(sum(counter.operators.values()))
    assert (found[1] - found[0]) / 10 < 20


@pytest.mark.parametrize("shape", [(4, 4), (16, 16), (64, 64), (256, 64)])
def test_the_first_norm_of_a_random_matrix_is_close(shape):
    for _ in range(40):
        weight = stream.normal(size=shape)
        spectrum = Spectrum("weight", iterations=10, largest_svd=0)
        spectrum.process_parameter("layer", torch.tensor(weight))
        assert means(spectrum)["spectral norm"] > 0.92 * np.linalg.norm(weight, 2)


def test_the_norm_is_a_lower_bound_that_gets_better_with_every_sample():
    weight = torch.tensor(stream.normal(size=(200, 300)))
    spectrum = Spectrum("weight", iterations=3, largest_svd=0)
    found = []
    for _ in range(60):
        spectrum.process_parameter("layer", weight)
        found.append(means(spectrum)["spectral norm"])
        spectrum.reset()
    exact = np.linalg.norm(weight.numpy(), 2)
    assert found == sorted(found)
    assert 0.7 * exact < found[0] < 0.99 * exact
    assert found[-1] == pytest.approx(exact, rel=1e-3)
    assert found[-1] <= exact * (1 + 1e-12)


@pytest.mark.parametrize("shape", [(3, 5), (2, 3, 2, 2)])
def test_a_matrix_of_zeros_has_no_rank_and_learns_later(shape):
    weight, spectrum = torch.zeros(shape), Spectrum("weight", iterations=300, largest_svd=10)
    spectrum.process_parameter("layer", weight)  # as LoRA begins with
    assert means(spectrum) == {"spectral norm": 0.0, "stable rank": 0.0, "effective rank": 0.0}
    assert all(found.nonfinite == 0 for found in spectrum.value["layer"].values())
    spectrum.reset()
    weight += torch.tensor(stream.normal(size=shape))
    spectrum.process_parameter("layer", weight)
    assert means(spectrum) == pytest.approx(numbers(weight.double().numpy()), rel=1e-4)


@pytest.mark.parametrize("broken", [math.nan, math.inf])
def test_a_broken_matrix_does_not_spoil_later_samples(broken):
    weight = torch.tensor(MATRICES["wide"])
    spectrum = Spectrum("weight", iterations=300, largest_svd=10)
    spectrum.process_parameter("layer", weight * broken)
    assert spectrum.value["layer"]["stable rank"].nonfinite == 1
    assert spectrum.value["layer"]["effective rank"].nonfinite == 1
    spectrum.reset()
    spectrum.process_parameter("layer", weight)
    expected = numbers(weight.numpy())
    assert means(spectrum) == {statistic: pytest.approx(number, rel=1e-6) for statistic, number in expected.items()}


@pytest.mark.parametrize(
    ("shape", "device"), [((), "cpu"), ((3,), "cpu"), ((0, 3), "cpu"), ((3, 0), "cpu"), ((2, 3), "meta")]
)
def test_what_is_no_matrix_of_numbers_is_left_out(shape, device):
    spectrum = Spectrum("weight", iterations=2, largest_svd=2)
    spectrum.process_parameter("layer", torch.ones(shape, device=device))
    assert spectrum.value == {}


def test_a_matrix_that_is_too_large_has_no_effective_rank():
    spectrum = Spectrum("weight", iterations=2, largest_svd=3)
    with pytest.raises(SkippedSample, match="effective ranks are computed up to largest_svd=3 only"):
        spectrum.process_parameter("layer", torch.ones(4, 5))
    assert set(spectrum.value["layer"]) == {"spectral norm", "stable rank"}


def test_a_matrix_of_another_shape_begins_anew():
    spectrum = Spectrum("weight", iterations=300, largest_svd=0)
    for name in ("wide", "tall"):
        spectrum.reset()
        spectrum.process_parameter("layer", torch.tensor(MATRICES[name]))
        assert means(spectrum)["spectral norm"] == pytest.approx(np.linalg.norm(MATRICES[name], 2))


@pytest.mark.parametrize("how", [copy.deepcopy, lambda spectrum: pickle.loads(pickle.dumps(spectrum)), "state"])
def test_copies_and_saved_states_go_on_where_it_stopped(how):
    weight = torch.tensor(stream.normal(size=(50, 60)))
    spectrum = Spectrum("weight", iterations=2, largest_svd=0)
    spectrum.process_parameter("layer", weight)
    if how == "state":
        again = Spectrum("weight", iterations=2, largest_svd=0)
        again.load_state_dict(spectrum.state_dict())
    else:
        again = how(spectrum)
    for one in (spectrum, again):
        one.process_parameter("layer", weight)
    assert means(again) == means(spectrum)
    spectrum.clear()
    spectrum.process_parameter("layer", weight)
    assert means(spectrum)["spectral norm"] < means(again)["spectral norm"]


def test_nothing_waits_for_the_device_and_no_random_number_is_drawn(host_syncs):
    state = torch.get_rng_state()
    spectrum = Spectrum("weight", iterations=3, largest_svd=0)
    with host_syncs() as counter:
        spectrum.process_parameter("layer", torch.ones(3, 4))
        spectrum.process_parameter("layer", torch.ones(3, 4))
    assert counter.operators["aten::mv"] == 24 + 6
    assert counter.waits == 0
    assert torch.equal(torch.get_rng_state(), state)


def test_autocast_changes_nothing():
    found = []
    for on in (True, False):
        spectrum = Spectrum("weight", iterations=3, largest_svd=0)
        with torch.autocast("cpu", torch.bfloat16, enabled=on):
            spectrum.process_parameter("layer", torch.tensor(MATRICES["wide"], dtype=torch.float32))
        found.append(means(spectrum))
    assert found[0] == found[1]
