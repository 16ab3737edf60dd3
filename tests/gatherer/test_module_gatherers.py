"""Routers and BatchNorm layers: which of their passes count, in which ways of training, and what idle steps cost."""

import copy

import numpy as np
import pytest
import torch
from torch import nn
from torch._dynamo.utils import counters
from torch.utils.checkpoint import checkpoint

from monitorch import PyTorchInspector
from monitorch.lens import BatchNormStatistics, Routing

EXPERTS, SIZE, TOKENS, EVERY = 4, 6, 9, 4


class TopRouter(nn.Module):
    """Returns what the routers of most models return."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(EXPERTS, SIZE))

    def forward(self, x):
        logits = nn.functional.linear(x, self.weight)
        weights, indices = logits.softmax(-1).topk(2)
        return logits, weights, indices


class Mixture(nn.Module):
    """A normalised layer and a mixture of linear experts, which may be checkpointed."""

    def __init__(self, reentrant=None):
        super().__init__()
        self.first, self.norm, self.router = nn.Linear(SIZE, SIZE), nn.BatchNorm1d(SIZE), TopRouter()
        self.experts = nn.Parameter(torch.randn(EXPERTS, SIZE, SIZE))
        self.reentrant = reentrant

    def forward(self, x):
        if self.reentrant is None or not torch.is_grad_enabled():
            return self.block(x)
        return checkpoint(self.block, x, use_reentrant=self.reentrant)

    def block(self, x):
        x = self.norm(self.first(x))
        _, weights, indices = self.router(x)
        return x + (weights[..., None] * torch.einsum("tf,tkfg->tkg", x, self.experts[indices])).sum(1)


class Run:
    """Trains, and does what it watches again in float64."""

    def __init__(self, reentrant=None):
        torch.manual_seed(0)
        self.model = self.call = Mixture(reentrant)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.05)
        self.passes, self.observed = 1, []

    def watch(self, **options):
        options = {"optimizer": self.optimizer, "visualizer": "dummy", "on_error": "raise", **options}
        self.inspector = PyTorchInspector([Routing(), BatchNormStatistics()], module=self.model, **options)
        return self

    def step(self, *, is_observed=True):
        for _ in range(self.passes):
            x = torch.randn(TOKENS, SIZE, requires_grad=True)
            if is_observed:
                self.observed.append(expected(self.model, x))
            self.call(x).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def check(self):
        routed, shifts = (lens._preprocessors[0] for lens in self.inspector.lenses)
        counts, entropies, means, ratios = zip(*self.observed, strict=True)
        found = [routed.value["router"]["entropy"], *shifts.value["norm"]]
        assert [one.count for one in found] == [len(self.observed)] * 3
        assert np.array_equal(routed.counts()["router"], np.sum(counts, axis=0))
        wanted = [np.mean(entropies), np.mean(means), np.mean(ratios)]
        assert [one.mean for one in found] == pytest.approx(wanted, rel=1e-4)


@torch.no_grad()
def expected(model, x):
    """Counts, entropy, shift and ratio of one pass, from the model as it is before."""
    state = {name: found.double().numpy() for name, found in (*model.state_dict().items(), ("x", x))}
    hidden = state["x"] @ state["first.weight"].T + state["first.bias"]
    mean, variance = state["norm.running_mean"], state["norm.running_var"]
    if model.reentrant:  # the pass that counts is the second one with this batch
        mean, variance = 0.9 * mean + 0.1 * hidden.mean(0), 0.9 * variance + 0.1 * hidden.var(0, ddof=1)
    ratios = (hidden.var(0, ddof=1) + 1e-5) / (variance + 1e-5)
    shift = np.max(np.abs(hidden.mean(0) - mean) / np.sqrt(variance + 1e-5))
    normed = (hidden - hidden.mean(0)) / np.sqrt(hidden.var(0) + 1e-5) * state["norm.weight"] + state["norm.bias"]
    counts = np.bincount(np.argsort(-(normed @ state["router.weight"].T), axis=1)[:, :2].ravel(), minlength=EXPERTS)
    shares = counts[counts > 0] / counts.sum()
    entropy = -np.sum(shares * np.log(shares)) / np.log(EXPERTS)
    return counts, entropy, shift, ratios[np.argmax(np.abs(np.log(ratios)))]


@pytest.mark.parametrize("reentrant", [None, False, True])
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("every", [1, EVERY])
@pytest.mark.parametrize("with_optimizer", [True, False])
def test_each_training_pass_of_an_observed_step_counts_once(reentrant, passes, every, with_optimizer):
    run = Run(reentrant)
    run.watch(every=every, **({} if with_optimizer else {"optimizer": None}))
    run.passes = passes if with_optimizer else 1
    for step in range(1, 2 * EVERY + 1):
        run.step(is_observed=step % every == 0)
    run.check()


@pytest.mark.parametrize("reentrant", [None, False, True])
def test_weights_statistics_and_random_numbers_are_the_same(reentrant):
    run, other = Run(reentrant).watch(), Run(reentrant)
    ends = []
    for one in (run, other):
        torch.manual_seed(1)
        for _ in range(3):
            one.step()
        ends.append([*one.model.state_dict().values(), torch.get_rng_state()])
    assert all(torch.equal(*pair) for pair in zip(*ends, strict=True))


@pytest.mark.parametrize(("train", "grad"), [(True, False), (False, True), (False, False)])
def test_evaluation_does_not_count(train, grad):
    run = Run().watch()
    run.step()
    run.model.train(train)
    with torch.set_grad_enabled(grad):
        run.model(torch.randn(TOKENS, SIZE))
    run.model.train()
    run.step()
    run.check()


def test_idle_steps_have_no_hook_and_nothing_stays():
    run = Run().watch(every=EVERY)
    taps = run.inspector.state.engine.module_taps
    assert len(taps) == 3
    hooks = []
    for step in range(1, 2 * EVERY + 1):
        run.step(is_observed=step % EVERY == 0)
        norm, router = run.model.norm, run.model.router
        hooks.append(len(norm._forward_pre_hooks) + len(norm._forward_hooks) + len(router._forward_hooks))
    assert hooks == [0, 0, 3, 0] * 2  # put back when the step before has ended
    run.check()
    run.inspector.detach()
    assert taps == []
    assert not any([norm._forward_pre_hooks, norm._forward_hooks, router._forward_hooks])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("fresh_compiler")
@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_compiled_graphs_are_not_broken_and_show_the_same(backend):
    run = Run().watch(every=2)
    run.call = torch.compile(run.model, backend=backend, fullgraph=True)
    for step in range(1, 7):
        run.step(is_observed=step % 2 == 0)
    run.check()
    assert counters["stats"]["unique_graphs"] == 2  # one for observed steps, one for the others
    assert not counters["graph_break"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.usefixtures("fresh_compiler")
def test_compiled_training_is_bit_identical():
    run, other = Run().watch(every=2), Run()
    ends = []
    for one in (run, other):
        torch.manual_seed(1)
        one.call = torch.compile(one.model, backend="aot_eager", fullgraph=True)
        for _ in range(4):
            one.step()
        ends.append(copy.deepcopy(one.model.state_dict()))
    assert all(torch.equal(*pair) for pair in zip(*(end.values() for end in ends), strict=True))
