"""Mistakes that people make, each with the symptom that it must be found by, and where."""

from types import SimpleNamespace

import torch
from torch import nn
from torch.nn import functional as F

from .models import SIZE, Attention, Case, Recurrent, Transformer, classes, layers, mlp, regression


def not_in_the_optimizer():
    case = mlp()
    case.optimizer = torch.optim.Adam([*case.model[0].parameters(), *case.model[4].parameters()])
    return case


def optimizer_of_another_model():
    case = mlp()
    case.optimizer = mlp().optimizer
    return case


def rate_of_zero():
    case = mlp()
    case.optimizer.param_groups[0]["lr"] = 0.0
    return case


class PlainList(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.head = nn.Linear(20, 32), nn.Linear(32, 4)
        self.blocks = [nn.Linear(32, 32) for _ in range(2)]

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x.relu())
        return self.head(x.relu())


def blocks_in_a_list():
    x = torch.randn(SIZE, 20)
    return Case(PlainList(), x, classes(x))


class Detached(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.head = nn.Linear(20, 32), nn.Linear(32, 32), nn.Linear(32, 4)

    def forward(self, x):
        return self.head(self.b(self.a(x).relu()).relu().detach())


def detached():
    x = torch.randn(SIZE, 20)
    return Case(Detached(), x, classes(x))


class Wrapped(nn.Module):
    """Makes a new tensor of its output, which has forgotten where it came from."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(20, 4)

    def forward(self, x):
        return self.inner(x).detach().requires_grad_()


def cut_off():
    x = torch.randn(SIZE, 20)
    return Case(Wrapped(), x, classes(x))


def all_frozen():
    x = torch.randn(SIZE, 20)
    return Case(layers(20, 16, 4).requires_grad_(False), x, classes(x), optimizer=None)


def double_softmax():
    x = torch.randn(SIZE, 20)
    return Case(nn.Sequential(layers(20, 32, 4), nn.Softmax(1)), x, classes(x), nn.CrossEntropyLoss())


class FunctionalSoftmax(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(20, 4)

    def forward(self, x):
        return self.body(x).softmax(-1)


def double_softmax_in_functions():
    x = torch.randn(SIZE, 20)
    return Case(FunctionalSoftmax(), x, classes(x), lambda output, target: F.cross_entropy(output, target))


def likelihood_of_probabilities():
    x = torch.randn(SIZE, 20)
    return Case(nn.Sequential(layers(20, 32, 4), nn.Softmax(1)), x, classes(x), nn.NLLLoss())


def likelihood_of_logits():
    x = torch.randn(SIZE, 20)
    return Case(layers(20, 32, 4), x, classes(x), nn.NLLLoss())


def double_sigmoid():
    x = torch.randn(SIZE, 20)
    return Case(nn.Sequential(layers(20, 32, 1), nn.Sigmoid()), x, (x[:, :1] > 0).float(), nn.BCEWithLogitsLoss())


def softmax_of_one_unit():
    x = torch.randn(SIZE, 5)
    return Case(nn.Sequential(layers(5, 60, 50, 1), nn.Softmax(1)), x, (x[:, :1] > 0).float(), nn.BCELoss())


def relu_head():
    case = regression()
    case.model.append(nn.ReLU())
    return case


def shapes_that_differ():
    case = regression()
    case.batch = case.batch[0], case.batch[1][:, 0]
    return case


def sigmoid_before_cross_entropy():
    x = torch.randn(SIZE, 20)
    return Case(nn.Sequential(layers(20, 32, 10), nn.Sigmoid()), x, classes(x, 10), nn.CrossEntropyLoss())


def attention_over_samples():
    case = Case(Attention(), torch.randn(SIZE, 6, 16), None, lr=0.01)
    case.model.inner.batch_first = False
    case.batch = case.batch[0], classes(case.batch[0])
    return case


class Normalised(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = layers(20, 32, 4)

    def forward(self, x):
        return self.inner(x - x.mean(0))


def mean_of_the_batch():
    x = torch.randn(SIZE, 20)
    return Case(Normalised(), x, classes(x))


def large_inputs():
    x = torch.randn(SIZE, 20)
    x[:, :4] = 300 * x[:, :4] + 500
    return Case(layers(20, 32, 4), x, classes(torch.randn(SIZE, 20)))


def features_apart():
    x = torch.randn(SIZE, 20)
    x[:, 0] *= 8
    x[:, 1:] *= 0.01
    return Case(layers(20, 32, 4), x, classes(x))


def constant_weights():
    x = torch.randn(SIZE, 20)
    model = layers(20, 32, 32, 32, 4)
    for place in (2, 4, 6):
        nn.init.constant_(model[place].weight, 0.02)
    return Case(model, x, classes(x))


def weights_of_zero():
    x = torch.randn(SIZE, 20)
    model = layers(20, 32, 32, 4)
    for own in model.parameters():
        nn.init.zeros_(own)
    return Case(model, x, classes(x))


def constant_lstm():
    case = Case(Recurrent(), torch.randn(SIZE, 12, 5), torch.randint(0, 4, (SIZE,)), lr=0.01)
    case.model.lstm.dropout = 0.0
    for own in case.model.parameters():
        nn.init.constant_(own, 0.05)
    return case


def exploding():
    x = torch.randn(SIZE, 64)
    model = layers(*[64] * 9, 4)
    for part in model:
        if isinstance(part, nn.Linear):
            nn.init.kaiming_normal_(part.weight, nonlinearity="relu")
            part.weight.data *= 3
    return Case(model, x, classes(x))


def dead():
    x = torch.randn(300, 20)
    case = Case(layers(20, 64, 64, 4), x, classes(x))
    nn.init.constant_(case.model[2].bias, -6.0)
    return case


def dead_in_a_small_batch():
    x = torch.randn(8, 20)
    case = Case(layers(20, 64, 64, 4), x, classes(x))
    nn.init.constant_(case.model[0].bias, -8.0)
    return case


def saturated():
    x = torch.randn(SIZE, 20)
    case = Case(layers(20, 32, 32, 32, 4, activation=nn.Tanh), x, classes(x))
    case.model[2].weight.data *= 200
    return case


def vanishing():
    x = torch.randn(SIZE, 20)
    return Case(layers(20, *[32] * 8, 4, activation=nn.Sigmoid), x, classes(x))


def large_head():
    x = torch.randn(SIZE, 20)
    case = Case(layers(20, 64, 64, 4), x, classes(x))
    case.model[4].weight.data *= 60
    return case


class Broken(nn.Module):
    """Divides by 0 between two layers."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.last = nn.Linear(20, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = self.second(self.first(x))
        return self.last(h / (h - h))


def division_by_zero():
    x = torch.randn(SIZE, 20)
    return Case(Broken(), x, classes(x))


class Masked(nn.Module):
    """A mask with -Inf in it is fine; the logarithm after the second layer is not."""

    def __init__(self):
        super().__init__()
        self.attention, self.second = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 8)
        self.last = nn.Linear(8, 4)

    def forward(self, x):
        mask = nn.Transformer.generate_square_subsequent_mask(x.shape[1])
        h = self.attention(x, x, x, attn_mask=mask, need_weights=False)[0]
        return self.last(self.second(h).log()).mean(1)


