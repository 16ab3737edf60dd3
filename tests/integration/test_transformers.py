"""Hugging Face's Trainer with the callback: the real Trainer, TRL and PEFT, with models made from configs."""

import copy
import gc
import importlib
import json
import math
import os
import pickle
import subprocess
import sys
import weakref
from pathlib import Path

import numpy as np
import peft
import pytest
import torch
import transformers
from accelerate.state import GradientState
from torch import nn
from torch.utils.data import Dataset
from transformers import (
    EarlyStoppingCallback,
    GPT2Config,
    GPT2LMHeadModel,
    Trainer,
    TrainerCallback,
    TrainingArguments,
)

import monitorch
from monitorch.diagnosis import Finding
from monitorch.errors import MissingExtraError, MonitorchWarning, OptionError, TrainingStopped
from monitorch.integration.position import FILE
from monitorch.integration.transformers import MonitorchCallback
from monitorch.store import list_runs, open_run

STEPS, VOCABULARY = 6, 32
LOSS, VALIDATION, NORM = "Loss/train_loss mean", "Loss/val_loss mean", "Gradient Norm/gradient_norm mean"


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_TELEMETRY", "1")
    monkeypatch.chdir(tmp_path)


class Texts(Dataset):
    """Random tokens, so that every batch has another loss; some labels are left out, so that token counts differ."""

    def __init__(self, size=40, seed=0):
        generator = torch.Generator().manual_seed(seed)
        self.tokens = torch.randint(0, VOCABULARY, (size, 10), generator=generator)
        ignored = torch.randint(2, 10, (size,), generator=generator)
        self.labels = torch.where(torch.arange(10) < ignored[:, None], self.tokens, -100)

    def __len__(self):
        return len(self.tokens)

    def __getitem__(self, index):
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def new_model():
    torch.manual_seed(0)
    size = {"n_positions": 16, "n_embd": 8, "n_layer": 2, "n_head": 2, "vocab_size": VOCABULARY}
    return GPT2LMHeadModel(GPT2Config(**size, bos_token_id=0, eos_token_id=0, loss_type="ForCausalLM"))


def arguments(output_dir="out", **changes):
    common = {"max_steps": STEPS, "per_device_train_batch_size": 4, "learning_rate": 0.01, "logging_steps": 1}
    common |= {"save_strategy": "no", "report_to": "none", "disable_tqdm": True, "use_cpu": True, "max_grad_norm": 0.0}
    return TrainingArguments(output_dir, **(common | changes))


def callback(**options):
    return MonitorchCallback(**({"folder": "runs", "every": 1, "tick_every": 1} | options))


def new_trainer(callbacks=(), kind=Trainer, model=None, **changes):
    own = {
        name: changes.pop(name) for name in ("compute_loss_func", "optimizers", "compute_metrics") if name in changes
    }
    data = {"train_dataset": Texts(), "eval_dataset": Texts(7, seed=1)}
    return kind(model or new_model(), arguments(**changes), **data, callbacks=[*callbacks], **own)


def recorded(watcher, statistic, lens="run"):
    """The stored numbers by step."""
    with open_run(watcher.watched.visualizer.path) as run:
        series = run.series(lens, statistic, lens)
        return dict(zip(series.axis.step.tolist(), series.values.tolist(), strict=True))


def logged(trainer, name):
    """What the Trainer has logged, by step."""
    return {entry["step"]: entry[name] for entry in trainer.state.log_history if name in entry}


def weights(trainer):
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def assert_same_weights(first, second):
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def assert_equal(found, expected, tolerance=1e-5):
    assert list(found) == list(expected)
    np.testing.assert_allclose(list(found.values()), list(expected.values()), rtol=tolerance)


def status(watcher):
    with open_run(watcher.watched.visualizer.path) as run:
        return run.status, run.error


