"""What kernels for GPUs write, on a GPU or, for small tensors, in Triton's interpreter."""

import math

import numpy as np
import pytest
import torch

from monitorch.engine import columns as row
from monitorch.engine.kernels import fused, reference
from monitorch.engine.kernels.fused_many import ManyGradients, ManySketches, ManyUpdates
from tests.engine.kernels.without_gpu import INTERPRETED, interpret, pretend

DEVICE = "cpu" if INTERPRETED else "cuda"
pytestmark = pytest.mark.skipif(
    not (fused.AVAILABLE and (INTERPRETED or torch.cuda.is_available())), reason="needs Triton and a CUDA device"
)
on_gpu = pytest.mark.skipif(INTERPRETED, reason="needs a CUDA device")

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
EPS = 0.5
CLOSE = 2e-5 if INTERPRETED else 2e-6  # block sums are in float32; the interpreter adds one element after the other

MOST = 10_000
"""Elements that the interpreter reads in a fraction of a second."""


@pytest.fixture(autouse=True)
def _without_gpu(request, monkeypatch):
    if INTERPRETED:
        shape = request.node.callspec.params.get("shape", ()) if hasattr(request.node, "callspec") else ()
        if math.prod(shape) > MOST:
            pytest.skip("the interpreter would take long")
        pretend(monkeypatch, interpret)


def draw(*shape, dtype=torch.float32, seed=0, scale=1.0):
    values = np.random.default_rng(seed).standard_normal(shape) * scale
    return torch.tensor(values, dtype=torch.float64).to(dtype).to(DEVICE)


def new_block(rows=3):
    return torch.zeros(rows, row.WIDTH, dtype=torch.float64, device=DEVICE)


def wide(x):
    return x.detach().cpu().to(torch.float64).numpy()


def expect(x, previous=None):
    """What every kernel writes, in float64."""
    x = wide(x)
    finite = np.isfinite(x)
    expected = np.zeros(row.WIDTH)
    with np.errstate(invalid="ignore", over="ignore"):
        expected[row.SQUARES] = np.sum(x * x)
        if previous is not None:
            expected[row.DOT] = np.sum(x * wide(previous))
    expected[row.UNIT] = 1
    expected[row.FOLLOWS] = previous is not None
    expected[row.SIZE] = x.size
    expected[row.NONFINITE] = np.sum(~finite)
    expected[row.LARGEST] = np.max(np.abs(x[finite]), initial=0.0)
    return expected


def add_rates(expected, x, channel_dim, eps):
    active = np.abs(wide(x)) > eps
    alive = active.any(axis=tuple(d for d in range(active.ndim) if d != channel_dim % active.ndim))
    expected[row.ACTIVE] = active.sum()
    expected[row.DEAD] = np.sum(~alive)
    expected[row.CHANNELS] = alive.size
    return expected


def expect_output(x, channel_dim, eps):
    expected = expect(x)
    with np.errstate(invalid="ignore", over="ignore"):
        expected[row.NORMS] = np.sqrt((wide(x).reshape(len(x), -1) ** 2).sum(axis=1)).sum()
    expected[row.BATCH] = len(x)
    return expected if channel_dim is None else add_rates(expected, x, channel_dim, eps)


def check(written, expected, previous=None, x=None):
    """Compare rows; a dot product is as exact as the lengths allow, not as its own size would ask for."""
    written = written.cpu().numpy()
    exact = [c for c in range(row.WIDTH) if c not in (row.SQUARES, row.NORMS, row.DOT)]
    np.testing.assert_array_equal(written[exact], expected[exact])
    for column in (row.SQUARES, row.NORMS):
        np.testing.assert_allclose(written[column], expected[column], rtol=CLOSE)
    if previous is not None:
        room = CLOSE * np.sqrt(np.sum(wide(x) ** 2)) * np.sqrt(np.sum(wide(previous) ** 2))
        np.testing.assert_allclose(written[row.DOT], expected[row.DOT], atol=room, rtol=0)


def run_output(x, channel_dim, eps=EPS, times=2):
    """The rows of repeated calls, which share a scratch."""
    block = new_block(times + 1)
    scratch = torch.zeros(fused.scratch_size(x, channel_dim), dtype=torch.float64, device=DEVICE)
    for index in range(times):
        fused.OutputReader(x, channel_dim, eps, scratch)(x, block, index + 1)
    assert not scratch.any()
    assert not block[0].any()
    return block[1:]


