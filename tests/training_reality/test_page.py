"""The page in the documents is what the rows say."""

from tests.training_reality.make_page import PAGE, page


def test_the_page_is_up_to_date():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m tests.training_reality.make_page"
