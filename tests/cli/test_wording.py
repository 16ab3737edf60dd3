import pytest

from monitorch.cli.wording import STALE_SECONDS, overhead_text, status_text


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


@pytest.mark.parametrize(
    ("overhead", "at_least", "shown"),
    [
        (0, False, "0.0 % overhead"),
        (0.0312, False, "3.1 % overhead"),
        (3.6, False, "360.0 % overhead"),
        (0.35, True, "at least 35.0 % overhead"),
    ],
)
def test_an_overhead_that_may_be_more_says_so(overhead, at_least, shown):
    assert overhead_text(overhead, at_least=at_least) == shown
