"""Models that nobody here wrote, as small as their configurations allow, each with a batch to train on."""

import torch
from torch import nn

VOCABULARY, LENGTH, BATCH = 32, 6, 4


def tokens(seed=0):
    return torch.randint(3, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(seed))


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def gpt2():
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=8, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=0
    )
    return GPT2LMHeadModel(config), {"input_ids": tokens(), "labels": tokens()}


def bert():
    from transformers import BertConfig, BertForSequenceClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = BertConfig(vocab_size=VOCABULARY, max_position_embeddings=8, **sizes)
    return BertForSequenceClassification(config), {"input_ids": tokens(), "labels": torch.tensor([0, 1, 0, 1])}


def llama():
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = LlamaConfig(vocab_size=VOCABULARY, max_position_embeddings=8, num_key_value_heads=1, **sizes)
    return LlamaForCausalLM(config), {"input_ids": tokens(), "labels": tokens()}


def t5():
    from transformers import T5Config, T5ForConditionalGeneration

    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_decoder_layers": 1, "num_heads": 2}
    config = T5Config(vocab_size=VOCABULARY, **sizes, decoder_start_token_id=0, pad_token_id=0)
    return T5ForConditionalGeneration(config), {"input_ids": tokens(), "labels": tokens(1)}


def vit():
    from transformers import ViTConfig, ViTForImageClassification

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    model = ViTForImageClassification(ViTConfig(image_size=8, patch_size=4, **sizes))
    return model, {"pixel_values": numbers(BATCH, 3, 8, 8), "labels": torch.tensor([0, 1, 0, 1])}


def mixtral():
    from transformers import MixtralConfig, MixtralForCausalLM

    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2}
    config = MixtralConfig(vocab_size=VOCABULARY, max_position_embeddings=8, num_key_value_heads=1, **sizes, **experts)
    return MixtralForCausalLM(config), {"input_ids": tokens(), "labels": tokens()}


def whisper():
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    layers = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    sizes = {"d_model": 16, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "num_mel_bins": 4}
    lengths = {"max_source_positions": 4, "max_target_positions": 8}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    config = WhisperConfig(vocab_size=VOCABULARY, **layers, **sizes, **lengths, **special, suppress_tokens=None)
    return WhisperForConditionalGeneration(config), {"input_features": numbers(BATCH, 4, 8), "labels": tokens()}


class Predicting(nn.Module):
    """A module of torch with a head, that computes its loss as the other models do."""

    def __init__(self, body, width):
        super().__init__()
        self.body, self.head = body, nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, inputs, labels):
        states = self.body(*inputs)
        predicted = self.head(states[0] if isinstance(states, tuple) else states)
        return {"loss": (predicted - labels).square().mean(), "predicted": predicted}


def predicting(body, inputs, width=8):
    return Predicting(body, width), {"inputs": inputs, "labels": numbers(BATCH, LENGTH, 1)}


def transformer():
    body = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
    return predicting(body, (numbers(BATCH, LENGTH, 8), numbers(BATCH, LENGTH, 8)))


def lstm():
    return predicting(nn.LSTM(8, 8, num_layers=2, batch_first=True), (numbers(BATCH, LENGTH, 8),))


def gru():
    return predicting(nn.GRU(8, 8, bidirectional=True, batch_first=True), (numbers(BATCH, LENGTH, 8),), width=16)


def attention():
    x = numbers(BATCH, LENGTH, 8)
    return predicting(nn.MultiheadAttention(8, 2, batch_first=True), (x, x, x))


MODELS = {
    "GPT-2": gpt2,
    "BERT": bert,
    "Llama": llama,
    "T5": t5,
    "ViT": vit,
    "Mixtral": mixtral,
    "Whisper": whisper,
    "nn.Transformer": transformer,
    "nn.LSTM": lstm,
    "nn.GRU": gru,
    "nn.MultiheadAttention": attention,
}
