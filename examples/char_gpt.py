"""A small GPT learns to write Python, character by character, from a source file that every Python has.

Besides gradients, updates and activations, ``watch`` looks at the attention of each block: how many places it looks at
(its entropy), and how large its logits become. It does so because a class of the model has "attention" in its name; for
others there is ``lenses=["standard", Attention()]``. With ``every=5`` every fifth step is looked at. The learning rate
warms up and falls again, as usual; the report shows it beside the losses.

Prints what the model writes and the verdict, and writes ``char_gpt.html``.
"""

import argparse
import inspect

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

import monitorch

STEPS, BATCH, CONTEXT, WIDTH, HEADS, BLOCKS = 200, 24, 64, 64, 4, 2


class CausalSelfAttention(nn.Module):
    """Mixes what stands at each place with what stands before it."""

    def __init__(self):
        super().__init__()
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """Attention with several heads ``(batch, place, width)``."""
        heads = [part.unflatten(2, (HEADS, -1)).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=2)]
        return self.mix(scaled_dot_product_attention(*heads, is_causal=True).transpose(1, 2).flatten(2))


class Block(nn.Module):
    """Attention to the characters before, then two layers at each place."""

    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), CausalSelfAttention()
        self.norm2 = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        """Both parts, each added to what comes in."""
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    """Scores of the next character at each place of a text."""

    def __init__(self, characters: int):
        super().__init__()
        self.token, self.place = nn.Embedding(characters, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(BLOCKS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, characters)

    def forward(self, text: Tensor) -> Tensor:
        """Scores ``(batch, place, character)``."""
        places = torch.arange(text.shape[1], device=text.device)
        return self.head(self.norm(self.blocks(self.token(text) + self.place(places))))


@torch.no_grad()
def write(model: GPT, text: Tensor, count: int) -> Tensor:
    """Continue a text, one character after the other."""
    for _ in range(count):
        scores = model(text[None, -CONTEXT:])[0, -1]
        text = torch.cat((text, torch.multinomial((scores / 0.7).softmax(0), 1)))
    return text


def main() -> monitorch.Watch:
    """Train, let the model write, and say how it went."""
    torch.manual_seed(0)
    source = inspect.getsource(argparse)
    characters = sorted(set(source))
    text = torch.tensor([characters.index(one) for one in source])
    training, held_out = text[: -len(text) // 10], text[-len(text) // 10 :]

    model, loss_fn = GPT(len(characters)), nn.CrossEntropyLoss()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=5e-3, total_steps=STEPS, pct_start=0.2)

    def loss_of(text: Tensor) -> Tensor:
        windows = text.unfold(0, CONTEXT + 1, 1)[torch.randint(len(text) - CONTEXT, (BATCH,))]
        return loss_fn(model(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())

    with monitorch.watch(model, optimizer, loss_fn=loss_fn, run="char_gpt", every=5) as watched:
        for step in range(1, STEPS + 1):
            optimizer.zero_grad()
            loss_of(training).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            if step % 25 == 0:
                model.eval()
                with torch.no_grad():
                    loss_of(held_out)
                model.train()

    print("".join(characters[one] for one in write(model.eval(), text[:CONTEXT], 200)))
    print("\n", watched, sep="")
    print("report:", watched.report("char_gpt.html"))
    return watched


if __name__ == "__main__":
    main()
