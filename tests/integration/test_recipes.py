"""Loops as people write them, and libraries without a hook of their own: numbers against NumPy and their own."""

import os
import re
from pathlib import Path

import pytest
import torch
from torch import nn

import monitorch
from monitorch.store import list_runs
from monitorch.visualizer.record_sink import RecordSink
from tests.step_oracle import Oracle, assert_right

PAGE = Path(__file__).parent.parent.parent / "docs" / "how_to" / "plain_loops.md"
SLOW_BLOCK = re.compile(r"^```python slow\n(.*?)^```", re.DOTALL | re.MULTILINE)

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"

OF_LIBRARIES = pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning:(?!monitorch)"
)


class Kept(RecordSink):
    """Keeps all numbers."""

    def __init__(self):
        self.records = []

    def write(self, records):
        self.records += records


def watch(*args, **options):
    return monitorch.watch(*args, **{"every": 1, "tick_every": 1, "visualizer": "dummy", **options})


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def loss_shown(watched, kind="train"):
    return [(r.step, r.value) for r in watched.records() if r.statistic == f"{kind}_loss mean"]


class LanguageModel(nn.Module):
    """Returns logits and loss, as many scripts have it."""

    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(16, 8), nn.Linear(8, 16, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens, targets):
        logits = self.head(self.embed(tokens).tanh())
        return logits, nn.functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def test_a_loop_with_micro_batches_clipping_and_an_estimate_of_the_validation_loss():
    torch.manual_seed(0)
    model, micro = LanguageModel(), 3
    optimizer, oracle = torch.optim.AdamW(model.parameters(), lr=1e-2), Oracle(model.named_parameters())
    with watch(model, optimizer) as watched:
        for step in range(1, 5):
            oracle.begin()
            losses = []
            for _ in range(micro):
                tokens = torch.randint(0, 16, (2, 7))
                with torch.autocast("cpu", torch.bfloat16):
                    _, loss = model(tokens[:, :-1], tokens[:, 1:])
                watched.push_loss(loss)
                losses.append(loss.item())
                (loss / micro).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)
            optimizer.step()
            oracle.end()
            optimizer.zero_grad(set_to_none=True)
            assert_right(watched, oracle)
            assert loss_shown(watched) == [(step, pytest.approx(sum(losses) / micro))]
        with torch.no_grad():
            model.eval()
            estimate = model(tokens[:, :-1], tokens[:, 1:])[1]
            model.train()
        watched.push_loss(estimate, train=False)
    assert loss_shown(watched, "val") == [(4, pytest.approx(estimate.item()))]


class Container(torch.optim.Optimizer):
    """One optimizer for each part of a model."""

    def __init__(self, parts, kinds):
        self.optimizers = [kind(part.parameters(), lr=0.01) for part, kind in zip(parts, kinds, strict=True)]
        super().__init__([own for part in parts for own in part.parameters()], {"lr": 0.01})

    def step(self, *args, **kwargs):
        for optimizer in self.optimizers:
            optimizer.step(*args, **kwargs)


def test_an_optimizer_that_holds_several_makes_one_step():
    model = mlp()
    optimizers = Container([model[0], model[2]], [torch.optim.AdamW, torch.optim.SGD])
    oracle = Oracle(model.named_parameters())
    with watch(model, optimizers) as watched:
        for step in range(1, 5):
            oracle.begin()
            model.zero_grad()
            model(torch.randn(8, 4)).square().mean().backward()
            optimizers.step()
            oracle.end()
            watched.records()  # in the first step it is not known yet that no other optimizer follows
            assert watched.inspector.state.step == step
            assert_right(watched, oracle)


@pytest.mark.parametrize("is_noticed", [True, False], ids=["optimizer", "by hand"])
def test_sharpness_aware_steps_are_shown_as_the_optimizer_makes_them(is_noticed):
    model, rho = mlp(), 0.1
    optimizer, oracle = torch.optim.SGD(model.parameters(), lr=0.05), Oracle(model.named_parameters())
    with watch(model, optimizer if is_noticed else "by hand") as watched:
        for step in range(1, 5):
            x = torch.randn(16, 4)
            oracle.begin()
            model.zero_grad()
            first = model(x).square().mean()
            watched.push_loss(first)
            first.backward()
            with torch.no_grad():
                norm = torch.stack([own.grad.norm() for own in model.parameters()]).norm()
                kept = [own.clone() for own in model.parameters()]
                for own in model.parameters():
                    own += rho * own.grad / norm
            model.zero_grad()
            model(x).square().mean().backward()
            with torch.no_grad():
                for own, before in zip(model.parameters(), kept, strict=True):
                    own.copy_(before)
            optimizer.step()
            oracle.end()
            if not is_noticed:
                watched.step()
            assert (watched.inspector.state.step, watched.inspector.state.passes) == (step, 2 * step)
            assert_right(watched, oracle)
            assert loss_shown(watched) == [(step, pytest.approx(first.item()))]


