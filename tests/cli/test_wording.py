import pytest

from monitorch.cli.wording import STALE_SECONDS, status_text


@pytest.mark.parametrize(
    ("status", "age", "shown"),
    [
        ("running", 1.0, "running"),
        ("running", STALE_SECONDS + 1, "stale"),
        ("finished", 1e6, "finished"),
        ("crashed", 1e6, "crashed"),
    ],
)
def test_a_silent_run_is_stale(status, age, shown):
    assert status_text(status, age) == shown
