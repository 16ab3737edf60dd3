"""A spiking layer under observation: membranes, spikes, and the traces that spikes leave.

Leaky integrate-and-fire neurons sum up their input, forget it slowly, and fire at a threshold. Five monitors watch a
layer of them, without changes to the layer. They record its spikes, a trace of the last spike, a trace that adds up all
spikes, how each step changes the membranes, and how long each neuron has been silent.

Prints a table and draws ``leaky_integrate_and_fire.png``.
"""

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn

from monitorch.observe import (
    CumulativeTraceReducer,
    DifferenceMonitor,
    EventReducer,
    Monitor,
    NearestTraceReducer,
    OutputMonitor,
    PassthroughReducer,
)

STEP, DURATION = 1.0, 120.0  # milliseconds
NEURONS = 5


class LeakyIntegrateAndFire(nn.Module):
    """Neurons whose membranes leak with a time constant, fire at a threshold and start again from zero."""

    membrane: Tensor

    def __init__(self, neurons: int, time_constant: float = 20.0, threshold: float = 1.0):
        super().__init__()
        self.leak, self.threshold = STEP / time_constant, threshold
        self.register_buffer("membrane", torch.zeros(neurons))

    def forward(self, current: Tensor) -> Tensor:
        """One step; returns which neurons fire. The membranes are changed in place."""
        self.membrane += self.leak * (current - self.membrane)
        spikes = self.membrane >= self.threshold
        self.membrane[spikes] = 0.0
        return spikes.float()


def watch(layer: nn.Module) -> dict[str, Monitor]:
    """One monitor for each question."""
    time_constant = 15.0
    return {
        "spikes": OutputMonitor(PassthroughReducer(STEP, DURATION), layer),
        "nearest": OutputMonitor(NearestTraceReducer(STEP, time_constant, 1.0, 1.0, duration=DURATION), layer),
        "cumulative": OutputMonitor(CumulativeTraceReducer(STEP, time_constant, 1.0, 1.0, duration=DURATION), layer),
        "change": DifferenceMonitor(PassthroughReducer(STEP, DURATION), "membrane", layer),
        "silence": OutputMonitor(EventReducer(STEP, lambda spikes: spikes > 0), layer),
    }


def history(monitor: Monitor) -> Tensor:
    """All samples ``(time, neuron)``, oldest first."""
    newest_first = monitor.dump()
    assert newest_first is not None
    return newest_first.flip(0)


def draw(monitors: dict[str, Monitor], neuron: int) -> None:
    """Spikes of all neurons, traces and membrane changes of one."""
    found = {name: history(monitor) for name, monitor in monitors.items() if name != "silence"}
    figure, (raster, traces, changes) = plt.subplots(3, 1, sharex=True, figsize=(9, 7), layout="constrained")
    raster.eventplot([found["spikes"][:, n].nonzero().flatten().tolist() for n in range(NEURONS)], colors="black")
    raster.set(ylabel="neuron", title="spikes")
    for name, style in (("cumulative", "tab:orange"), ("nearest", "tab:blue")):
        traces.plot(found[name][:, neuron].tolist(), color=style, label=name)
    traces.set(title=f"traces of neuron {neuron}")
    traces.legend(loc="upper left")
    change = found["change"][:, neuron].tolist()
    changes.bar(range(len(change)), change, color=["tab:green" if c >= 0 else "tab:red" for c in change], width=1.0)
    changes.set(title=f"change of neuron {neuron}'s membrane in each step", xlabel="time (ms)")
    figure.savefig("leaky_integrate_and_fire.png", dpi=120)
    plt.close(figure)


def main() -> dict[str, Monitor]:
    """Drive the layer with noisy currents of different strength, and show what the monitors recorded."""
    torch.manual_seed(0)
    layer = LeakyIntegrateAndFire(NEURONS)
    monitors = watch(layer)
    strength = torch.linspace(0.9, 2.5, NEURONS)
    for _ in range(int(DURATION / STEP)):
        layer(strength + 0.5 * torch.randn(NEURONS))
    spikes, silence = history(monitors["spikes"]).sum(0), monitors["silence"].latest
    last, total = monitors["nearest"].latest, monitors["cumulative"].latest
    assert silence is not None
    assert last is not None
    assert total is not None
    print("neuron  current  spikes  silent for  nearest trace  cumulative trace")
    for n in range(NEURONS):
        print(f"{n:6}  {strength[n]:7.2f}  {spikes[n]:6.0f}  {silence[n]:7.0f} ms  {last[n]:13.3f}  {total[n]:16.3f}")
    draw(monitors, neuron=NEURONS - 2)
    print("figure: leaky_integrate_and_fire.png")
    return monitors


if __name__ == "__main__":
    main()