OUTPUTS = [
    ((128, 512), None, -1),
    ((1, 1), None, 1),
    ((3, 7), None, 1),
    ((4, 5, 6), None, None),
    ((2, 10000), None, None),
    ((5, 100, 768), None, -1),
    ((5, 33, 1000), None, 2),
    ((16, 3, 32, 32), None, 1),
    ((16, 20, 7, 7), None, 1),
    ((16, 64, 14, 14), torch.channels_last, 1),
    ((16, 3, 32, 32), torch.channels_last, 1),
    ((2, 4, 128, 80), None, 2),
    ((2, 1, 64, 64), None, 1),
    ((1, 70000), None, 1),
    ((3000, 17), None, 1),
    ((6, 50, 96), None, 0),
    ((4000, 768), None, -1),
    ((40, 9000), None, 1),
    ((3, 20, 5000), None, -1),
    ((300, 3, 50, 9), None, 1),
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("shape", "memory", "channel_dim"), OUTPUTS)
def test_output(shape, memory, channel_dim, dtype):
    x = draw(*shape, dtype=dtype)
    if channel_dim is not None:
        x.select(channel_dim, 0).mul_(0.01)  # a channel that is surely dead
    if memory is not None:
        x = x.contiguous(memory_format=memory)
    for written in run_output(x, channel_dim):
        check(written, expect_output(x, channel_dim, EPS))


@on_gpu
def test_output_of_many_programs():
    x = draw(8, 700, 2304, dtype=torch.bfloat16)
    x[:, :, 17::100] = 0
    for channel_dim in (-1, 1, None):
        for written in run_output(x, channel_dim):
            check(written, expect_output(x, channel_dim, EPS))


def test_output_whose_batch_is_not_outermost():
    x = draw(40, 9, 64).transpose(0, 1)
    assert fused.supports(x)
    check(run_output(x, -1)[0], expect_output(x, -1, EPS))


@pytest.mark.parametrize("eps", [0.0, 0.1, 1e-8, 1e-50])
def test_bound_is_not_rounded_up(eps):
    x = torch.tensor([[eps, -eps, 0.0, 1.0]] * 2, dtype=torch.float32, device=DEVICE)
    check(run_output(x, 1, eps)[0], expect_output(x, 1, eps))


@pytest.mark.parametrize("scale", [1e30, 3e37, 1e-30, 1e-38, 0.0])
def test_range_of_float32(scale):
    x, before = draw(16, 3000, scale=scale).clamp(-3e38, 3e38), draw(16, 3000, seed=1, scale=scale).clamp(-3e38, 3e38)
    for channel_dim in (-1, 0, None):
        check(run_output(x, channel_dim, 0.0)[0], expect_output(x, channel_dim, 0.0))
    block = new_block()
    kept = before.clone()
    fused.GeometryReader(x, kept)(x, block, 0, True)
    check(block[0], expect(x, before), before, x)


def test_ranges_that_differ():
    x, before = draw(5000, scale=1e-10), draw(5000, seed=1, scale=1e35)
    block = new_block()
    fused.GeometryReader(x, before.clone())(x, block, 0, True)
    fused.GeometryReader(before, x.clone())(before, block, 1, True)
    check(block[0], expect(x, before), before, x)
    check(block[1], expect(before, x), x, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("bad", [[float("nan")], [float("inf")], [float("nan"), float("-inf"), float("nan")]])
def test_not_finite(bad, dtype):
    x = draw(8, 40, 96, dtype=dtype)
    x[2, 3, : len(bad)] = torch.tensor(bad, dtype=dtype, device=DEVICE)
    for channel_dim in (-1, 1, None):
        check(run_output(x, channel_dim)[0], expect_output(x, channel_dim, EPS))
    block = new_block()
    kept = draw(8, 40, 96, dtype=dtype, seed=1)
    fused.GeometryReader(x, kept)(x, block, 1, True)
    assert torch.equal(kept.nan_to_num(), x.nan_to_num())
    expected = expect(x)
    expected[row.FOLLOWS] = 1
    written = block[1].cpu().numpy()
    assert not np.isfinite(written[row.DOT])
    written[row.DOT] = 0
    check(torch.tensor(written), expected)


def test_nothing_but_nan():
    x = torch.full((4, 100), float("nan"), device=DEVICE)
    check(run_output(x, 1)[0], expect_output(x, 1, EPS))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (1,), (17,), (4096,), (4097,), (3, 5, 7), (250, 301), (3_000_001,)])
