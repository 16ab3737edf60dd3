"""A GAN: two networks, two optimizers, one run.

Both networks are watched as one module, so that they stand side by side on the page. ``watch`` gets both optimizers; a
step is a step of the first one, and what the other does before the next pass belongs to it. The losses of a GAN need
not fall: with several optimizers nothing is concluded from them. They are shown as a sum, and each by its name. Steps
are short and many, so every fifth is looked at (``every=5``).

Prints how good the generator is and the verdict, and writes ``gan.html``.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits as cross_entropy

import monitorch

STEPS, BATCH, NOISE, CLUSTERS = 600, 128, 2, 8


def clusters(count: int) -> tuple[Tensor, Tensor]:
    """Points around eight places on a circle, and these places."""
    angles = torch.arange(CLUSTERS) * 2 * math.pi / CLUSTERS
    centres = 2 * torch.stack((angles.cos(), angles.sin()), dim=1)
    return centres[torch.randint(CLUSTERS, (count,))] + 0.2 * torch.randn(count, 2), centres


def main() -> monitorch.Watch:
    """Train both networks in turn, and say how it went."""
    torch.manual_seed(0)
    generator = nn.Sequential(nn.Linear(NOISE, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
    discriminator = nn.Sequential(
        nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
    )
    both = nn.ModuleDict({"generator": generator, "discriminator": discriminator})
    of_discriminator = torch.optim.Adam(discriminator.parameters(), lr=2e-3, betas=(0.5, 0.9))
    of_generator = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.9))
    yes, no = torch.ones(BATCH, 1), torch.zeros(BATCH, 1)

    with monitorch.watch(both, [of_discriminator, of_generator], run="gan", every=5) as watched:
        for _ in range(STEPS):
            real, made = clusters(BATCH)[0], generator(torch.randn(BATCH, NOISE))
            of_discriminator.zero_grad()
            d_loss = cross_entropy(discriminator(real), yes) + cross_entropy(discriminator(made.detach()), no)
            d_loss.backward()
            of_discriminator.step()

            of_generator.zero_grad()
            g_loss = cross_entropy(discriminator(made), yes)
            g_loss.backward()
            of_generator.step()
            watched.push_loss(d_loss + g_loss)
            watched.log(discriminator_loss=d_loss, generator_loss=g_loss)

    with torch.no_grad():
        distance, cluster = torch.cdist(generator(torch.randn(1000, NOISE)), clusters(1)[1]).min(1)
    found = cluster[distance < 0.5].unique()
    print(f"{(distance < 0.5).float().mean():.0%} of the points are in a cluster; {len(found)} of {CLUSTERS} are found")
    print(watched)
    print("report:", watched.report("gan.html"))
    return watched


if __name__ == "__main__":
    main()
