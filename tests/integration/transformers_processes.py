"""What each process of a test runs: a Trainer on a share of the data, interrupted once and continued."""

import json
from pathlib import Path

import torch
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainerCallback, TrainingArguments

from monitorch.integration.transformers import MonitorchCallback

STEPS, BROKEN_AT, SAVED_AT = 6, 5, 4


class Breaking(TrainerCallback):
    """Ends training in all processes."""

    def on_step_end(self, args, state, control, **known):
        if state.global_step == BROKEN_AT:
            control.should_training_stop = True


def train(callbacks, checkpoint=None):
    torch.manual_seed(0)
    size = {"n_positions": 16, "n_embd": 8, "n_layer": 1, "n_head": 2, "vocab_size": 32}
    model = GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0))
    tokens = torch.randint(0, 32, (48, 10), generator=torch.Generator().manual_seed(1))
    data = [{"input_ids": row, "labels": row} for row in tokens]
    common = {"max_steps": STEPS, "per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    common |= {"logging_steps": 1, "eval_strategy": "steps", "eval_steps": 2, "save_steps": SAVED_AT}
    common |= {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "max_grad_norm": 0.0}
    arguments = TrainingArguments("out", **common)
    trainer = Trainer(model, arguments, train_dataset=data[:40], eval_dataset=data[40:], callbacks=callbacks)
    trainer.train(resume_from_checkpoint=checkpoint)
    return trainer


if __name__ == "__main__":
    train([MonitorchCallback(folder="runs", run="both", every=1, tick_every=1), Breaking()])
    trainer = train([MonitorchCallback(folder="runs", every=1, tick_every=1)], f"out/checkpoint-{SAVED_AT}")
    if trainer.is_world_process_zero():
        Path("logs.json").write_text(json.dumps(trainer.state.log_history), encoding="utf-8")
    torch.distributed.destroy_process_group()
