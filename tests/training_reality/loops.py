"""Ways to train. Each takes a ``Training`` and knows nothing of inspectors or oracles."""

from functools import partial

import torch
from torch import nn

from tests.training_reality.models import CLASSES, WIDTH

STEPS = 4
BATCH, SHORT = 8, 3


def batch_loss(number, size=BATCH):
    """The loss of one batch, the same in every precision."""
    stream = torch.Generator().manual_seed(number)
    x, y = torch.randn(size, WIDTH, generator=stream), torch.randn(size, CLASSES, generator=stream)

    def loss_of(model, dtype):
        here = {"device": next(model.parameters()).device, "dtype": dtype}
        return nn.functional.mse_loss(model(x.to(**here)).to(dtype), y.to(**here))

    return loss_of


def plain(training):
    for number in range(STEPS):
        training.zero_grad()
        training.backward(batch_loss(number))
        training.step()
        training.tick()


def dropping_all_gradients(training):
    """Also those of parameters that no optimizer has."""
    for number in range(STEPS):
        training.root.zero_grad()
        training.forget_gradients()
        training.backward(batch_loss(number))
        training.step()
        training.tick()


def accumulating(training):
    for number in range(STEPS):
        training.zero_grad()
        for part in range(3):
            training.backward(batch_loss(3 * number + part))
        training.step()
        training.tick()


def clipping(training, parts=2):
    for number in range(STEPS):
        training.zero_grad()
        for part in range(parts):
            training.backward(batch_loss(parts * number + part))
        training.clip(0.1)
        training.step()
        training.tick()


def overflowing(training):
    """One number of one gradient overflows in the third step; all others stay finite."""
    for number in range(STEPS + 2):
        training.zero_grad()
        training.backward(batch_loss(number))
        if number == 2:
            next(training.root.parameters()).grad.view(-1)[0] = torch.inf
        training.step(overflows=number == 2)
        training.tick()


def short_last_batch(training):
    for number in range(2 * STEPS):
        training.zero_grad()
        training.backward(batch_loss(number, SHORT if number % 3 == 2 else BATCH))
        training.step()
        training.tick()


def unfreezing(training):
    """The first layer trains from the third step on."""
    training.root[0].requires_grad_(False)
    for number in range(STEPS):
        if number == 2:
            training.root[0].requires_grad_(True)
        training.zero_grad()
        training.backward(batch_loss(number))
        training.step()
        training.tick()


def joining(training):
    """The last layer is given to the optimizer after the second step."""
    for number in range(STEPS):
        if number == 2:
            training.optimizers[0].add_param_group({"params": list(training.root[-1].parameters())})
        training.root.zero_grad()
        training.forget_gradients()
        training.backward(batch_loss(number))
        training.step()
        training.tick()


def evaluating(training):
    """After each step the model is evaluated."""
    for number in range(STEPS):
        training.zero_grad()
        training.backward(batch_loss(number))
        training.step()
        training.called.eval()
        with torch.no_grad():
            batch_loss(-1 - number)(training.called, torch.float32)
        training.called.train()
        training.tick()


def stepping_inside_backward(training):
    """Each parameter has an optimizer of its own, which steps as soon as its gradient is there and drops it."""

    def step(index, _):
        training.step(index)
        training.zero_grad(index)

    for index, optimizer in enumerate(training.optimizers):
        (parameter,) = optimizer.param_groups[0]["params"]
        parameter.register_post_accumulate_grad_hook(partial(step, index))
    for number in range(STEPS):
        training.backward(batch_loss(number))
        training.tick()


def penalising(training):
    """The loss holds the gradient of the model's output."""
    for number in range(STEPS):
        x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(number))

        def penalty(model, dtype, x=x):
            inputs = x.to(next(model.parameters()).device, dtype).requires_grad_()
            (slope,) = torch.autograd.grad(model(inputs).sum(), inputs, create_graph=True)
            return (slope.norm(dim=1) - 1).square().mean()

        training.zero_grad()
        training.backward(penalty)
        training.step()
        training.tick()


def adversarial(training):
    """The critic's optimizer comes first; the generator's step runs through the critic as well."""
    for number in range(STEPS):
        stream = torch.Generator().manual_seed(number)
        noise, real = torch.randn(BATCH, WIDTH, generator=stream), torch.randn(BATCH, WIDTH, generator=stream)

        def critic_loss(gan, dtype, noise=noise, real=real):
            device = next(gan.parameters()).device
            made, found = gan.generator(noise.to(device, dtype)).detach(), real.to(device, dtype)
            return gan.critic(made).mean() - gan.critic(found).mean()

        def generator_loss(gan, dtype, noise=noise):
            return -gan.critic(gan.generator(noise.to(next(gan.parameters()).device, dtype))).mean()

        for index, loss_of in enumerate((critic_loss, generator_loss)):
            training.zero_grad(index)
            training.backward(loss_of)
            training.step(index)
        training.tick()


def closures(training):
    for number in range(STEPS):

        def closure(number=number):
            training.zero_grad()
            return training.backward(batch_loss(number))

        training.step(closure=closure)
        training.tick()
