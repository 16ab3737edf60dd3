"""Histograms of elements: bins, quantiles against NumPy, exact merging, and what is exact over whole tensors."""

import copy
import pickle

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from monitorch.engine.distributed_tensors import OWN, SHARED
from monitorch.engine.ranks import merged
from monitorch.errors import SkippedSample
from monitorch.numerical import batches
from monitorch.numerical.waiting import HostCopy
from monitorch.preprocessor import distribution
from monitorch.preprocessor.distribution import BINS, INFINITE, LOWER, NAN, QUANTILES, UPPER, ZERO, Histograms

SHARES = np.array(list(QUANTILES.values()))
SMALLEST, LARGEST = 2.0**-43, 2.0**21
MOST = 65_536


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(*shape, generator=stream(seed)).to(dtype)


def histograms_of(*tensors):
    found = Histograms()
    for tensor in tensors:
        found.process_tensor("layer", tensor)
    return found


def shown(*tensors):
    return np.array(list(histograms_of(*tensors).quantiles()["layer"].values()))


def bin_width(numbers):
    """The quarter of the power of two below each number."""
    return np.where(numbers == 0, 0, 2.0 ** np.floor(np.log2(np.abs(np.where(numbers == 0, 1, numbers)))) / 4)


def finite(tensor):
    numbers = tensor.double().numpy().ravel()
    return np.sort(numbers[np.isfinite(numbers)])


def with_broken(tensor):
    tensor = tensor.clone()
    tensor.view(-1)[::7], tensor.view(-1)[1::7], tensor.view(-1)[2::14] = torch.nan, torch.inf, -torch.inf
    return tensor


def cauchy(size):
    return torch.from_numpy(np.random.default_rng(3).standard_cauchy(size)).float()


DISTRIBUTIONS = {
    "normal": normal(4000),
    "moved away from 0": normal(4000) * 0.001 + 5,
    "negative": -normal(500).abs() - 1e-3,
    "heavy tails": cauchy(4000).clamp(-1e6, 1e6),
    "many powers of ten": 10 ** (normal(4000) * 3).clamp(-12, 6),
    "half zeros": normal(3001).relu(),
    "two values": torch.tensor([-1.0, 1.0]).repeat(50),
    "few": normal(7),
    "one": torch.tensor([-0.37]),
    "a scalar": torch.tensor(2.5),
    "constant": torch.full((300,), 3.3),
    "all zero": torch.zeros(20, 3),
    "negative zeros": -torch.zeros(20),
    "not all finite": with_broken(normal(4000)),
    "bfloat16": normal(4000, dtype=torch.bfloat16),
    "float16": normal(4000, dtype=torch.float16) * 1000,
    "float8": normal(400).to(torch.float8_e4m3fn),
    "float64": normal(4000).double() * 1e-7,
    "transposed": normal(40, 30).T,
    "with the smallest and the largest of all bins": torch.tensor([SMALLEST, -SMALLEST, LARGEST * 0.99]),
}