def test_one_line_is_enough():
    watcher = callback()
    trainer = new_trainer([watcher], eval_strategy="steps", eval_steps=4)
    trainer.train()
    assert list(logged(trainer, "loss")) == list(range(1, STEPS + 1))
    assert_equal(recorded(watcher, LOSS), logged(trainer, "loss"))
    assert_equal(recorded(watcher, NORM), logged(trainer, "grad_norm"), 1e-4)
    assert_equal(recorded(watcher, VALIDATION), logged(trainer, "eval_loss"))
    assert_equal(recorded(watcher, "Logged/learning_rate mean"), logged(trainer, "learning_rate"))
    assert_equal(recorded(watcher, "Logged/learning rate (no decay) mean"), logged(trainer, "learning_rate"))
    assert status(watcher) == ("finished", None)
    without = new_trainer(eval_strategy="steps", eval_steps=4)
    without.train()
    assert_same_weights(weights(trainer), weights(without))


class Smoothed(Trainer):
    """A loss of one's own: per micro-batch, so that the Trainer divides it."""

    loss_is_scaled_for_ga = False

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(input_ids=inputs["input_ids"])
        loss = outputs.logits.square().mean() + outputs.logits.logsumexp(-1).mean()
        return (loss, outputs) if return_outputs else loss


class Scaled(Trainer):
    """The Trainer with a GradScaler, which Accelerate itself makes on GPUs only; the second step overflows."""

    def __init__(self, *args, **options):
        super().__init__(*args, **options)
        self.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**16)

    def training_step(self, *args, **named):
        loss = super().training_step(*args, **named)
        if self.state.global_step == 1:
            next(self.model.parameters()).grad[0, 0] = math.inf
        return loss


def squared(outputs, labels, num_items_in_batch=None):
    return outputs.logits.square().sum() / num_items_in_batch


