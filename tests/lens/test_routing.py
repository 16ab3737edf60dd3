"""Routing: the mixture models of Hugging Face, routers that are named, and what is told about others."""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from monitorch import MonitorchWarning
from monitorch.errors import OptionError
from monitorch.lens import Routing

WORDS, SIZE, EXPERTS, CHOSEN, BATCH, LENGTH = 23, 16, 4, 2, 3, 8


def sizes(**more):
    layers = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 2, "hidden_size": SIZE}
    known = {"vocab_size": WORDS, "intermediate_size": SIZE, "max_position_embeddings": LENGTH, "pad_token_id": 0}
    return {**layers, **known, "eos_token_id": 1, "bos_token_id": 2, "num_experts_per_tok": CHOSEN, **more}


def mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    return MixtralForCausalLM(MixtralConfig(**sizes(num_local_experts=EXPERTS)))


def qwen2():
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    more = {"moe_intermediate_size": SIZE, "shared_expert_intermediate_size": SIZE}
    return Qwen2MoeForCausalLM(Qwen2MoeConfig(**sizes(num_experts=EXPERTS, **more)))


def qwen3():
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    more = {"moe_intermediate_size": SIZE, "head_dim": 8}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**sizes(num_experts=EXPERTS, **more)))


def olmoe():
    from transformers import OlmoeConfig, OlmoeForCausalLM

    return OlmoeForCausalLM(OlmoeConfig(**sizes(num_experts=EXPERTS)))


def deepseek():
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    more = {"n_routed_experts": EXPERTS, "moe_intermediate_size": SIZE, "n_group": 2, "topk_group": 1}
    more |= {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 8}
    return DeepseekV3ForCausalLM(DeepseekV3Config(**sizes(first_k_dense_replace=1, **more)))


