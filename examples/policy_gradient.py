"""Reinforcement learning: a policy learns to balance a pole (REINFORCE), and is watched like any other model.

Playing needs no gradients, so its passes do not count as training; the one pass over all that was played does. The loss
of a policy gradient says little, so the example also logs what matters: how long the pole stays up.

Prints how long the pole stayed up and the verdict, and writes ``policy_gradient.html``.
"""

import torch
from torch import Tensor, nn

import monitorch

UPDATES, POLES, LONGEST, DISCOUNT = 60, 32, 100, 0.97


def pushed(state: Tensor, push: Tensor) -> Tensor:
    """The carts and poles a fiftieth of a second later: place, speed, angle, angular speed ``(pole, 4)``."""
    _, speed, angle, turning = state.T
    force = (10 * (2 * push - 1) + 0.05 * turning.square() * angle.sin()) / 1.1
    turned = (9.8 * angle.sin() - angle.cos() * force) / (0.5 * (4 / 3 - 0.1 * angle.cos().square() / 1.1))
    moved = force - 0.05 * turned * angle.cos() / 1.1
    return state + 0.02 * torch.stack((speed, moved, turning, turned), dim=1)


@torch.no_grad()
def play(policy: nn.Module) -> tuple[Tensor, Tensor, Tensor]:
    """States ``(time, pole, 4)``, pushes, and whether each pole was still up."""
    state, is_up = 0.05 * torch.randn(POLES, 4), torch.ones(POLES, dtype=torch.bool)
    states, pushes, ups = [], [], []
    for _ in range(LONGEST):
        push = torch.distributions.Categorical(logits=policy(state)).sample()
        states.append(state)
        pushes.append(push)
        ups.append(is_up)
        state = pushed(state, push)
        is_up = is_up & (state[:, 2].abs() < 0.21) & (state[:, 0].abs() < 2.4)
    return torch.stack(states), torch.stack(pushes), torch.stack(ups)


def returns(ups: Tensor) -> Tensor:
    """At each time, the discounted time that the pole stays up from then on."""
    found = torch.zeros(ups.shape)
    following = torch.zeros(ups.shape[1])
    for time in reversed(range(len(ups))):
        following = found[time] = ups[time] * (1 + DISCOUNT * following)
    return found


def main() -> tuple[monitorch.Watch, list[float]]:
    """Play and learn in turn, and say how it went; also returns how long poles stayed up in each round."""
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
    optimizer, times = torch.optim.Adam(policy.parameters(), lr=1e-2), []

    with monitorch.watch(policy, optimizer, run="policy_gradient") as watched:
        for _ in range(UPDATES):
            states, pushes, ups = play(policy)
            values = returns(ups)
            advantage = (values - values[ups].mean()) / (values[ups].std() + 1e-6)

            chosen = torch.distributions.Categorical(logits=policy(states[ups])).log_prob(pushes[ups])
            loss = -(chosen * advantage[ups]).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            times.append(ups.sum(0).float().mean().item())
            watched.push_loss(loss)  # no module computes it
            watched.log(time_up=times[-1])

    print(f"steps that the pole stays up: {times[0]:.0f} at first, {times[-1]:.0f} at the end, at most {LONGEST}")
    print(watched)
    print("report:", watched.report("policy_gradient.html"))
    return watched, times


if __name__ == "__main__":
    main()
