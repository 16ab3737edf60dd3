"""What a diagnosis says: one problem, where it is, since when, and what to try."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ..errors import OptionError
from ..store.types import INFO, SEVERITIES, layer_text

ACTIONS = {
    "scale_lr": "multiply every learning rate by ``factor``",
    "set_group_lr": "set the learning rate of the group with ``parameters`` to ``lr``",
    "add_to_optimizer": "give ``parameters`` to the optimizer",
    "zero_grad": "call ``optimizer.zero_grad()`` before each backward pass",
    "clip": "clip the norm of all gradients at ``max_norm``",
    "reinit": "initialise ``layers`` again, with ``gain``",
    "replace_activation": "replace the activation in ``layers`` by ``by``",
    "drop_output_activation": "remove the last activation, ``layer``",
    "standardise_input": "give every input feature mean 0 and standard deviation 1",
    "shuffle": "shuffle the training data",
    "scale_weight_decay": "multiply the weight decay by ``factor``",
    "grad_scaler": "scale the loss with a GradScaler, or compute in bfloat16",
}
"""The actions a remedy may name, for programs that apply it; words in double backquotes are arguments."""

MOST_CAUSES = 3
"""How many first causes are shown where findings are one thing among others."""


@dataclass(frozen=True)
class Remedy:
    """What to try: in words and, if it is one of :data:`ACTIONS`, also for programs.

    >>> Remedy("Lower the learning rate.", "scale_lr", {"factor": 0.1}).action
    'scale_lr'
    """

    text: str
    action: str | None = None
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse unknown actions."""
        if self.action is not None and self.action not in ACTIONS:
            raise OptionError.unknown("action", self.action, ACTIONS)


@dataclass(frozen=True)
class Evidence:
    """The numbers that a finding rests on: ``values`` of ``series`` at ``place``, at these ``steps``."""

    series: str
    place: str | None
    steps: tuple[int, ...]
    values: tuple[float, ...]
    threshold: float | None = None


@dataclass(frozen=True)
class Finding:
    """One problem of a run.

    Attributes:
        symptom: what it is, one of the ids that ``monitorch.diagnosis.SYMPTOMS`` lists.
        severity: ``"info"``, ``"warning"`` or ``"error"``, by the harm that it does.
        layer: where it is; None for the whole run.
        step: since when.
        detected_at: the step at which enough was known to say so.
        explanation: two sentences with the numbers in them.
        remedy: what to try.
        evidence: the numbers.
        caused_by: the :attr:`id` of the finding that explains this one; None for a first cause.
        confidence: between 0 and 1.
        resolved_at: the step since which it is over; None while it lasts.

    >>> finding = Finding("dead_units", "error", "fc1", 80, 100, "No unit of fc1 is active.", Remedy("Lower the rate."))
    >>> finding.title, finding.id
    ('dead units', 'dead_units:fc1')
    """

    symptom: str
    severity: str
    layer: str | None
    step: int
    detected_at: int
    explanation: str
    remedy: Remedy
    evidence: tuple[Evidence, ...] = field(default=(), repr=False)
    caused_by: str | None = None
    confidence: float = 1.0
    resolved_at: int | None = None

    def __post_init__(self) -> None:
        """Refuse unknown severities."""
        if self.severity not in SEVERITIES:
            raise OptionError.unknown("severity", self.severity, SEVERITIES)

    @property
    def id(self) -> str:
        """The symptom and the layer; unique within a run."""
        return f"{self.symptom}:{self.layer or ''}"

    @property
    def title(self) -> str:
        """The symptom in words."""
        return self.symptom.replace("_", " ")

    @property
    def is_open(self) -> bool:
        """Whether it lasts."""
        return self.resolved_at is None

    @property
    def heading(self) -> str:
        """How bad it is, what, where and since when.

        >>> Finding("dead_units", "error", "fc1", 80, 100, "", Remedy(""), resolved_at=1200).heading
        'error: dead units in fc1 since step 80 until step 1,200'
        """
        place = "" if self.layer is None else f" in {layer_text(self.layer)}"
        until = "" if self.resolved_at is None else f" until step {self.resolved_at:,}"
        return f"{self.severity}: {self.title}{place} since step {self.step:,}{until}"

    @property
    def line(self) -> str:
        """The finding in one line.

        >>> Finding("no_update", "warning", None, 5, 8, "Nothing changes.", Remedy("")).line
        'warning: no update since step 5: Nothing changes.'
        """
        return f"{self.heading}: {self.explanation}"

    def to_json(self) -> dict[str, Any]:
        """As plain JSON data; a number that is not finite becomes a string."""
        data = asdict(self)
        data["evidence"] = [
            {**asdict(one), "steps": list(one.steps), "values": [_plain(value) for value in one.values]}
            for one in self.evidence
        ]
        return {"id": self.id, "title": self.title, **data}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Finding":
        """The finding that was written with :meth:`to_json`."""
        known = {name: data[name] for name in cls.__dataclass_fields__ if name in data}
        known["remedy"] = Remedy(**known["remedy"])
        known["evidence"] = tuple(
            Evidence(**{**one, "steps": tuple(one["steps"]), "values": tuple(map(float, one["values"]))})
            for one in known.get("evidence", ())
        )
        return cls(**known)


