"""Attention: entropies and logits against attention that is materialised in NumPy."""

import copy
import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from monitorch import MonitorchWarning
from monitorch.errors import OptionError
from monitorch.lens import Attention

BATCH, LENGTH, WORDS, SIZE, HEADS = 3, 9, 17, 16, 4
ENTROPY, ERROR, LARGEST, BOUND = (
    "Attention Entropy",
    "Attention Entropy Error",
    "Attention Largest Logit",
    "Attention Logit Bound",
)


# the oracle


def array(x):
    return x.detach().double().numpy()


def materialised(query, key, scale, allowed):
    """Entropy, largest logit and its bound; all (sequences, heads, positions, features), keys have their own heads."""
    key = np.repeat(key, query.shape[1] // key.shape[1], axis=1)
    logits = np.einsum("bhqd,bhkd->bhqk", query, key) * scale
    allowed = np.broadcast_to(allowed, logits.shape)
    bound = (np.linalg.norm(query, axis=-1).max(-1) * np.linalg.norm(key, axis=-1).max(-1)).max() * abs(scale)
    return shares(logits, allowed), logits[allowed].max(), bound


def shares(logits, allowed):
    """H / ln(keys) of each query that has a choice."""
    weights = np.where(allowed, np.exp(logits - np.where(allowed, logits, -np.inf).max(-1, keepdims=True)), 0)
    weights = weights / weights.sum(-1, keepdims=True)
    entropies = -(weights * np.log(np.where(weights > 0, weights, 1))).sum(-1)
    keys = allowed.sum(-1)
    return (entropies[keys >= 2] / np.log(keys[keys >= 2])).mean()


def causal(length):
    return np.tri(length, dtype=bool)


# the models of Hugging Face

PADDING = torch.ones(BATCH, LENGTH, dtype=torch.int64)
PADDING[1, 6:] = PADDING[2, 3:] = 0
"""Which words are there; BERT and friends are told."""


def gpt2(implementation):
    from transformers import GPT2Config, GPT2Model

    sizes = {"vocab_size": WORDS, "n_positions": LENGTH, "n_embd": SIZE, "n_layer": 2, "n_head": HEADS}
    return GPT2Model(GPT2Config(**sizes, attn_implementation=implementation, use_cache=False))


def bert(implementation):
    from transformers import BertConfig, BertModel

    sizes = {"vocab_size": WORDS, "max_position_embeddings": LENGTH, "hidden_size": SIZE, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": HEADS, "intermediate_size": SIZE}
    return BertModel(BertConfig(**sizes, attn_implementation=implementation))


def llama(implementation):
    from transformers import LlamaConfig, LlamaModel

    sizes = {"vocab_size": WORDS, "max_position_embeddings": LENGTH, "hidden_size": SIZE, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": HEADS, "num_key_value_heads": 2, "intermediate_size": SIZE}
    return LlamaModel(LlamaConfig(**sizes, attn_implementation=implementation, use_cache=False))


MODELS = {
    "GPT-2": (gpt2, ["h.0.attn", "h.1.attn"], True),
    "BERT": (bert, ["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"], False),
    "Llama": (llama, ["layers.0.self_attn", "layers.1.self_attn"], True),
}


@pytest.fixture
def materialise():
    """Run a copy of a model in double precision, and return what NumPy makes of each layer's queries and keys."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, eager_mask
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    found = {}

    def attend(module, query, key, value, attention_mask, scaling=None, dropout=0.0, **_):
        scale = query.shape[-1] ** -0.5 if scaling is None else scaling
        found[module] = array(query), array(key), scale
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        logits = query @ key.transpose(-1, -2) * scale + (0 if attention_mask is None else attention_mask)
        return (logits.softmax(-1) @ value).transpose(1, 2).contiguous(), None

    ALL_ATTENTION_FUNCTIONS.register("materialised", attend)
    ALL_MASK_ATTENTION_FUNCTIONS.register("materialised", eager_mask)

    def run(model, allowed, **inputs):
        bare = copy.deepcopy(model).double().eval()
        bare.set_attn_implementation("materialised")
        bare(**inputs)
        return {name: materialised(*found[part], allowed) for name, part in bare.named_modules() if part in found}

    return run


@pytest.fixture
def ids():
    return torch.arange(BATCH * LENGTH).reshape(BATCH, LENGTH) * 5 % WORDS


def without_dropout(model):
    for part in model.modules():
        if isinstance(part, nn.Dropout):
            part.p = 0.0
    return model


def larger(model):
    """Weights that are large enough for attention to be uneven."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(8 if parameter.dim() > 1 else 1)
    return model


def check(shown, expected, tolerance=1e-4):
    """Compare a tick with the oracle's numbers by layer."""
    assert list(shown.values(ENTROPY)) == list(expected)
    for layer, (entropy, largest, bound) in expected.items():
        assert shown.values(ENTROPY)[layer]["mean"] == pytest.approx(entropy, rel=tolerance)
        assert shown.values(LARGEST)[layer]["max"] == pytest.approx(largest, rel=tolerance)
        assert shown.values(ERROR)[layer]["mean"] == 0  # all queries are looked at
        assert shown.values(BOUND)[layer]["max"] >= shown.values(LARGEST)[layer]["max"] * (1 - tolerance)
        assert shown.values(BOUND)[layer]["max"] == pytest.approx(bound, rel=tolerance)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_transformers_show_what_materialised_attention_has(
    kind, padded, implementation, ids, watch, shown, materialise
):
    build, layers, is_causal = MODELS[kind]
    model = without_dropout(larger(build(implementation))).train()
    inputs = {"input_ids": ids, **({"attention_mask": PADDING} if padded else {})}
    allowed = causal(LENGTH) if is_causal else np.ones((LENGTH, LENGTH), bool)
    if padded:
        allowed = allowed & PADDING.numpy().astype(bool)[:, None, None, :]
    expected = materialise(model, allowed, **inputs)
    assert list(expected) == layers
    if implementation == "eager":  # all logits are there, so the bound is the largest one
        expected = {layer: (entropy, largest, largest) for layer, (entropy, largest, _) in expected.items()}
    inspector = watch(model, Attention())
    model(**inputs)[0].sum().backward()
    inspector.tick_epoch()
    check(shown, expected)


# functions


class Attending(nn.Module):
    """Calls a function with queries and keys that a test can read."""

    def __init__(self, call):
        super().__init__()
        self.call, self.scale = call, nn.Parameter(torch.ones(()))

    def forward(self, *tensors):
        return self.call(*(x * self.scale for x in tensors))


def watched_call(call, *tensors, watch, **options):
    """Run a call inside a watched model."""
    model = Attending(call)
    inspector = watch(model, Attention(**options))
    model(*tensors).sum().backward()
    inspector.tick_epoch()


def parts(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator) * 3


QUERY, KEY, FEW = parts(2, 4, 7, 8), parts(2, 4, 5, 8, seed=1), parts(2, 2, 5, 8, seed=2)
CHOICE = parts(2, 1, 7, 5, seed=3) > -1
CHOICE[..., 0] = True
ADDED = parts(7, 5, seed=4)
sdpa = functional.scaled_dot_product_attention

CALLS = {
    "no mask": (lambda q, k: sdpa(q, k, k), KEY, None, True),
    "keywords": (lambda q, k: sdpa(query=q, key=k, value=k), KEY, None, True),
    "causal": (lambda q, k: sdpa(q, k, k, is_causal=True), KEY, None, np.tri(7, 5, dtype=bool)),
    "boolean mask": (lambda q, k: sdpa(q, k, k, CHOICE), KEY, None, CHOICE.numpy()),
    "own scale": (lambda q, k: sdpa(q, k, k, scale=0.7), KEY, 0.7, True),
    "keys that heads share": (lambda q, k: sdpa(q, k, k, enable_gqa=True), FEW, None, True),
    "dropout": (lambda q, k: sdpa(q, k, k, dropout_p=0.5), KEY, None, True),
}


@pytest.mark.parametrize("case", CALLS)
def test_scaled_dot_product_attention(case, watch, shown):
    call, key, scale, allowed = CALLS[case]
    watched_call(call, QUERY, key, watch=watch)
    check(shown, {"": materialised(array(QUERY), array(key), scale or 8**-0.5, allowed)})


def test_an_added_mask_is_part_of_the_logits(watch, shown):
    hidden = ADDED.masked_fill(CHOICE[0].logical_not(), -math.inf)[None]
    watched_call(lambda q, k: sdpa(q, k, k, attn_mask=hidden), QUERY, KEY, watch=watch)
    added = array(hidden)
    allowed = np.broadcast_to(np.isfinite(added), (2, 4, 7, 5))
    logits = np.einsum("bhqd,bhkd->bhqk", array(QUERY), array(KEY)) * 8**-0.5 + np.where(allowed, added, 0)
    assert shown.values(ENTROPY)[""]["mean"] == pytest.approx(shares(logits, allowed), rel=1e-4)
    assert shown.values(LARGEST)[""]["max"] == pytest.approx(logits[allowed].max(), rel=1e-4)
    assert shown.values(BOUND)[""]["max"] >= logits[allowed].max()


@pytest.mark.parametrize("shape", [(7, 8), (4, 7, 8), (2, 3, 4, 7, 8)])
def test_other_numbers_of_dimensions(shape, watch, shown):
    x = parts(*shape)
    watched_call(lambda x: sdpa(x, x, x, is_causal=True), x, watch=watch)
    four = array(x).reshape(-1, 1, 7, 8)
    assert shown.values(ENTROPY)[""]["mean"] == pytest.approx(materialised(four, four, 8**-0.5, causal(7))[0], rel=1e-4)


SOFTMAX = {
    "method": lambda x: x.softmax(-1),
    "function": lambda x: torch.softmax(x, dim=3),
    "of functional": lambda x: functional.softmax(x, dim=-1, dtype=torch.float64),
    "module": nn.Softmax(dim=-1),
}


@pytest.mark.parametrize("call", SOFTMAX.values(), ids=SOFTMAX)
@pytest.mark.parametrize("masked", [-math.inf, -1e9, -1e4])
def test_softmax_over_the_last_of_four_dimensions(call, masked, watch, shown):
    logits = parts(2, 4, 7, 7).masked_fill(torch.ones(7, 7).triu(1).bool(), masked)
    watched_call(call, logits, watch=watch)
    expected, allowed = array(logits), np.broadcast_to(causal(7), (2, 4, 7, 7))
    (layer,) = shown.values(ENTROPY)
    assert layer == ("call" if isinstance(call, nn.Module) else "")
    assert shown.values(ENTROPY)[layer]["mean"] == pytest.approx(shares(expected, allowed), rel=1e-4)
    assert shown.values(LARGEST) == shown.values(BOUND) == {layer: {"max": pytest.approx(expected[allowed].max())}}


@pytest.mark.parametrize(
    ("call", "shape"),
    [
        (lambda x: x.softmax(1), (2, 4, 7, 7)),
        (lambda x: x.softmax(-1), (4, 7, 7)),
        (lambda x: x.softmax(-1), (2, 4, 7, 1)),
        (lambda x: sdpa(x, x[..., :1, :], x[..., :1, :]), (2, 4, 7, 8)),
        (lambda x: sdpa(x[:0], x[:0], x[:0]), (2, 4, 7, 8)),
        (lambda x: x.relu(), (2, 4, 7, 7)),
    ],
)
def test_what_is_no_attention_or_has_no_choice_shows_nothing(call, shape, watch, shown):
    watched_call(call, parts(*shape), watch=watch)
    assert all(not shown.values(tag) for tag in (ENTROPY, ERROR, LARGEST, BOUND))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_measured_in_single(dtype, watch, shown):
    query, key = QUERY.to(dtype), KEY.to(dtype)
    model = Attending(lambda q, k: sdpa(q, k, k)).to(dtype)
    inspector = watch(model, Attention())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(query, key).float().sum().backward()
    inspector.tick_epoch()
    check(shown, {"": materialised(array(query), array(key), 8**-0.5, True)}, tolerance=1e-5)


# modules of torch


def projected(module, x, which):
    """Queries (0) or keys (1) of nn.MultiheadAttention, by head, in double precision."""
    if module.in_proj_weight is None:
        weight = module.q_proj_weight if which == 0 else module.k_proj_weight
    else:
        weight = module.in_proj_weight[which * SIZE : (which + 1) * SIZE]
    found = array(x) @ array(weight).T
    if module.in_proj_bias is not None:
        found += array(module.in_proj_bias[which * SIZE : (which + 1) * SIZE])
    if which == 1 and module.bias_k is not None:
        found = np.concatenate([found, np.broadcast_to(array(module.bias_k), (len(found), 1, SIZE))], 1)
    if which == 1 and module.add_zero_attn:
        found = np.concatenate([found, np.zeros((len(found), 1, SIZE))], 1)
    return found.reshape(*found.shape[:2], HEADS, -1).swapaxes(1, 2)


FUTURE = torch.ones(LENGTH, LENGTH).triu(1).bool()
MULTIHEAD = {
    "plain": ({}, {}, lambda: True),
    "without weights": ({}, {"need_weights": False}, lambda: True),
    "causal": ({}, {"attn_mask": FUTURE, "is_causal": True, "need_weights": False}, lambda: causal(LENGTH)),
    "padded": ({}, {"key_padding_mask": PADDING == 0}, lambda: PADDING.numpy()[:, None, None] > 0),
    "both": (
        {},
        {"attn_mask": FUTURE, "key_padding_mask": PADDING == 0},
        lambda: causal(LENGTH) & (PADDING.numpy()[:, None, None] > 0),
    ),
    "mask for each head": (
        {},
        {"attn_mask": FUTURE.expand(BATCH * HEADS, LENGTH, LENGTH)},
        lambda: causal(LENGTH),
    ),
    "other keys": ({"kdim": 6, "vdim": 6}, {}, lambda: True),
    "no bias, dropout": ({"bias": False, "dropout": 0.5}, {}, lambda: True),
    "more keys": (
        {"add_bias_kv": True, "add_zero_attn": True},
        {"attn_mask": FUTURE},
        lambda: np.pad(causal(LENGTH), ((0, 0), (0, 2)), constant_values=True),
    ),
}


@pytest.mark.parametrize("case", MULTIHEAD)
def test_multihead_attention(case, watch, shown):
    options, arguments, allowed = MULTIHEAD[case]
    attention = nn.MultiheadAttention(SIZE, HEADS, batch_first=True, **options)
    query = parts(BATCH, LENGTH, SIZE)
    key = parts(BATCH, LENGTH, options.get("kdim", SIZE), seed=1)
    model = Wrapped(attention)
    inspector = watch(model, Attention())
    model(query, key, key, **arguments)[0].sum().backward()
    inspector.tick_epoch()
    numbers = projected(attention, query, 0), projected(attention, key, 1)
    check(shown, {"inner": materialised(*numbers, (SIZE // HEADS) ** -0.5, allowed())})


class Wrapped(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *args, **kwargs):
        return self.inner(*args, **kwargs)


@pytest.mark.parametrize("is_causal", [False, True])
def test_encoder_layer(is_causal, watch, shown):
    layer = nn.TransformerEncoderLayer(SIZE, HEADS, SIZE, dropout=0.0, batch_first=True)
    x = parts(BATCH, LENGTH, SIZE)
    inspector = watch(layer, Attention())
    mask = FUTURE if is_causal else None
    layer(x, src_mask=mask, src_key_padding_mask=PADDING == 0, is_causal=is_causal).sum().backward()
    inspector.tick_epoch()
    allowed = (causal(LENGTH) if is_causal else np.ones((LENGTH, LENGTH), bool)) & (PADDING.numpy()[:, None, None] > 0)
    numbers = projected(layer.self_attn, x, 0), projected(layer.self_attn, x, 1)
    check(shown, {"self_attn": materialised(*numbers, (SIZE // HEADS) ** -0.5, allowed)})


def test_evaluation_keeps_its_fast_path_unless_it_is_recorded(watch, shown):
    layer = nn.TransformerEncoderLayer(SIZE, HEADS, SIZE, dropout=0.0, batch_first=True).eval()
    x = parts(BATCH, LENGTH, SIZE)
    with torch.no_grad():
        expected = layer(x)
        inspector = watch(layer, Attention())
        assert torch.equal(layer(x), expected)
        inspector.tick_epoch()
        assert not shown.values(ENTROPY)
        inspector.detach()
        inspector = watch(layer, Attention(record_eval=True))
        assert torch.allclose(layer(x), expected, atol=1e-5)
    inspector.tick_epoch()
    numbers = projected(layer.self_attn, x, 0), projected(layer.self_attn, x, 1)
    check(shown, {"self_attn": materialised(*numbers, (SIZE // HEADS) ** -0.5, True)})


# estimates


@pytest.mark.parametrize(("batch", "length"), [(2, 400), (40, 30), (1, 1000), (300, 4)])
def test_a_sample_of_queries_is_right_within_its_error(batch, length, watch, shown):
    query, key = parts(batch, 2, length, 8), parts(batch, 2, length, 8, seed=1)
    query = query * torch.linspace(0.1, 1, batch)[:, None, None, None]  # sequences differ
    watched_call(lambda q, k: sdpa(q, k, k, is_causal=True), query, key, watch=watch)
    entropy, largest, bound = materialised(array(query), array(key), 8**-0.5, causal(length))
    error = shown.values(ERROR)[""]["mean"]
    assert 0 < error < 0.1
    assert abs(shown.values(ENTROPY)[""]["mean"] - entropy) < 4 * error
    assert shown.values(LARGEST)[""]["max"] <= largest * (1 + 1e-5)
    assert shown.values(BOUND)[""]["max"] == pytest.approx(bound, rel=1e-5)
    assert bound >= largest


def test_the_entropy_states_its_error_once_it_is_an_estimate(watch):
    stated = []
    for length in (7, 300):
        model = Attending(lambda x: sdpa(x, x, x))
        inspector = watch(model, Attention(), visualizer="dummy")
        model(parts(2, 4, length, 8)).sum().backward()
        inspector.tick_epoch()
        found = {record.tag: record for record in inspector.records() if record.statistic in ("mean", "max")}
        stated.append(found[ENTROPY].error)
        assert found[LARGEST].error is None
        assert found[ERROR].limits == (0, 1)  # so that one of nearly 0 is no jump of the layer
    assert stated[0] is None
    assert found[ERROR].value <= stated[1] <= 2.5 * found[ERROR].value


# what training does not notice


class Small(nn.Module):
    """Two blocks of attention with dropout, with or without checkpointing."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(SIZE, HEADS, SIZE, dropout=0.1, batch_first=True) for _ in range(2)
        )
        self.reentrant = reentrant

    def forward(self, x):
        for block in self.blocks:
            x = block(x) if self.reentrant is None else checkpoint(block, x, use_reentrant=self.reentrant)
        return x


def train(model, steps=3):
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    for step in range(steps):
        optimizer.zero_grad()
        model(parts(BATCH, LENGTH, SIZE, seed=step).requires_grad_()).square().mean().backward()
        optimizer.step()


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_weights_and_random_numbers_are_the_same_and_calls_count_once(reentrant, watch, shown):
    bare = Small(reentrant)
    model = copy.deepcopy(bare)
    with torch.random.fork_rng():
        train(bare)
        state = torch.get_rng_state()
    lens = Attention(inplace=False)
    inspector = watch(model, lens)
    train(model)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(*pair) for pair in zip(model.parameters(), bare.parameters(), strict=True))
    (weights,) = lens._preprocessors
    assert {layer: len(found[0]) for layer, found in weights.value.items()} == {
        "blocks.0.self_attn": 3,
        "blocks.1.self_attn": 3,
    }
    inspector.detach()


def test_numbers_that_are_not_finite_are_counted(watch, shown):
    query = QUERY.clone()
    query[0, 0, 0, 0] = math.nan
    model = Attending(lambda q, k: sdpa(q, k, k))
    lens = Attention()
    inspector = watch(model, lens)
    model(query, KEY).sum().backward()
    (weights,) = lens._preprocessors
    assert [part.nonfinite for part in weights.value[""]] == [1, 1, 1, 1]
    inspector.detach()


def test_a_tensor_that_is_not_plain_is_left_out_with_a_warning(watch, shown):
    class Odd(torch.Tensor):
        pass

    model = Attending(lambda q, k: sdpa(q.as_subclass(Odd), k, k).as_subclass(torch.Tensor))
    inspector = watch(model, Attention(), on_error="warn")
    with pytest.warns(MonitorchWarning, match="Attention leaves out a sample of layer '': attention over a Odd"):
        model(QUERY, KEY).sum().backward()
    inspector.tick_epoch()
    assert not shown.values(ENTROPY)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"line_aggregation": "median"}, "inplace=False"),
        ({"line_aggregation": "men"}, "unknown"),
        ({"line_aggregation": ()}, "at least one"),
        ({"range_aggregation": "all"}, "unknown"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(OptionError, match=message):
        Attention(**options)


def test_tags(tags_of):
    assert tags_of(Attention(log_scale=True)) == [
        (ENTROPY, False, False, True, "NUMERICAL", (0, 1)),
        (ERROR, False, False, True, "NUMERICAL", None),
        (LARGEST, True, False, True, "NUMERICAL", None),
        (BOUND, True, False, True, "NUMERICAL", None),
    ]
