"""Hugging Face's Trainer: a callback is the only line that is new.

A small GPT-2, made from a config and not downloaded, learns to continue sequences that repeat themselves. The callback
takes the options of ``monitorch.watch``; with ``every=5`` it looks at every fifth step.

Prints the verdict and writes ``hf_trainer.html``. Needs ``pip install 'monitorch[transformers]'``.
"""

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments, set_seed

from monitorch import Watch
from monitorch.integration.transformers import MonitorchCallback

TOKENS, PERIOD = 32, 6


def sequences(count: int) -> list[dict[str, torch.Tensor]]:
    """Six random tokens, four times."""
    texts = torch.randint(TOKENS, (count, PERIOD)).repeat(1, 4)
    return [{"input_ids": text, "labels": text} for text in texts]


def main() -> Watch | None:
    """Train, and say how it went."""
    set_seed(0)
    size = {"vocab_size": TOKENS, "n_positions": 4 * PERIOD, "n_embd": 64, "n_layer": 2, "n_head": 4}
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))
    arguments = TrainingArguments(
        "hf_trainer",
        max_steps=150,
        per_device_train_batch_size=32,
        learning_rate=3e-3,
        warmup_steps=20,
        eval_strategy="steps",
        eval_steps=25,
        logging_steps=25,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    callback = MonitorchCallback(run="hf_trainer", every=5)
    trainer = Trainer(model, arguments, train_dataset=sequences(4096), eval_dataset=sequences(64), callbacks=[callback])
    trainer.train()

    watched = callback.watched
    if watched is not None:
        print(watched)
        print("report:", watched.report("hf_trainer.html"))
    return watched


if __name__ == "__main__":
    main()
