"""Counts in a report that are larger than the codes in which numbers travel, in a real browser."""

import pytest

from monitorch.dashboard import report_html
from monitorch.store import Writer

pytestmark = pytest.mark.xdist_group("browser")


def test_a_report_sums_counts_however_large_they_are(page, tmp_path):
    with Writer(tmp_path / "run") as writer:
        for step in range(3):
            names = {"layers": ["few", "many"], "statistics": ["N/mean", "N/nonfinite"]}
            writer.put("Norms", step, [[1.0, 2.0], [1, 70_000 * (step > 0)]], **names)
    path = report_html(tmp_path / "run").save(tmp_path / "report.html")
    page.open(f"{path.as_uri()}#lens=Norms&statistic=N%2Fmean&tab=table")
    assert {"3", "140,000"} <= set(page.texts("tbody td"))
