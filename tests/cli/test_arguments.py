import pytest

from monitorch import cli
from monitorch.cli.arguments import age


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["runs", "--older-than", "soon"], "'soon' is not an age: write a number and one of s, min, h, d, w"),
        (["runs", "--older-than", "7y"], "'7y' is not an age"),
        (["show", "--rank", "-1"], "'-1' is not a whole number of at least 0"),
        (["show", "--rank", "first"], "'first' is not a whole number of at least 0"),
        (["show", "--layers", "["], "'[' is not a regular expression: unterminated character set"),
        (["show", "--layers", "a{99999999999}"], "'a{99999999999}' is not a regular expression: the repetition number"),
        (["show", "--layers", "(" * 999 + ")" * 999], "is not a regular expression: maximum recursion depth exceeded"),
        (["top", "--sort", "mood"], "invalid choice: 'mood'"),
        (["compare", "a"], "the following arguments are required: B"),
        (["compare", "a", "b", "--tolerance", "-1"], "'-1' is not a number of at least 0, such as 1e-4"),
        (["compare", "a", "b", "--tolerance", "nan"], "'nan' is not a number of at least 0"),
        (["compare", "a", "b", "--tolerance", "some"], "'some' is not a number of at least 0"),
        (["export", "a", "-o", "x"], "the following arguments are required: --to"),
        (["export", "a", "--to", "csv"], "the following arguments are required: -o/--out"),
        (["export", "a", "--to", "xls", "-o", "x"], "invalid choice: 'xls'"),
        (["export", "a", "--to", "csv", "-o", "x", "--worst", "-2"], "'-2' is not a whole number of at least 0"),
    ],
)
def test_a_wrong_value_is_refused_with_the_right_ones(capsys, arguments, message):
    with pytest.raises(SystemExit, match="2"):
        cli.main(arguments)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("90min", 5400), ("12h", 43200), ("7d", 604800), ("1.5w", 907200), ("0s", 0)]
)
def test_age(text, seconds):
    assert age(text) == seconds
