"""A clock and a device whose time passes only when a test says so."""

from monitorch.inspector.step_clock import Phase


class Time:
    """A clock that is moved by hand."""

    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


class FakeDevice:
    """CUDA events whose time passes only when the test says so; asking an unfinished one for its time is an error."""

    def __init__(self):
        self.done = 0.0
        self.submitted = 0.0
        self.capturing = False

    def event(self, enable_timing):
        assert enable_timing
        return FakeEvent(self)


class FakeEvent:
    def __init__(self, device):
        self.device = device

    def record(self, stream):
        assert stream == "the current stream"
        self.time = self.device.submitted

    def query(self):
        assert not self.device.capturing, "this would end the capture"
        return self.time <= self.device.done

    def elapsed_time(self, other):
        assert self.query()
        assert other.query(), "this would wait"
        return (other.time - self.time) * 1000


def end_on(device, clock, seconds, phase=Phase.IDLE):
    device.submitted += seconds
    clock.end(phase)