def blocks(text):
    return [(block[1], text[: block.start(1)].count("\n")) for block in SLOW_BLOCK.finditer(text)]


@pytest.mark.slow
@pytest.mark.parametrize("place", range(3), ids=["stable-baselines3", "torch_geometric", "diffusers"])
@OF_LIBRARIES
def test_the_slow_blocks_of_the_page_run(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = blocks(PAGE.read_text(encoding="utf-8"))
    assert len(found) == 3
    block, line = found[place]
    names = {"torch": torch, "nn": nn, "monitorch": monitorch}
    exec(compile("\n" * line + block, str(PAGE), "exec"), names)
    (run,) = list_runs(tmp_path / "monitorch_runs")
    assert (run.status, run.last_step) == ("finished", {0: 8, 1: 6, 2: 6}[place])


@pytest.mark.slow
@OF_LIBRARIES
def test_an_agent_of_stable_baselines_is_trained_as_it_is_shown(monkeypatch):
    from stable_baselines3 import PPO

    norms, clip = [], torch.nn.utils.clip_grad_norm_

    def noted(parameters, *args, **kwargs):
        norms.append(clip(parameters, *args, **kwargs))
        return norms[-1]

    monkeypatch.setattr(torch.nn.utils, "clip_grad_norm_", noted)
    agent, kept = PPO("MlpPolicy", "CartPole-v1", n_steps=32, batch_size=16, n_epochs=2, seed=0, device="cpu"), Kept()
    with watch(agent.policy, agent.policy.optimizer, gradient="before_clip", visualizer=kept) as watched:
        agent.learn(64)
        assert (watched.inspector.state.step, watched.inspector.state.passes) == (8, 8)
    shown = [(r.step, r.value) for r in kept.records if r.statistic == "gradient_norm mean"]
    assert shown == [(step, pytest.approx(norm.item(), rel=1e-4)) for step, norm in enumerate(norms, 1)]
    layers = {r.layer for r in kept.records if r.lens == "OutputNorm"}
    assert {"mlp_extractor.policy_net.0", "action_net", "value_net"} <= layers


@pytest.mark.slow
@OF_LIBRARIES
def test_a_graph_network_is_trained_as_it_is_shown():
    from torch_geometric.nn import GATConv, GCNConv

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = GCNConv(5, 8), GATConv(8, 3)

        def forward(self, x, edges):
            return self.second(self.first(x, edges).relu(), edges)

    torch.manual_seed(0)
    x, edges, y = torch.randn(12, 5), torch.randint(0, 12, (2, 40)), torch.randint(0, 3, (12,))
    model, loss_fn = Net(), nn.CrossEntropyLoss()
    optimizer, oracle = torch.optim.Adam(model.parameters(), lr=0.01), Oracle(model.named_parameters())
    with watch(model, optimizer, loss_fn=loss_fn) as watched:
        for step in range(1, 4):
            oracle.begin()
            optimizer.zero_grad()
            loss = loss_fn(model(x, edges), y)
            loss.backward()
            optimizer.step()
            oracle.end()
            assert_right(watched, oracle)
            assert loss_shown(watched) == [(step, pytest.approx(loss.item()))]
        layers = {r.layer for r in watched.records() if r.lens == "OutputNorm"}
    assert {"first.lin", "second"} <= layers


@pytest.mark.slow
@OF_LIBRARIES
def test_a_unet_of_diffusers_is_trained_as_it_is_shown():
    from diffusers import DDPMScheduler, UNet2DModel

    torch.manual_seed(0)
    unet = UNet2DModel(
        sample_size=8,
        in_channels=1,
        out_channels=1,
        layers_per_block=1,
        block_out_channels=(8, 8),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "AttnDownBlock2D"),
        up_block_types=("AttnUpBlock2D", "UpBlock2D"),
    )
    scheduler = DDPMScheduler(num_train_timesteps=100)
    optimizer, oracle = torch.optim.AdamW(unet.parameters(), lr=1e-3), Oracle(unet.named_parameters())
    with watch(unet, optimizer) as watched:
        for step in range(1, 4):
            oracle.begin()
            images, times = torch.rand(2, 1, 8, 8), torch.randint(0, 100, (2,))
            noise = torch.randn_like(images)
            loss = nn.functional.mse_loss(unet(scheduler.add_noise(images, noise, times), times).sample, noise)
            watched.push_loss(loss)
            loss.backward()
            optimizer.step()
            oracle.end()
            optimizer.zero_grad()
            assert_right(watched, oracle)
            assert loss_shown(watched) == [(step, pytest.approx(loss.item()))]