def logarithm_after_a_mask():
    x = torch.randn(SIZE, 5, 8)
    return Case(Masked(), x, classes(x))


class Root(nn.Module):
    """The root of 0 is finite, but its gradient is not."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(20, 16), nn.Linear(16, 4)

    def forward(self, x):
        h = self.first(x)
        return self.last(h + (h - h).sqrt())


def gradient_of_a_root():
    x = torch.randn(SIZE, 20)
    return Case(Root(), x, classes(x))


def nan_in_the_inputs():
    case = mlp()
    case.batch[0][3, 5] = float("nan")
    return case


def nan_in_a_weight():
    case = mlp()
    case.model[2].weight.data[0, 0] = float("nan")
    return case


def rate_too_large():
    x = torch.randn(SIZE, 20)
    return Case(layers(20, 64, 64, 4), x, classes(x), lr=0.5)


def diverging():
    case = regression()
    case.optimizer.param_groups[0]["lr"] = 3.0
    return case


def rate_too_small():
    x = torch.randn(SIZE, 20)
    return Case(layers(20, 64, 64, 4), x, classes(x), lr=1e-6)


def labels_not_used():
    """The loss does not look at what the model says."""
    case = mlp()
    case.loss_fn = lambda output, target: (
        F.cross_entropy(output - output.detach() + output.detach() * 0, target) * 0 + 1
    )
    return case


def large_embeddings():
    ids = torch.randint(0, 50, (8, 13))
    case = Case(Transformer(), ids[:, :-1], ids[:, 1:], optimizer=torch.optim.AdamW, lr=1e-3)
    nn.init.normal_(case.model.words.weight, std=1.0)
    return case


def fault(make, symptom, layer=None, action=None):
    return SimpleNamespace(make=make, symptom=symptom, layer=layer, action=action)


FAULTS = {
    one.make.__name__: one
    for one in (
        fault(not_in_the_optimizer, "no_update", "2", "add_to_optimizer"),
        fault(blocks_in_a_list, "no_update"),
        fault(optimizer_of_another_model, "no_update", None, "add_to_optimizer"),
        fault(rate_of_zero, "no_update", None, "set_group_lr"),
        fault(detached, "no_gradient", "b"),
        fault(cut_off, "no_gradient"),
        fault(all_frozen, "no_gradient"),
        fault(double_softmax, "output_loss_mismatch", "1", "drop_output_activation"),
        fault(double_softmax_in_functions, "output_loss_mismatch", None),
        fault(likelihood_of_probabilities, "output_loss_mismatch", "1"),
        fault(likelihood_of_logits, "output_loss_mismatch"),
        fault(double_sigmoid, "output_loss_mismatch", "1", "drop_output_activation"),
        fault(softmax_of_one_unit, "output_loss_mismatch", "1", "drop_output_activation"),
        fault(relu_head, "output_loss_mismatch", "5", "drop_output_activation"),
        fault(shapes_that_differ, "output_loss_mismatch"),
        fault(sigmoid_before_cross_entropy, "output_loss_mismatch", "1", "drop_output_activation"),
        fault(attention_over_samples, "sample_mixing"),
        fault(mean_of_the_batch, "sample_mixing"),
        fault(large_inputs, "input_scale", None, "standardise_input"),
        fault(features_apart, "input_scale", None, "standardise_input"),
        fault(constant_weights, "symmetric_units", "2", "reinit"),
        fault(weights_of_zero, "symmetric_units", "0", "reinit"),
        fault(constant_lstm, "symmetric_units", "lstm", "reinit"),
        fault(exploding, "exploding_signal", None, "reinit"),
        fault(dead, "dead_units", "3", "reinit"),
        fault(dead_in_a_small_batch, "dead_units", "1", "reinit"),
        fault(saturated, "saturated_activation", "3", "reinit"),
        fault(vanishing, "vanishing_gradient", None, "replace_activation"),
        fault(large_head, "bad_initial_loss", "4", "reinit"),
        fault(large_embeddings, "bad_initial_loss", "head", "reinit"),
        fault(division_by_zero, "nonfinite", "second"),
        fault(logarithm_after_a_mask, "nonfinite", "second"),
        fault(gradient_of_a_root, "nonfinite", "first"),
        fault(nan_in_the_inputs, "nonfinite"),
        fault(nan_in_a_weight, "nonfinite", "2"),
        fault(rate_too_large, "step_too_large", None, "scale_lr"),
        fault(diverging, "step_too_large", None, "scale_lr"),
        fault(rate_too_small, "no_progress", None, "scale_lr"),
        fault(labels_not_used, "no_gradient"),
    )
}
