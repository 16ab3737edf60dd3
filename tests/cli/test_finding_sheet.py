import io

import pytest
from rich.console import Console

from monitorch.cli.finding_sheet import other_events, print_findings, problem_lines, short_verdict, trees
from monitorch.diagnosis import Finding, Remedy
from monitorch.store import Event

LONG = "100 % of the 128 units gave 0 for each of the last 256 samples. Before that it was 12 %."


def finding(symptom, severity="error", layer="fc1", step=80, **more):
    return Finding(symptom, severity, layer, step, step + 20, LONG, Remedy(f"Repair {symptom}."), **more)


DEAD = finding("dead_units")
STARVED = finding("no_gradient", layer="fc0", step=1081, caused_by=DEAD.id)
STUCK = finding("no_progress", "warning", None, caused_by=STARVED.id)
SCALE = finding("input_scale", "warning", None, 3)
HARMLESS = finding("oscillation", "info", "head")
HEALED = finding("loss_spike", "warning", None, resolved_at=1090)
ALL = [DEAD, STARVED, STUCK, SCALE, HARMLESS, HEALED]


def console(width):
    return Console(width=width, file=io.StringIO(), color_system=None)


def printed(findings, width=120, everything=True):
    target = console(width)
    print_findings(target, findings, everything=everything)
    return target.file.getvalue()


def names(findings):
    return [[(one.symptom, depth) for one, depth in tree] for tree in trees(findings)]


@pytest.mark.parametrize(
    ("findings", "expected"),
    [
        ([], []),
        ([DEAD], [[("dead_units", 0)]]),
        (
            [SCALE, DEAD, STARVED, STUCK],
            [[("input_scale", 0)], [("dead_units", 0), ("no_gradient", 1), ("no_progress", 2)]],
        ),
        ([STUCK, STARVED, DEAD], [[("dead_units", 0), ("no_gradient", 1), ("no_progress", 2)]]),
        ([STUCK], [[("no_progress", 0)]]),  # its cause is not there
        ([finding("a", caused_by="a:fc1")], [[("a", 0)]]),
        (
            [finding("a", caused_by="b:fc1"), finding("b", caused_by="a:fc1"), SCALE],
            [[("input_scale", 0)], [("a", 0), ("b", 1)]],
        ),
    ],
    ids=len,
)
def test_consequences_follow_their_cause(findings, expected):
    assert names(findings) == expected


def test_a_long_chain_of_causes_is_followed():
    chain = [finding("dead_units", layer="0")]
    chain += [finding("dead_units", layer=str(n), caused_by=f"dead_units:{n - 1}") for n in range(1, 5000)]
    assert [depth for _, depth in trees(chain)[0]] == list(range(5000))


def test_all_is_said_the_verdict_first():
    assert printed(ALL).splitlines() == [
        "2 problems since step 3",
        "",
        "error: dead units in fc1 since step 80",
        f"  {LONG}",
        "  Try: Repair dead_units.",
        "    error: no gradient in fc0 since step 1,081",
        f"      {LONG}",
        "      Try: Repair no_gradient.",
        "        warning: no progress since step 80",
        f"          {LONG}",
        "          Try: Repair no_progress.",
        "",
        "warning: input scale since step 3",
        f"  {LONG}",
        "  Try: Repair input_scale.",
        "",
        "info: oscillation in head since step 80",
        f"  {LONG}",
        "  Try: Repair oscillation.",
        "",
        "warning: loss spike since step 80 until step 1,090",
        f"  {LONG}",  # and nothing is left to try
    ]


@pytest.mark.parametrize("width", [24, 40, 60, 80])
def test_a_narrow_terminal_has_everything_too(width):
    names = finding("dead_units", layer="transformer.blocks.11.attention.projection.activation", caused_by=None)
    deep = [finding("dead_units", layer=str(n), caused_by=f"dead_units:{n - 1}" if n else None) for n in range(9)]
    lines = printed([*ALL, names, *deep], width).splitlines()
    assert max(map(len, lines)) <= width
    whole = "".join("".join(lines).split())
    for one in [*ALL, names, *deep]:
        assert "".join(f"{one.heading}{one.explanation}".split()) in whole


def test_no_finding_is_healthy():
    assert printed([]) == "healthy\n"


@pytest.mark.parametrize(("count", "more"), [(5, None), (6, "    1 more consequence: --all"), (30, "25 more")])
def test_many_consequences_are_cut_short_unless_all_are_wanted(count, more):
    few = [DEAD, *(finding("no_gradient", layer=str(number), caused_by=DEAD.id) for number in range(count)), SCALE]
    text = printed(few, everything=False)
    assert text.count("no gradient in") == 5
    assert more is None or more in text
    assert ("--all" in text) is (more is not None)
    assert "input scale" in text
    assert printed(few).count("no gradient in") == count


@pytest.mark.parametrize("evil", ["fc\x1b[2J", "[red]fc[/red]", "fc\n\n", "\u202efc", "层" * 30])
def test_names_are_shown_and_not_obeyed(evil):
    nasty = Finding("dead_units", "error", evil, 1, 2, f"See {evil}.", Remedy(f"Repair {evil}."))
    text = printed([nasty], 40) + "\n".join(
        line.plain for line in problem_lines(console(40), [nasty], "", 3, wrapped=False)
    )
    assert [character for character in text if not character.isprintable() and character != "\n"] == []
    assert "[red]" not in evil or text.count(evil) == 4


def test_first_causes_in_short():
    assert [line.plain for line in problem_lines(console(50), ALL, "", 3, wrapped=False)] == [
        "2 problems since step 3",
        "error: dead units in fc1 since step 80: 100 % of …",
        "warning: input scale since step 3: 100 % of the 1…",
        "3 more findings: monitorch check",
    ]
    assert [line.plain for line in problem_lines(console(120), ALL, "", 1, wrapped=True)] == [
        "2 problems since step 3",
        "error: dead units in fc1 since step 80",
        f"  {LONG}",
        "  Try: Repair dead_units.",
        "4 more findings: monitorch check",
    ]
    assert [line.plain for line in problem_lines(console(50), [HEALED], "", 3, wrapped=True)] == ["healthy"]


@pytest.mark.parametrize(("status", "shown"), [("crashed", "no problem found"), ("finished", "healthy")])
def test_a_run_that_crashed_is_not_healthy(status, shown):
    (line,) = problem_lines(console(50), [], status, wrapped=False)
    assert (line.plain, short_verdict([], status).plain) == (shown, shown)
    assert ("green" in str(line.style)) == (status == "finished")
    assert short_verdict([ALL[0]], status).plain.startswith(ALL[0].title)


def event(kind, layer):
    return Event(5, kind, "error", layer=layer)


def test_events_that_a_lasting_finding_tells_are_left_out():
    told, healed = event("dead units", "fc1"), event("loss spike", None)
    others = [event("dead units", "fc2"), event("not finite", "fc1"), healed]
    assert other_events([told, *others], ALL) == others
    assert other_events([told, *others], []) == [told, *others]