@pytest.mark.parametrize("tensor", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_quantiles_are_within_a_bin_of_those_of_numpy(tensor):
    numbers = finite(tensor)
    low, high = (np.quantile(numbers, SHARES, method=method) for method in ("lower", "higher"))
    found, expected = shown(tensor), np.quantile(numbers, SHARES)
    assert np.all(np.abs(found - expected) <= np.maximum(bin_width(low), bin_width(high)) * (1 + 1e-9))
    assert np.all((numbers[0] <= found) & (found <= numbers[-1]))
    assert np.all(np.diff(found) >= 0)


@pytest.mark.parametrize("tensor", DISTRIBUTIONS.values(), ids=DISTRIBUTIONS)
def test_extremes_and_counts_are_exact(tensor):
    found, numbers = histograms_of(tensor), tensor.double().numpy().ravel()
    extremes = found.value["layer"]["range"]
    assert (extremes.min_, extremes.max_) == (finite(tensor)[0], finite(tensor)[-1])
    special = {"zero": np.sum(numbers == 0), "infinite": np.sum(np.isinf(numbers)), "nan": np.sum(np.isnan(numbers))}
    assert found.specials()["layer"] == special


def test_the_middle_of_a_bin_is_within_an_eighth_of_all_its_members():
    numbers = np.concatenate([2.0 ** np.linspace(-42.999, 20.999, 3001), LOWER[ZERO + 1 :]]).astype(np.float32)
    numbers = np.concatenate([numbers, -numbers]).astype(np.float64)
    middles = (LOWER + UPPER) / 2
    for number in numbers[::3]:
        counts = distribution.bin_counts(torch.tensor([number], dtype=torch.float32))
        (place,) = np.flatnonzero(counts)
        assert abs(middles[place] - number) <= 0.125 * abs(number) * (1 + 1e-12)
        assert min(abs(LOWER[place]), abs(UPPER[place])) <= abs(number) < max(abs(LOWER[place]), abs(UPPER[place]))


def test_bins_follow_each_other_without_gaps():
    assert len(LOWER) == len(UPPER) == INFINITE == 2 * 256 + 1
    sides = np.delete(LOWER, ZERO), np.delete(UPPER, ZERO)
    assert np.array_equal(np.delete(sides[0], [0, 256]), np.delete(sides[1], [255, 511]))
    assert (UPPER[-1], LOWER[0], UPPER[ZERO - 1], LOWER[ZERO + 1]) == (LARGEST, -LARGEST, -SMALLEST, SMALLEST)


@pytest.mark.parametrize(
    ("number", "place"),
    [
        (0.0, ZERO),
        (-0.0, ZERO),
        (torch.inf, INFINITE),
        (-torch.inf, INFINITE),
        (torch.nan, NAN),
        (-torch.nan, NAN),
        (1e-30, ZERO + 1),
        (-1e-30, ZERO - 1),
        (1e-45, ZERO + 1),  # subnormal
        (1e30, 2 * 256),
        (-3e38, 0),
    ],
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_special_and_far_numbers_have_a_bin(number, place, dtype):
    tensor = torch.tensor([number], dtype=dtype)
    expected = ZERO if tensor.item() == 0 else place  # a short float has no smaller numbers
    assert np.flatnonzero(distribution.bin_counts(tensor)).tolist() == [expected]


@pytest.mark.parametrize(("number", "place"), [(1e300, 2 * 256), (-1e300, 0), (1e-300, ZERO + 1), (-1e-300, ZERO - 1)])
def test_what_float32_does_not_have_is_neither_infinite_nor_zero(number, place):
    found = histograms_of(torch.tensor([number], dtype=torch.float64))
    assert np.flatnonzero(found.histograms()["layer"]).tolist() == [place]
    assert set(found.quantiles()["layer"].values()) == {number}  # never outside of the extremes
    assert not any(found.specials()["layer"].values())


def test_a_signalling_nan_is_none_but_a_nan():
    bits = torch.tensor([0x7F800001, -0x007FFFFF, 0x7FC00000], dtype=torch.int32)
    assert distribution.bin_counts(bits.view(torch.float32))[NAN] == 3


def test_without_finite_elements_there_are_no_quantiles():
    found = histograms_of(torch.tensor([torch.nan, torch.inf, -torch.inf]))
    assert np.isnan(list(found.quantiles()["layer"].values())).all()
    assert found.specials()["layer"] == {"zero": 0, "infinite": 2, "nan": 1}
    assert found.value["layer"]["range"].count == 0


def test_an_empty_tensor_counts_for_nothing():
    found = histograms_of(torch.zeros(0, 3))
    assert (found.quantiles(), found.specials(), found.value) == ({}, {}, {})


def test_a_tensor_without_numbers_counts_for_nothing():
    assert histograms_of(torch.ones(2, 3, device="meta")).quantiles() == {}


def test_complex_numbers_count_as_two():
    real = normal(50, 2)
    assert np.array_equal(shown(torch.view_as_complex(real)), shown(real))


def test_a_sparse_gradient_has_its_zeros():
    dense = torch.zeros(5, 2).index_fill(0, torch.tensor([3]), 2.0)
    assert histograms_of(dense.to_sparse()).specials()["layer"]["zero"] == 8


# large tensors


@pytest.mark.parametrize("shape", [(MOST,), (MOST + 1,), (MOST + 300,), (1, 3 * MOST), (512, 784), (7, 50_257)])
def test_at_most_65536_elements_are_looked_at_and_each_once(shape):
    places = distribution.spread(torch.arange(np.prod(shape), dtype=torch.float64).reshape(shape))
    numbers = np.sort(places.numpy().ravel())
    assert len(np.unique(numbers)) == len(numbers) == min(np.prod(shape), MOST)
    assert np.diff(numbers).max() <= np.prod(shape) / 256 + 1  # nothing larger than a step is left out
    assert numbers[-1] > np.prod(shape) * (1 - 2 / 256)


@pytest.mark.parametrize("columns", [512, 768, 784, 1024, 4096])
def test_blocks_do_not_begin_at_the_same_column_of_each_row(columns):
    """Columns are channels: to look at some of them only would be wrong."""
    numbers = torch.arange(columns, dtype=torch.float32).expand(4096, columns).contiguous()
    seen = np.unique(distribution.spread(numbers).numpy(), return_counts=True)[1]
    assert len(seen) == columns
    assert seen.max() <= 3 * seen.min()


def test_of_a_large_tensor_extremes_and_counts_are_still_exact():
    tensor = normal(300, 1000)
    tensor[:, ::5] = 0
    flat = tensor.view(-1)
    looked_at = set(distribution.spread(torch.arange(flat.numel(), dtype=torch.float64)).long().view(-1).tolist())
    unseen = [place for place in range(flat.numel()) if place not in looked_at][:5]
    flat[unseen] = torch.tensor([torch.nan, torch.inf, -torch.inf, 1e4, -1e5])
    found = histograms_of(tensor)
    assert found.specials()["layer"] == {"zero": (tensor == 0).sum().item(), "infinite": 2, "nan": 1}
    assert (found.value["layer"]["range"].min_, found.value["layer"]["range"].max_) == (-1e5, 1e4)
    assert found.histograms()["layer"][:BINS].sum() == MOST
    numbers, quantiles, chance = finite(tensor), shown(tensor), 5 * np.sqrt(SHARES * (1 - SHARES) / MOST)
    below = np.searchsorted(numbers, quantiles - bin_width(quantiles), side="left")
    up_to = np.searchsorted(numbers, quantiles + bin_width(quantiles), side="right")
    assert np.all(below / len(numbers) <= SHARES + chance)
    assert np.all(up_to / len(numbers) >= SHARES - chance)


# a tick


MIXED = {
    "a": normal(300, 400),
    "b": with_broken(normal(300, 400, seed=1)),
    "c": normal(70_000, seed=2, dtype=torch.bfloat16),
    "d": normal(50, seed=3),
    "e": -normal(50, seed=4).abs(),
    "f": normal(5, 10, seed=5).double(),
    "g": normal(300, 400, seed=6) * 100,
}


def test_tensors_that_are_counted_together_are_counted_as_each_alone():
    together = Histograms()
    for _ in range(3):
        for name, tensor in MIXED.items():
            together.process_tensor(name, tensor)
    for name, tensor in MIXED.items():
        alone = histograms_of(tensor, tensor, tensor)
        assert np.array_equal(together.histograms()[name], alone.histograms()["layer"])
        assert together.quantiles()[name] == alone.quantiles()["layer"]
        own, expected = (found.value[key]["range"] for found, key in ((together, name), (alone, "layer")))
        assert (own.min_, own.max_, own.count) == (expected.min_, expected.max_, expected.count)


def test_a_tensor_may_be_changed_after_it_was_taken():
    tensor = normal(300, 400)
    expected = shown(tensor)
    found = histograms_of(tensor)
    tensor.zero_()
    assert list(found.quantiles()["layer"].values()) == expected.tolist()


def operations(action):
    class Count(TorchDispatchMode):
        number = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            self.number += 1
            return func(*args, **(kwargs or {}))

    with Count() as count:
        action()
    return count.number


@pytest.mark.parametrize(("size", "most"), [(100, 2), (2 * MOST, 12)])
def test_one_more_tensor_takes_few_operations_on_a_device(size, most, monkeypatch):
    monkeypatch.setattr(distribution, "may_look", lambda numbers: False)
    monkeypatch.setattr(batches, "AT_ONCE", {})
    few, many = ([normal(size)] * count for count in (1, 11))
    numbers = [operations(lambda own=own: histograms_of(*own).histograms()) for own in (few, many)]
    assert (numbers[1] - numbers[0]) / 10 <= most


def test_halves_merge_exactly():
    whole = normal(1000)
    both, once = histograms_of(whole[:300], whole[300:]), histograms_of(whole)
    assert np.array_equal(both.histograms()["layer"], once.histograms()["layer"])
    assert both.histograms()["layer"].dtype == np.int64
    assert both.quantiles() == once.quantiles()


def copies(histograms):
    yield copy.deepcopy(histograms)
    yield pickle.loads(pickle.dumps(histograms))
    loaded = Histograms()
    loaded.load_state_dict(histograms.state_dict())
    yield loaded


def test_copies_go_on_where_the_first_one_was():
    expected = histograms_of(normal(100), normal(50, seed=1))
    for copied in copies(histograms_of(normal(100))):
        copied.process_tensor("layer", normal(50, seed=1))
        assert (copied.quantiles(), copied.specials()) == (expected.quantiles(), expected.specials())


def test_an_earlier_tick_is_read_while_the_next_one_goes_on():
    found = histograms_of(normal(100))
    kept = found.release()
    copying = HostCopy(found.pending(kept))
    found.process_tensor("layer", torch.ones(3))
    copying.deliver()
    with found.showing(kept):
        found.finish()
        assert found.quantiles() == histograms_of(normal(100)).quantiles()
    assert found.quantiles() == histograms_of(torch.ones(3)).quantiles()


def process_output(histograms, tensor):
    histograms.process_fw("layer", nn.ReLU(), None, tensor)


def process_parameter(histograms, tensor):
    histograms.process_parameter("layer", tensor)


def process_gradient(histograms, tensor):
    histograms.process_tensor("layer", tensor)


@pytest.mark.parametrize(
    ("process", "times", "part"), [(process_output, 3, OWN), (process_gradient, 3, OWN), (process_parameter, 1, SHARED)]
)
def test_processes_add_up_except_for_copies_of_a_parameter(process, times, part):
    ranks = [Histograms() for _ in range(3)]
    for one in ranks:
        process(one, normal(6, 2))
    payloads = {rank: one.payload() for rank, one in enumerate(ranks)}
    ranks[0].merge_ranks(merged(payloads))
    assert list(ranks[0].counts()) == [("layer", part)]
    assert ranks[0].histograms()["layer"][:BINS].sum() == 12 * times
    assert ranks[0].quantiles() == histograms_of(*[normal(6, 2)] * times).quantiles()


def test_other_parts_of_a_parameter_add_up():
    ranks = [Histograms() for _ in range(4)]
    for rank, one in enumerate(ranks):
        one._take("layer", torch.zeros(5), part=rank % 2)  # two copies of two parts, which look the same
    ranks[0].merge_ranks(merged({rank: one.payload() for rank, one in enumerate(ranks)}))
    assert ranks[0].specials()["layer"]["zero"] == 10


def test_a_process_may_lack_a_layer():
    here, there = Histograms(), histograms_of(normal(5))
    here.merge_ranks(merged({0: here.payload(), 1: there.payload()}))
    assert here.quantiles() == there.quantiles()


# what is passed to it


def test_only_training_passes_count():
    found, module = Histograms(), nn.ReLU()
    with torch.no_grad():
        found.process_fw("layer", module, None, torch.ones(3))
    found.process_fw("layer", module.eval(), None, torch.ones(3))
    assert not found.counts()
    found.process_fw("layer", module.train(), None, (torch.tensor([1]), torch.ones(3)))
    assert found.histograms()["layer"].sum() == 3


@pytest.mark.parametrize("output", [None, torch.tensor([1]), torch.zeros(0, 2), "text"])
def test_an_output_without_numbers_is_left_out_with_a_reason(output):
    with pytest.raises(SkippedSample):
        Histograms().process_fw("layer", nn.ReLU(), None, output)


@pytest.mark.parametrize("size", [100, 2 * MOST])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_on_a_device_nothing_waits_and_nothing_changes(size, dtype, monkeypatch):
    monkeypatch.setattr(distribution, "may_look", lambda numbers: False)

    class Waits(TorchDispatchMode):
        """Refuses what reads numbers on the CPU, or sends an index to the device."""

        refused = frozenset({"_local_scalar_dense", "is_nonzero", "nonzero", "index", "bincount", "masked_select"})

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func.overloadpacket.__name__ not in self.refused
            return func(*args, **(kwargs or {}))

    tensor = with_broken(normal(size, dtype=dtype)).requires_grad_()
    before, state = tensor.detach().clone(), torch.get_rng_state()
    found = Histograms()
    with Waits():
        for name in ("layer", "other"):
            found.process_tensor(name, tensor)
        kept = found.release()
        pending = found.pending(kept)
    assert torch.equal(tensor.nan_to_num(), before.nan_to_num())
    assert torch.equal(torch.get_rng_state(), state)
    HostCopy(pending).deliver()
    with found.showing(kept):
        assert found.specials()["layer"]["nan"] == found.specials()["other"]["nan"] == before.isnan().sum().item()


@pytest.mark.parametrize("size", [100, 2 * MOST])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("is_broken", [False, True])
def test_a_look_at_the_numbers_changes_none(size, dtype, is_broken, monkeypatch):
    tensor = normal(size, dtype=dtype)
    tensor = with_broken(tensor) if is_broken else tensor
    found, looked = [Histograms(), Histograms()], iter([True, False])
    for histograms in found:
        may = next(looked)
        monkeypatch.setattr(distribution, "may_look", lambda numbers, may=may: may)
        histograms.process_tensor("layer", tensor)
    assert found[0].specials() == found[1].specials()
    assert found[0].quantiles() == found[1].quantiles()
    extremes = [own.value["layer"]["range"] for own in found]
    assert (extremes[0].min_, extremes[0].max_) == (extremes[1].min_, extremes[1].max_)


def test_a_histogram_of_inference_mode_is_added_to_later():
    found = Histograms()
    with torch.inference_mode():
        found.process_tensor("layer", torch.ones(3))
    found.process_tensor("layer", torch.ones(3))
    assert found.histograms()["layer"].sum() == 6