CASES = {
    "accumulation with a rest": {"gradient_accumulation_steps": 4, "num_train_epochs": 2, "max_steps": -1},
    "epochs": {"num_train_epochs": 2, "max_steps": -1, "logging_strategy": "epoch", "eval_strategy": "epoch"},
    "bf16": {"bf16": True},
    "checkpointing": {"gradient_checkpointing": True, "gradient_accumulation_steps": 2},
    "reentrant checkpointing": {
        "gradient_checkpointing": True,
        "gradient_checkpointing_kwargs": {"use_reentrant": True},
    },
    "label smoothing": {"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 2, "eval_strategy": "epoch"},
    "loss function": {"compute_loss_func": squared, "gradient_accumulation_steps": 2},
    "own compute_loss": {"kind": Smoothed, "gradient_accumulation_steps": 2, "eval_strategy": "epoch"},
    "scheduler and few logs": {"lr_scheduler_type": "cosine", "warmup_steps": 2, "logging_steps": 4},
    "SGD": {"optim": "sgd"},
    "Adafactor": {"optim": "adafactor"},
    "NEFTune": {"neftune_noise_alpha": 5.0},
    "evaluation at the start": {"eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True},
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_numbers_are_those_of_the_trainer_and_training_is_the_same(case):
    watcher = callback()
    trainer = new_trainer([watcher], **case)
    trainer.train()
    steps = trainer.state.global_step
    found, losses = recorded(watcher, LOSS), logged(trainer, "loss")
    assert list(found) == list(range(1, steps + 1))
    before = 0
    for step, loss in losses.items():  # each is the mean since the one before
        assert np.mean([found[one] for one in range(before + 1, step + 1)]) == pytest.approx(loss, rel=1e-5)
        before = step
    norms = recorded(watcher, NORM)
    for step, norm in logged(trainer, "grad_norm").items():
        assert norms[step] == pytest.approx(norm, rel=1e-4)
    if evaluations := logged(trainer, "eval_loss"):
        assert_equal(recorded(watcher, VALIDATION), evaluations)
    for name in {name for entry in trainer.state.log_history for name in entry} - {"step", "epoch"}:
        assert_equal(recorded(watcher, f"Logged/{name} mean"), logged(trainer, name))
    without = new_trainer(**case)
    without.train()
    assert_same_weights(weights(trainer), weights(without))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning")  # of the compiler
def test_compiled_models_are_watched(fresh_compiler):
    watcher = callback()
    trainer = new_trainer(
        [watcher], torch_compile=True, torch_compile_backend="aot_eager", gradient_accumulation_steps=2
    )
    trainer.train()
    assert_equal(recorded(watcher, LOSS), logged(trainer, "loss"))
    assert_equal(recorded(watcher, NORM), logged(trainer, "grad_norm"), 1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("gradient", ["at_step", "before_clip"])
def test_clipped_gradients_are_shown_as_the_optimizer_gets_them_or_as_the_trainer_logs_them(gradient):
    watcher = callback(gradient=gradient)
    trainer = new_trainer([watcher], max_grad_norm=0.5)
    trainer.train()
    norms = logged(trainer, "grad_norm")
    assert min(norms.values()) > 0.5
    shown = dict.fromkeys(norms, 0.5) if gradient == "at_step" else norms
    assert_equal(recorded(watcher, NORM), shown, 1e-4)


@pytest.mark.slow
def test_gradients_are_unscaled_and_skipped_steps_count(monkeypatch):
    watcher = callback()
    trainer = new_trainer([watcher], kind=Scaled)
    trainer.train()
    norms, logs = recorded(watcher, NORM), logged(trainer, "grad_norm")  # these are scaled, because it is not a GPU
    assert math.isinf(logs.pop(2))
    assert not math.isfinite(norms.pop(2, math.nan))  # the step was skipped, and the scale halved
    assert_equal(norms, {step: norm / 2.0 ** (16 if step == 1 else 15) for step, norm in logs.items()}, 1e-4)
    assert recorded(watcher, "Logged/skipped steps mean") == {1: 0, 2: 1, 3: 0, 4: 0, 5: 0, 6: 0}
    assert_equal(recorded(watcher, LOSS), logged(trainer, "loss"))


@pytest.mark.slow
def test_training_that_stops_early_ends_as_finished_with_its_last_step():
    watcher = callback(tick_every=4)
    patience = {"eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "eval_loss", "save_strategy": "no"}
    stop = EarlyStoppingCallback(early_stopping_patience=1, early_stopping_threshold=100.0)
    trainer = new_trainer([watcher, stop], **patience)
    trainer.state.best_metric = 0.0
    trainer.train()
    last = trainer.state.global_step
    assert 1 < last < STEPS
    assert list(recorded(watcher, VALIDATION)) == list(range(1, last + 1))
    assert max(recorded(watcher, LOSS)) == last
    assert status(watcher) == ("finished", None)


def interrupted(error, at):
    class Interrupting(TrainerCallback):
        def on_step_end(self, args, state, control, **known):
            if at == "between steps" and state.global_step == 3:
                raise error

    class Failing(Texts):
        asked = 0

        def __getitem__(self, index):
            self.asked += 1
            if at == "data" and self.asked == 18:
                raise error
            return super().__getitem__(index)

    class FailingModel(GPT2LMHeadModel):
        passes = 0

        def forward(self, input_ids=None, labels=None, **named):
            self.passes += 1
            if at == "forward" and self.passes == 4:
                raise error
            return super().forward(input_ids, labels=labels, **named)

    model = FailingModel(new_model().config)
    return model, Failing(), Interrupting()


@pytest.mark.slow
@pytest.mark.parametrize("at", ["forward", "data", "between steps"])
@pytest.mark.parametrize("error", [ValueError("broken"), KeyboardInterrupt()], ids=["error", "Ctrl-C"])
@pytest.mark.parametrize("way", ["callbacks", "report_to"])
def test_what_ends_training_is_stored(error, at, way):
    model, data, interrupting = interrupted(error, at)
    watcher = callback()
    given = [watcher, interrupting] if way == "callbacks" else [interrupting]
    options = {"max_steps": 9, "report_to": "none" if way == "callbacks" else "monitorch"}
    trainer = Trainer(model, arguments(**options), train_dataset=data, callbacks=given)
    watcher = next(one for one in trainer.callback_handler.callbacks if isinstance(one, MonitorchCallback))
    with pytest.raises(type(error)):
        trainer.train()
    state, failure = status(watcher)
    assert state == "crashed"
    assert type(error).__name__ in failure.line
    steps = trainer.state.global_step
    assert max(recorded(watcher, LOSS)) == steps > 0
    hooks = [part._forward_hooks or part._forward_pre_hooks for part in model.modules()]
    assert not any(hooks)


@pytest.mark.slow
def test_a_callback_that_is_added_later_notices_errors_of_the_model():
    model, data, _ = interrupted(ValueError("broken"), "forward")
    trainer = Trainer(model, arguments(), train_dataset=data)
    trainer.add_callback(watcher := callback())
    with pytest.raises(ValueError, match="broken"):
        trainer.train()
    assert status(watcher)[0] == "crashed"


@pytest.mark.slow
def test_the_same_run_goes_on_from_a_checkpoint():
    save = {"save_strategy": "steps", "save_steps": 2, "eval_strategy": "steps", "eval_steps": 2}
    whole = new_trainer([whole_watcher := callback(run="whole")], output_dir="elsewhere", **save)
    whole.train()
    first = new_trainer([watcher := callback(run="halves")], **save)

    class Killed(TrainerCallback):
        def on_step_end(self, args, state, control, **known):
            if state.global_step == 5:
                raise KeyboardInterrupt

    first.add_callback(Killed())
    with pytest.raises(KeyboardInterrupt):
        first.train()
    assert status(watcher)[0] == "crashed"
    second = new_trainer([again := callback()], **save)
    second.train(resume_from_checkpoint=True)
    assert again.watched.run == "halves"
    assert status(again) == ("finished", None)
    for statistic in (LOSS, VALIDATION, NORM, "Logged/loss mean"):
        assert_equal(recorded(again, statistic), recorded(whole_watcher, statistic))
    assert_same_weights(weights(second), weights(whole))


@pytest.mark.slow
@pytest.mark.parametrize("content", [None, b"no state", {"run": "other", "watch": {}}], ids=["none", "broken", "other"])
def test_without_a_usable_state_a_run_begins_at_the_step_of_the_checkpoint(content):
    save = {"save_strategy": "steps", "save_steps": 4}
    new_trainer([callback()] if content else [], **save).train()
    file = Path("out", "checkpoint-4", FILE)
    assert file.exists() == bool(content)
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content:
        torch.save(content, file)
    trainer = new_trainer([watcher := callback(run="new")], **save)
    if content is None:
        trainer.train(resume_from_checkpoint="out/checkpoint-4")
    else:
        with pytest.warns(
            MonitorchWarning, match="the run cannot be resumed from|only the step of the checkpoint is used, which is 4"
        ):
            trainer.train(resume_from_checkpoint="out/checkpoint-4")
    assert list(recorded(watcher, LOSS)) == [5, 6]
    losses = logged(trainer, "loss")
    assert_equal(recorded(watcher, LOSS), {step: losses[step] for step in (5, 6)})


@pytest.mark.slow
def test_several_evaluations_have_names_of_their_own():
    watcher = callback()
    trainer = new_trainer([watcher], eval_strategy="steps", eval_steps=3)
    trainer.eval_dataset = {"easy": Texts(5, seed=2), "hard": Texts(6, seed=3)}
    trainer.train()
    easy, hard = logged(trainer, "eval_easy_loss"), logged(trainer, "eval_hard_loss")
    assert_equal(recorded(watcher, "Logged/eval_easy_loss mean"), easy)
    assert_equal(recorded(watcher, VALIDATION), {step: (easy[step] + hard[step]) / 2 for step in easy})


@pytest.mark.slow
def test_tuned_models_show_the_names_of_the_model_inside():
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True)
    watcher = callback()
    trainer = new_trainer([watcher], model=peft.get_peft_model(new_model(), config))
    trainer.train()
    assert_equal(recorded(watcher, LOSS), logged(trainer, "loss"))
    assert_equal(recorded(watcher, NORM), logged(trainer, "grad_norm"), 1e-4)
    with open_run(watcher.watched.visualizer.path) as run:
        names = {layer.name for layer in run.layers}
    assert {"transformer.h.0.attn.c_attn.base_layer", "transformer.h.0.attn.c_attn.lora_A"} <= names
    assert not any("base_model" in name or "default" in name for name in names)


def tokenizer():
    made = transformers.PreTrainedTokenizerFast
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {f"w{number}": number for number in range(VOCABULARY - 2)} | {
        "<end>": VOCABULARY - 2,
        "<none>": VOCABULARY - 1,
    }
    inner = Tokenizer(models.WordLevel(words, unk_token="<none>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return made(tokenizer_object=inner, eos_token="<end>", pad_token="<none>", unk_token="<none>")


@pytest.mark.slow
@pytest.mark.parametrize("tuned", [False, True], ids=["whole", "LoRA"])
def test_a_trainer_of_trl_needs_the_same_line(tuned):
    import datasets
    import trl

    generator = np.random.default_rng(0)
    texts = [" ".join(f"w{one}" for one in generator.integers(0, 30, size)) for size in generator.integers(3, 9, 40)]
    config = peft.LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True) if tuned else None
    common = {"max_steps": STEPS, "per_device_train_batch_size": 4, "logging_steps": 1, "save_strategy": "no"}
    common |= {"report_to": "none", "disable_tqdm": True, "use_cpu": True, "max_grad_norm": 0.0, "bf16": False}
    options = trl.SFTConfig("out", **common, gradient_accumulation_steps=2, max_length=16, learning_rate=0.01)

    def trained(*callbacks):
        data = datasets.Dataset.from_dict({"text": texts})
        known = {"train_dataset": data, "processing_class": tokenizer(), "peft_config": config}
        trainer = trl.SFTTrainer(new_model(), options, **known, callbacks=[*callbacks])
        trainer.train()
        return trainer

    watcher = callback()
    trainer = trained(watcher)
    assert_equal(recorded(watcher, LOSS), logged(trainer, "loss"))
    assert_equal(recorded(watcher, NORM), logged(trainer, "grad_norm"), 1e-4)
    assert_equal(recorded(watcher, "Logged/mean_token_accuracy mean"), logged(trainer, "mean_token_accuracy"))
    assert_same_weights(weights(trainer), weights(trained()))


@pytest.mark.slow
def test_steps_that_are_too_large_end_in_their_finding():
    watcher = MonitorchCallback(folder="runs", every=1)
    new_trainer([watcher], max_steps=40, learning_rate=3.0, optim="sgd", lr_scheduler_type="constant").train()
    with open_run(watcher.watched.visualizer.path) as run:
        first = Finding.from_json(run.meta["findings"][0])
    assert (first.symptom, first.severity) == ("step_too_large", "error")


@pytest.mark.slow
def test_a_layer_that_the_optimizer_does_not_have_ends_in_its_finding():
    model, watcher = new_model(), MonitorchCallback(folder="runs", every=1)
    trained = [parameter for name, parameter in model.named_parameters() if ".h.0." not in name]
    optimizer = torch.optim.AdamW(trained, lr=1e-4)
    new_trainer([watcher], model=model, max_steps=20, optimizers=(optimizer, None)).train()
    first = watcher.watched.findings[0]
    assert first.symptom == "no_update"
    assert first.layer.startswith("transformer.h.0.")


@pytest.mark.slow
def test_the_arguments_of_training_are_kept_with_the_run():
    watcher = MonitorchCallback(folder="runs")
    new_trainer([watcher], run_name="small", learning_rate=0.03).train()
    assert watcher.watched.run == "small"
    with open_run(watcher.watched.visualizer.path) as run:
        assert run.meta["config"]["learning_rate"] == 0.03


@pytest.mark.slow
def test_report_to_takes_the_name():
    trainer = new_trainer(report_to="monitorch", run_name="reported")
    trainer.train()
    (watcher,) = [one for one in trainer.callback_handler.callbacks if isinstance(one, MonitorchCallback)]
    assert watcher.watched.run == "reported"


BAD = {
    "unknown": ({"tick_evry": 3}, TypeError, "did you mean tick_every="),
    "model": ({"model": nn.Linear(1, 1)}, OptionError, "gets model from the Trainer"),
    "optimizer": ({"optimizer": None}, OptionError, "gets optimizer from the Trainer"),
    "loss_fn": ({"loss_fn": nn.MSELoss()}, OptionError, "gets loss_fn from the Trainer"),
}


def test_without_the_package_the_error_holds_the_pip_line(monkeypatch):
    monkeypatch.delitem(sys.modules, "monitorch.integration.transformers")
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(
        MissingExtraError, match=r"needs the package 'transformers': pip install 'monitorch\[transformers\]'"
    ):
        importlib.import_module("monitorch.integration.transformers")


@pytest.mark.parametrize(("options", "error", "text"), BAD.values(), ids=BAD)
def test_bad_options_are_refused_at_once(options, error, text):
    with pytest.raises(error, match=text):
        MonitorchCallback(**options)


WAYS = {
    "before, without optimizer": (lambda model: None),
    "before, with the optimizer": (lambda model: torch.optim.AdamW(model.parameters(), lr=0.01)),
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS.values(), ids=WAYS)
def test_a_plain_watch_says_what_to_use_instead(way):
    model = new_model()
    optimizer = way(model)
    with monitorch.watch(model, optimizer, visualizer="dummy"):
        trainer = new_trainer(model=model, optimizers=(optimizer, None))
        with pytest.warns(
            MonitorchWarning, match=r"write Trainer\(\.\.\., callbacks=\[MonitorchCallback\(\)\]\)"
        ) as told:
            trainer.train()
    assert len([one for one in told if issubclass(one.category, MonitorchWarning)]) == 1


@pytest.mark.slow
def test_a_trainer_is_freed_as_soon_as_nobody_uses_it():
    trainer = new_trainer([MonitorchCallback(visualizer="dummy")], max_steps=1)
    trainer.train()
    assert type(trainer).__name__ == "Trainer"
    known, model = weakref.ref(trainer), weakref.ref(trainer.model)
    del trainer
    assert known() is None
    gc.collect()
    assert model() is None


@pytest.mark.slow
@pytest.mark.parametrize("copied", [copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))], ids=["copy", "pickle"])
def test_a_trainer_can_be_copied(copied):
    GradientState._reset_state()  # it remembers the data of earlier tests, which cannot be copied
    trainer = new_trainer([callback()], max_steps=2)
    other = copied(trainer)
    assert type(other) is Trainer
    (watcher,) = [one for one in other.callback_handler.callbacks if isinstance(one, MonitorchCallback)]
    assert repr(watcher) == repr(callback())


@pytest.mark.slow
def test_a_copy_of_a_callback_watches_nothing_yet():
    trainer = new_trainer([watcher := callback()], max_steps=1)
    trainer.train()
    assert copy.deepcopy(watcher).watched is None


@pytest.mark.slow
def test_training_stops_where_that_is_asked_for():
    watcher = callback(stop_on="error")
    trainer = new_trainer([watcher], max_steps=200, learning_rate=3.0, optim="sgd", lr_scheduler_type="constant")
    with pytest.raises(TrainingStopped):
        trainer.train()
    assert trainer.state.global_step < 200
    assert "TrainingStopped" in status(watcher)[1].line


@pytest.mark.slow
def test_training_twice_makes_two_runs():
    trainer = new_trainer([watcher := callback(run="twice")], max_steps=2)
    trainer.train()
    first = watcher.watched
    trainer.train()
    assert [first.run, watcher.watched.run] == ["twice", "twice_2"]
    assert list(recorded(watcher, LOSS)) == [1, 2]


@pytest.mark.slow
def test_models_that_cannot_be_watched_are_trained_all_the_same():
    watcher = callback()
    trainer = new_trainer([watcher], max_steps=2)
    trainer.model.ds_id = 0
    next(trainer.model.parameters()).ds_id = 0  # as DeepSpeed marks them
    with pytest.warns(MonitorchWarning, match="the model is trained, but not watched: .*DeepSpeed"):
        trainer.train()
    assert trainer.state.global_step == 2
    assert watcher.watched is None


@pytest.mark.slow
def test_nothing_is_watched_if_the_environment_says_so(monkeypatch):
    monkeypatch.setenv("MONITORCH", "off")
    new_trainer([callback()], max_steps=2).train()
    assert not Path("runs").exists()


@pytest.mark.slow
def test_two_processes_show_the_numbers_of_both(tmp_path):
    script = Path(__file__).with_name("transformers_processes.py")
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node=2", str(script)]
    settings = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(launch, cwd=tmp_path, env=settings, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert "MonitorchWarning" not in done.stderr
    logs = json.loads(Path("logs.json").read_text(encoding="utf-8"))
    (found,) = list_runs("runs")
    assert (found.name, found.status) == ("both", "finished")
    with open_run(Path("runs", "both")) as run:
        for statistic, name in ((LOSS, "loss"), (NORM, "grad_norm"), (VALIDATION, "eval_loss")):
            series = run.series("run", statistic, "run")
            shown = dict(zip(series.axis.step.tolist(), series.values.tolist(), strict=True))
            assert_equal(shown, {one["step"]: one[name] for one in logs if name in one}, 1e-4)