def findings_of(facts: Mapping[str, Any]) -> list[Finding] | None:
    """The findings among the facts of a stored run, ``run.meta``.

    None if it was not diagnosed, or by a release whose findings this one cannot read.

    >>> findings_of({"findings": []}), findings_of({})
    ([], None)
    """
    try:
        return [Finding.from_json(one) for one in facts["findings"]]
    except (AttributeError, KeyError, TypeError, ValueError):
        return None


def moved(finding: Finding, steps: int) -> Finding:
    """The same finding, with its steps shifted by ``steps``.

    >>> moved(Finding("dead_units", "error", "fc1", 80, 100, "", Remedy("")), 1000).step
    1080
    """
    if not steps:
        return finding
    shown = tuple(replace(one, steps=tuple(step + steps for step in one.steps)) for one in finding.evidence)
    end = None if finding.resolved_at is None else finding.resolved_at + steps
    begin, detected = finding.step + steps, finding.detected_at + steps
    return replace(finding, step=begin, detected_at=detected, evidence=shown, resolved_at=end)


def _plain(value: float) -> float | str:
    """JSON has no NaN.

    >>> _plain(0.5), _plain(float("nan"))
    (0.5, 'nan')
    """
    return value if abs(value) < float("inf") else str(value)


def problems(findings: Iterable[Finding]) -> list[Finding]:
    """The causes of the warnings and errors that are open; the causes themselves may be over."""
    known = {one.id: one for one in findings}
    first = {_first_cause(one, known) for one in _lasting(known.values())}
    return [one for one in known.values() if one.id in first]


def _lasting(findings: Iterable[Finding]) -> list[Finding]:
    return [one for one in findings if one.is_open and one.severity != INFO]


def verdict(findings: Iterable[Finding] | None, status: str = "") -> str:
    """The state of the run in a few words; one that crashed is not healthy, even if nothing was found.

    >>> verdict([]), verdict(None), verdict([], "crashed")
    ('healthy', 'not diagnosed', 'no problem found')
    """
    if findings is None:
        return "not diagnosed"
    causes = problems(findings)
    if not causes:
        return "no problem found" if status == "crashed" else "healthy"
    return f"{len(causes)} problem{'s' if len(causes) > 1 else ''} since step {min(one.step for one in causes):,}"


def _first_cause(finding: Finding, known: Mapping[str, Finding]) -> str:
    """The id of the first cause of a finding."""
    path, cause = [finding.id], finding.caused_by
    while cause is not None and cause in known and cause not in path:
        path.append(cause)
        cause = known[cause].caused_by
    return path[-1]