def test_geometry(shape, dtype):
    x, before = draw(*shape, dtype=dtype), draw(*shape, dtype=dtype, seed=1)
    block, kept = new_block(), before.clone()
    fused.GeometryReader(x, kept)(x, block, 0, False)
    assert torch.equal(kept, x)
    kept.copy_(before)
    fused.GeometryReader(x, kept)(x, block, 1, True)
    assert torch.equal(kept, x)
    fused.GeometryReader(x, None)(x, block, 2, False)
    check(block[0], expect(x))
    check(block[1], expect(x, before), before, x)
    check(block[2], expect(x))


@pytest.mark.parametrize(
    "arrange", [lambda x: x.transpose(0, 1), lambda x: x.permute(2, 0, 1), lambda x: x[1:], lambda x: x.view(-1)[1:]]
)
def test_geometry_of_views(arrange):
    x, before = arrange(draw(9, 15, 21)), arrange(draw(9, 15, 21, seed=1))
    assert fused.supports(x)
    block, kept = new_block(), before.clone()
    assert kept.stride() == x.stride()
    fused.GeometryReader(x, kept)(x, block, 2, True)
    check(block[2], expect(x, before), before, x)
    assert torch.equal(kept, x)


REFUSED = {
    "a slice": lambda: draw(6, 8)[:, ::2],
    "columns": lambda: draw(6, 8)[:, :4],
    "expanded": lambda: draw(6, 1).expand(6, 8),
    "float64": lambda: draw(3, dtype=torch.float64),
    "integers": lambda: torch.ones(3, dtype=torch.int32, device=DEVICE),
    "complex": lambda: torch.ones(3, dtype=torch.complex64, device=DEVICE),
    "empty": lambda: draw(0, 4),
    "sparse": lambda: torch.eye(3, device=DEVICE).to_sparse(),
    "on the CPU": lambda: torch.ones(3),
}


@on_gpu
@pytest.mark.parametrize("kind", REFUSED)
def test_refused(kind):
    assert not fused.supports(REFUSED[kind]())


def test_supported():
    image = draw(2, 3, 4, 5)
    for x in (image, image.contiguous(memory_format=torch.channels_last), image.permute(3, 1, 0, 2), image[0, 0, 0, 0]):
        assert fused.supports(x)


PARAMETERS = [(512, 48), (513,), (7, 3, 3, 3), (1,), (), (20, 33), (64, 16, 3, 3), (1, 100), (300_007,), (2, 100_000)]
if INTERPRETED:
    PARAMETERS = [shape if math.prod(shape) <= MOST else (20, 30) for shape in PARAMETERS]


@pytest.mark.parametrize("dtypes", [DTYPES[:1], DTYPES], ids=["float32", "mixed"])
@pytest.mark.parametrize("eps", [None, 2.5])
def test_many_gradients(dtypes, eps):
    many = ManyGradients()
    previous = [draw(*s, dtype=dtypes[i % len(dtypes)], seed=100 + i) for i, s in enumerate(PARAMETERS)]
    previous[6] = previous[6].contiguous(memory_format=torch.channels_last)
    previous[0] = previous[0].t().contiguous().t()
    for step in range(3):
        before = [p.clone() for p in previous]
        fresh = [torch.empty_like(p).copy_(draw(*p.shape, seed=10 * step + i)) for i, p in enumerate(before)]
        follows = [step > 0 and i % 3 != 1 for i in range(len(fresh))]
        block = new_block(len(fresh) + 2)
        many(fresh, previous, follows, eps, block, 1)
        for i, (x, old) in enumerate(zip(fresh, before, strict=True)):
            expected = expect(x, old if follows[i] else None)
            if eps is not None:
                expected = add_rates(expected, x if x.dim() else x.reshape(1), 0, eps)
            check(block[i + 1], expected, old if follows[i] else None, x)
            assert torch.equal(x, previous[i])
        assert not block[0].any()
        assert not block[-1].any()


def test_many_without_previous_and_unaligned():
    many = ManyGradients()
    flat = draw(10_000)
    parts = [flat[1:100], flat[100:131].view(31, 1), flat[160:4000].view(240, 16), flat[4001:9001].view(50, 100)]
    block = new_block(len(parts))
    for _ in range(2):
        many(parts, None, [False] * len(parts), EPS, block.zero_(), 0)
        for written, x in zip(block, parts, strict=True):
            check(written, add_rates(expect(x), x, 0, EPS))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("keep", [True, False])
