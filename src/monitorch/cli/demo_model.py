"""A small transformer, every part of it a module that lenses can see."""

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention


class TransformerBlock(nn.Module):
    """Causal self-attention, then two layers applied at each position."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm1 = nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.mix = nn.Linear(width, width)
        self.norm2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.relu = nn.ReLU()
        self.down = nn.Linear(4 * width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """Apply both parts with residual connections."""
        x = x + self.mix(self._attend(self.qkv(self.norm1(x))))
        hidden: Tensor = self.relu(self.up(self.norm2(x)))
        return x.add(self.dropout(self.down(hidden)))

    def _attend(self, qkv: Tensor) -> Tensor:
        # batch, length, 3 * width -> 3 tensors of batch, heads, length, width of a head
        query, key, value = qkv.view(*qkv.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        return scaled_dot_product_attention(query, key, value, is_causal=True).transpose(1, 2).flatten(2)


class CharacterTransformer(nn.Module):
    """Predicts the next character at every position of a text.

    Args:
        vocabulary: how many characters there are.
        context: how many positions it sees at once.
        width: size of the vector at each position.
        heads: number of attention heads; they share the width.
        depth: number of blocks.
        dropout: share of each block's output that is dropped in training.
    """

    def __init__(
        self, vocabulary: int, context: int, width: int = 64, heads: int = 4, depth: int = 2, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.token = nn.Embedding(vocabulary, width)
        self.position = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(TransformerBlock(width, heads, dropout) for _ in range(depth)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, ids: Tensor) -> Tensor:
        """Scores of every character at every position."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        scores: Tensor = self.head(self.norm(self.blocks(self.token(ids) + self.position(positions))))
        return scores
