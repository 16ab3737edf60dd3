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
