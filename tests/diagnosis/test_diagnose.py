"""What becomes of earlier findings."""

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest

from monitorch.diagnosis import Remedy, Symptom, diagnose


@dataclass(frozen=True)
class Odd(Symptom):
    """Whatever it is told to find."""

    id: ClassVar[str] = "odd"
    layer: str | None = "fc1"
    severity: str = "warning"
    is_there: bool = True

    def look(self, run):
        if self.is_there:
            yield self.finding(self.layer, run.step, run.step, self.severity, "It is odd.", Remedy("Look."))


NOTHING = Odd(is_there=False)


@pytest.fixture
def at(story, falling):
    """What is found at some step, by this symptom, after earlier findings."""
    return lambda step, symptom, known=(): diagnose(story().losses(falling(step)).history, [symptom], known)


def test_a_warning_that_is_there_no_more_stays_as_one_that_is_over(at):
    first = at(50, Odd())
    (over,) = gone = at(80, NOTHING, first)
    assert (over.step, over.resolved_at, over.severity, over.explanation) == (50, 80, "info", "It is odd.")
    assert at(100, NOTHING, gone) == gone


def test_it_is_open_again_if_it_comes_again_and_begins_then(at):
    gone = at(80, NOTHING, at(50, Odd()))
    (again,) = at(120, Odd(), gone)
    assert (again.step, again.resolved_at, again.severity) == (120, None, "warning")


def test_one_that_lasts_keeps_its_beginning(at):
    (found,) = at(80, Odd(), at(50, Odd()))
    assert (found.step, found.detected_at) == (50, 50)


def test_one_that_has_moved_to_another_layer_is_the_same(at):
    (found,) = at(80, Odd("fc0"), at(50, Odd()))
    assert (found.layer, found.resolved_at) == ("fc0", None)


def test_an_info_was_told_nobody_and_goes(at):
    assert at(80, NOTHING, at(50, Odd(severity="info"))) == []


def test_what_is_over_explains_nothing(at):
    gone = at(80, NOTHING, [replace(at(50, Odd())[0], caused_by="else:")])
    assert [one.caused_by for one in gone] == [None]


class Failing(Odd):
    """One that has an error."""

    def look(self, run):
        raise KeyError("mine")


def test_a_symptom_that_fails_says_nothing_about_what_it_found_before(story, falling, at):
    told = story().losses(falling(80)).history
    assert diagnose(told, [Failing()], at(50, Odd()), lambda symptom, error: None) == []


def test_others_may_run_before_each_symptom(story, falling):
    rests = []
    diagnose(story().losses(falling(50)).history, [Odd(), NOTHING], rest=lambda: rests.append(1))
    assert len(rests) == 2
