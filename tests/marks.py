"""Cases that only ``make test-all`` has time for."""

import pytest


def slow(*values, **options):
    """A case that takes long, or is much like others that do not."""
    return pytest.param(*values, marks=pytest.mark.slow, **options)


def some_fast(cases, fast):
    """All cases; those are slow of which a function says that they are not fast."""
    return [case if fast(*case) else slow(*case) for case in cases]