def switch():
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    more = {"num_layers": 2, "num_decoder_layers": 2, "num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1}
    more |= {"d_model": SIZE, "d_kv": 8, "d_ff": SIZE, "num_heads": 2, "num_experts": EXPERTS, "expert_capacity": 2}
    known = {"vocab_size": WORDS, "decoder_start_token_id": 0, "pad_token_id": 0, "dropout_rate": 0.0}
    return SwitchTransformersForConditionalGeneration(SwitchTransformersConfig(**more, **known))


def experts_of(output):
    """From what the routers of a model return: which experts are chosen, for each layer."""
    return output[2].reshape(-1, CHOSEN).numpy()


def dispatched(output):
    """The same for a mask; -1 for tokens that are dropped."""
    mask = next(x for x in output if not x.is_floating_point()).reshape(-1, EXPERTS).numpy()
    return np.where(mask.any(1), mask.argmax(1), -1)[:, None]


MODELS = {
    "Mixtral": (mixtral, experts_of, 2),
    "Qwen2-MoE": (qwen2, experts_of, 2),
    "Qwen3-MoE": (qwen3, experts_of, 2),
    "OLMoE": (olmoe, experts_of, 2),
    "DeepSeek-V3": (deepseek, experts_of, 1),
    "Switch": (switch, dispatched, 2),
}


def entropy(counts):
    shares = counts[counts > 0] / counts.sum()
    return -np.sum(shares * np.log(shares)) / np.log(len(counts))


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("checkpointed", [None, False, True])
def test_models_of_transformers_show_what_their_routers_choose(kind, checkpointed, watch, shown):
    make, read, layers = MODELS[kind]
    torch.manual_seed(0)
    model = make().train()
    bare, seen = copy.deepcopy(model), {}
    for name, module in bare.named_modules():
        if name.endswith((".gate", ".router")):
            module.register_forward_hook(lambda _, args, output, name=name: seen.update({name: read(output)}))
    words = torch.randint(3, WORDS, (BATCH, LENGTH), generator=torch.Generator().manual_seed(1))
    bare(input_ids=words, labels=words)
    if checkpointed is not None:
        model.gradient_checkpointing_enable({"use_reentrant": checkpointed})
    inspector = watch(model, Routing())
    model(input_ids=words, labels=words).loss.backward()
    found = inspector.lenses[0]._preprocessors[0].value
    assert {name: own["entropy"].count for name, own in found.items()} == dict.fromkeys(seen, 1)
    inspector.tick_epoch()
    assert len(seen) == layers
    assert [*shown.values("Routing Entropy")] == [*seen]
    for name, chosen in seen.items():
        counts = np.bincount(chosen[chosen >= 0].ravel(), minlength=EXPERTS)
        shares = {f"expert {number}": share for number, share in enumerate(counts / counts.sum())}
        assert shown.values("Routing Entropy")[name]["mean"] == pytest.approx(entropy(counts))
        assert shown.values("Expert Shares")[name] == pytest.approx(shares)
        assert shown.values("Dropped Tokens")[name]["mean"] == pytest.approx(np.mean((chosen < 0).all(1)))


class Gated(nn.Module):
    """A mixture written by hand: its gate is a plain linear layer."""

    def __init__(self, gate):
        super().__init__()
        self.gate, self.last = gate, nn.Linear(SIZE, 1)

    def forward(self, x):
        self.gate(x)
        return self.last(x)


class Stacked(nn.Sequential):
    def __init__(self):
        super().__init__(*(nn.Sequential(nn.Linear(SIZE, SIZE), nn.Linear(SIZE, SIZE)) for _ in range(3)))


@pytest.mark.parametrize("name", ["gate", ["gate"], ["other", "gate"]])
def test_a_router_is_named_by_the_end_of_its_name(name, watch, shown):
    model = nn.ModuleDict({"block": Gated(nn.Linear(SIZE, EXPERTS))})
    inspector = watch(model, Routing(name, top_k=1))
    x = torch.randn(7, SIZE)
    model["block"](x).sum().backward()
    inspector.tick_epoch()
    counts = np.bincount(model["block"].gate(x).argmax(1).numpy(), minlength=EXPERTS)
    assert shown.values("Routing Entropy")["block.gate"]["mean"] == pytest.approx(entropy(counts))
    assert shown.values("Dropped Tokens") == {}  # what comes after the gate may drop some


@pytest.mark.parametrize(
    ("names", "found"), [("0.1", ["0.1"]), ("1", ["1", "0.1", "1.1", "2.1"]), (("2.0", "0.0"), ["0.0", "2.0"])]
)
def test_which_modules_have_a_name(names, found, watch, shown):
    model = Stacked()
    inspector = watch(model, Routing(names, top_k=1))
    model(torch.randn(5, SIZE)).sum().backward()
    inspector.tick_epoch()
    assert sorted(shown.values("Routing Entropy")) == sorted(found)


class MoEGate(nn.Linear):
    top_k = 2


class ForgetGate(nn.Linear):
    pass


class MyRouter(nn.Linear):
    num_experts_per_tok = 3


@pytest.mark.parametrize(("kind", "chosen"), [(MoEGate, 2), (MyRouter, 3)])
def test_routers_are_found_by_the_name_of_their_class(kind, chosen, watch, shown):
    model = Gated(kind(SIZE, EXPERTS))
    inspector = watch(model, Routing())
    x = torch.randn(7, SIZE)
    model(x).sum().backward()
    inspector.tick_epoch()
    counts = np.bincount(model.gate(x).topk(chosen).indices.ravel().numpy(), minlength=EXPERTS)
    assert shown.values("Routing Entropy")["gate"]["mean"] == pytest.approx(entropy(counts))


@pytest.mark.parametrize("gate", [ForgetGate(SIZE, EXPERTS), nn.Linear(SIZE, EXPERTS)])
def test_a_model_without_routers_is_told(gate, watch):
    with pytest.warns(MonitorchWarning, match="found no layer to watch in this model; name its routers with routers="):
        watch(Gated(gate), Routing())


class QuietRouter(nn.Linear):
    pass


def test_a_router_that_does_not_say_what_it_chooses_is_told(watch, shown):
    model = Gated(QuietRouter(SIZE, EXPERTS))
    inspector = watch(model, Routing(), on_error="warn")
    with pytest.warns(MonitorchWarning, match=r"leaves out a sample of layer 'gate'.*pass top_k="):
        model(torch.randn(7, SIZE)).sum().backward()
    model(torch.randn(7, SIZE)).sum().backward()
    inspector.tick_epoch()
    assert shown.values("Routing Entropy") == shown.values("Expert Shares") == {}


def test_a_collapse_is_seen(watch, shown):
    model = Gated(MoEGate(SIZE, EXPERTS))
    inspector = watch(model, Routing(top_k=1))
    with torch.no_grad():
        model.gate.bias[2] = 1e4
    model(torch.randn(50, SIZE)).sum().backward()
    inspector.tick_epoch()
    assert shown.values("Routing Entropy")["gate"] == {"mean": 0}
    assert shown.values("Expert Load")["gate"] == {"largest": EXPERTS, "smallest": 0}
    assert shown.values("Unused Experts")["gate"] == {"unused": EXPERTS - 1}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"routers": 3}, "routers takes names, not 3"),
        ({"routers": [nn.Linear]}, "routers takes names"),
        ({"routers": ""}, "routers takes names"),
        ({"top_k": 0}, "top_k takes a whole number of at least 1, not 0"),
        ({"top_k": 1.5}, "top_k takes a whole number"),
        ({"top_k": True}, "top_k takes a whole number"),
        ({"experts": 0}, "experts takes a whole number of at least 1, not 0"),
    ],
)
def test_bad_options(options, text):
    with pytest.raises(OptionError, match=text):
        Routing(**options)


def test_tags(tags_of):
    assert tags_of(Routing()) == [
        ("Routing Entropy", False, False, True, "NUMERICAL", (0, 1)),
        ("Expert Shares", False, False, True, "NUMERICAL", (0, 1)),
        ("Expert Load", False, False, True, "NUMERICAL", None),
        ("Unused Experts", False, False, True, "NUMERICAL", None),
        ("Dropped Tokens", False, False, True, "NUMERICAL", (0, 1)),
    ]