def test_many_updates(keep, dtype):
    many = ManyUpdates()
    now = [draw(*s, dtype=dtype, seed=i) for i, s in enumerate(PARAMETERS)]
    previous = [torch.zeros_like(x, dtype=torch.float32) for x in now] if keep else None
    last = None
    for step in range(3):
        change = [draw(*x.shape, dtype=dtype, seed=50 + 10 * step + i) for i, x in enumerate(now)]
        before = [x.clone() for x in now]
        for x, c in zip(now, change, strict=True):
            x.add_(c)
        difference = [x.float() - old.float() for x, old in zip(now, before, strict=True)]
        untouched = [x.clone() for x in before]
        follows = [keep and step > 0] * len(now)
        block = new_block(len(now))
        many(now, before, previous, follows, block, 0)
        for i, x in enumerate(difference):
            old = last[i] if keep and step > 0 else None
            check(block[i], expect(x, old), old, x)
            assert torch.equal(before[i], untouched[i])
            assert not keep or torch.equal(previous[i], x)
        last = difference


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", [0, 1], ids=["aligned", "unaligned"])
def test_sketch_agrees_with_its_definition(first, dtype):
    signs = (
        torch.randint(0, 2, (65536,), generator=torch.Generator().manual_seed(0), dtype=torch.int8) * 2 - 1
    ).numpy()
    for size in (5, 4096, 70_000, *([] if INTERPRETED else [300_000])):
        x, y = (draw(first + size, dtype=dtype, seed=seed)[first:] for seed in (0, 1))
        sketches = []
        for values in (wide(x), wide(y)):
            sketch = np.zeros(4096)
            for b in range(-(-size // 4096)):
                piece = values[4096 * b : 4096 * (b + 1)]
                j = np.arange(len(piece))
                h = b * 2654435761 % 2**32
                h = (h ^ h >> 16) * 0x85EBCA6B % 2**32
                h ^= h >> 13
                sketch[(j + (h >> 21) * 2) % 4096] += (
                    piece * signs[(h % 65536 // 2 * 2 + j) % 65536] * (-1) ** (h >> 16)
                )
            sketches.append(sketch)
        state, block = torch.zeros(2, 4096, device=DEVICE), new_block()
        fused.SketchReader(x, state)(x, block, 0, False)
        np.testing.assert_allclose(wide(state[0]), sketches[0], atol=1e-4)
        fused.SketchReader(y, state)(y, block, 1, True)
        np.testing.assert_allclose(wide(state[0]), sketches[1], atol=1e-4)
        assert not state[1].any()
        expected = expect(y, x)
        expected[row.DOT] = np.dot(*sketches)
        check(block[0], expect(x))
        check(block[1], expected, x, y)


@on_gpu
def test_sketch_is_unbiased():
    block, cosines = new_block(2), []
    for seed in range(30):
        x = draw(500_000, seed=seed)
        y = x + draw(500_000, seed=seed + 1000)
        state = torch.zeros(2, 4096, device=DEVICE)
        fused.SketchReader(x, state)(x, block.zero_(), 0, False)
        fused.SketchReader(y, state)(y, block, 1, True)
        squares = block[:, row.SQUARES].cpu()
        cosines.append(float(block[1, row.DOT].cpu() / squares.prod().sqrt()))
    assert abs(np.mean(cosines) - np.sqrt(0.5)) < 4 * np.sqrt(2 / 4096 / 30)
    assert np.std(cosines) < 2 * np.sqrt(2 / 4096)


@pytest.mark.parametrize("dtypes", [DTYPES[:1], DTYPES], ids=["float32", "mixed"])
@pytest.mark.parametrize("slots", [1, 8, 512])
def test_many_sketched_updates(dtypes, slots, monkeypatch):
    monkeypatch.setattr("monitorch.engine.kernels.fused_many.SLOTS", slots)
    now = [draw(*s, dtype=dtypes[i % len(dtypes)], seed=i) for i, s in enumerate(PARAMETERS)]
    now.append(draw(50_001)[1:])  # not aligned
    states = torch.zeros(2, len(now), 2, 4096, dtype=torch.float64, device=DEVICE)
    many = ManySketches()
    for step in range(4):
        many.keep(now, list(states[0]))
        for x, state in zip(now, states[1], strict=True):
            reference.keep_sketch(x, state)
        if step < 3:
            for i, x in enumerate(now):
                x.add_(draw(*x.shape, dtype=x.dtype, seed=50 + 10 * step + i, scale=1e-3))
        follows = [step > 0 and i % 3 != 1 for i in range(len(now))]
        block = new_block(len(now) + 2)
        many(now, list(states[0]), follows, block, 1)
        for i, x in enumerate(now):
            wanted = wide(reference.sketched_update(x, states[1, i], follows[i]))
            np.testing.assert_allclose(wide(block[i + 1]), wanted, rtol=1e-6, atol=1e-12)
            assert step < 3 or block[i + 1, row.SQUARES] == 0  # unchanged: exactly
        assert not block[0].any()
        assert not block[-1].any()


@on_gpu
def test_sketched_updates_are_the_same_every_time():
    start = [draw(1000, 3000), draw(70_000, dtype=torch.bfloat16)]
    found = []
    for _ in range(5):
        now, many = [x.clone() for x in start], ManySketches()
        states, block = list(torch.zeros(2, 2, 4096, dtype=torch.float64, device=DEVICE)), new_block(2)
        many.keep(now, states)
        for x in now:
            x.mul_(0.999)
        many(now, states, [False, False], block, 0)
        found.append(torch.cat([*(state.flatten() for state in states), block.nan_to_num().flatten()]).cpu())
    assert all(torch.equal(found[0], other) for other in found)


@on_gpu
def test_in_a_cuda_graph():
    x, kept = draw(64, 300), draw(64, 300, seed=1)
    block, scratch = new_block(4), torch.zeros(fused.scratch_size(x, -1), dtype=torch.float64, device=DEVICE)
    gradients, many = [draw(40, 33), draw(129, seed=2)], ManyGradients()
    previous = [torch.zeros_like(g) for g in gradients]

    def work(tensors):
        fused.OutputReader(x, -1, EPS, scratch)(x, block, 0)
        fused.GeometryReader(x, kept)(x, block, 1, True)
        many(tensors, previous, [True, True], EPS, block, 2)

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        work([g.clone() for g in gradients])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work(gradients)
    many([g.clone() for g in gradients], previous, [False, False], EPS, new_block(2), 0)
    for seed in (5, 6):
        old = [t.clone() for t in (kept, *previous)]
        for tensor in (x, *gradients):
            tensor.copy_(draw(*tensor.shape, seed=seed))
        block.zero_()
        graph.replay()
        torch.cuda.synchronize()
        check(block[0], expect_output(x, -1, EPS))
        check(block[1], expect(x, old[0]), old[0], x)
        for i, g in enumerate(gradients):
            check(block[2 + i], add_rates(expect(g, old[1 + i]), g, 0, EPS), old[1 + i], g)


def test_differences_are_kept_as_float32_only():
    now, before = [draw(4, 4, dtype=torch.bfloat16)], [draw(4, 4, dtype=torch.bfloat16)]
    with pytest.raises(TypeError, match="float32"):
        ManyUpdates()(now, before, [torch.zeros_like(now[0])], [True], new_block(1), 0)


def special(x):
    """A copy with zeros and, in one element each, what is not finite."""
    flat = x.flatten().clone()
    flat[: len(flat) // 3] = 0
    flat[-3:] = torch.tensor([torch.nan, torch.inf, -torch.inf], dtype=x.dtype, device=x.device)
    return flat.reshape(x.shape)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1,), (7,), (64, 1024), (1000, 1001), (3, 5, 7, 11)])
@pytest.mark.parametrize(
    "change", [lambda x: x, special, lambda x: x.abs() + 1, lambda x: x * torch.nan, lambda x: -0.0 * x]
)
def test_facts_of_whole_tensors(change, shape, dtype):
    if change is special and shape == (1,):
        shape = (16,)
    x = change(draw(*shape, dtype=dtype, scale=3.0))
    found, values = fused.whole_facts(x).tolist(), wide(x)
    finite = values[np.isfinite(values)]
    assert found == [
        finite.min(initial=np.inf),
        finite.max(initial=-np.inf),
        np.sum(values == 0),
        np.sum(~np.isfinite(values)),
        np.sum(np.isnan(values)),
    ]


@on_gpu
@pytest.mark.parametrize("x", [torch.ones(4), torch.ones(4, dtype=torch.float64)])
def test_facts_that_no_kernel_can_find_are_none(x):
    assert fused.whole_facts(x if x.dtype == torch.float32 else x.to(DEVICE)) is None
