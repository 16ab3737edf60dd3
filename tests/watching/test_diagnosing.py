"""What a watch finds in real training: during the run, after it, and in the events and facts of the run."""

from collections import Counter
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import monitorch
from monitorch import lens
from monitorch.diagnosis import Finding, Remedy, RunFacts, Symptom, signals
from monitorch.diagnosis.history import TRAINING, VALIDATION
from monitorch.diagnosis.symptoms import DeadUnits
from monitorch.errors import MonitorchWarning, OptionError
from monitorch.lens.diagnosis_signals import MOST_SPREADS, DiagnosisSignals
from monitorch.preprocessor import GradientGeometry
from monitorch.store import Writer, open_run
from monitorch.watching.diagnosing import SIGNALS


class Divider(nn.Module):
    """Divides by 0 from some call on."""

    def __init__(self, fails_at):
        super().__init__()
        self.calls, self.fails_at = 0, fails_at

    def forward(self, x):
        self.calls += 1
        return x / (x - x) if self.calls == self.fails_at else x


class Training:
    """A classifier with three linear layers that learns in a few dozen steps; faults are what tests do to it."""

    def __init__(self, between=nn.Identity, seed=0):
        torch.manual_seed(seed)
        self.model = nn.Sequential(
            nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 16), between(), nn.ReLU(), nn.Linear(16, 3)
        )
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=0.01)
        self.loss_fn = nn.CrossEntropyLoss()
        self.scale, self.zeroes = 1.0, True

    def watch(self, **options):
        options = {"every": 1, "tick_every": 5, "on_event": lambda event: None, **options}
        if "folder" not in options:
            options.setdefault("visualizer", "dummy")
        return monitorch.watch(self.model, self.optimizer, loss_fn=self.loss_fn, **options)

    def batch(self):
        x = torch.randn(64, 4)
        return self.scale * x, (x[:, 0] > 0).long() + (x[:, 1] > 0).long()

    def train(self, steps):
        for _ in range(steps):
            x, y = self.batch()
            if self.zeroes:
                self.optimizer.zero_grad()
            self.loss_fn(self.model(x), y).backward()
            self.optimizer.step()


@pytest.fixture
def training():
    return Training()


def first(watched):
    """The first cause."""
    return watched.findings[0]


def test_a_healthy_run_has_no_problem(training):
    with training.watch() as watched:
        training.train(60)
        assert monitorch.diagnosis.verdict(watched.findings) == "healthy"
    assert monitorch.diagnosis.verdict(watched.findings) == "healthy"


def test_relus_that_die(training):
    with training.watch() as watched:
        training.train(15)
        nn.init.constant_(training.model[2].bias, -1000.0)
        assert "dead_units:4" not in {one.id for one in watched.findings}
        training.train(20)
        (during,) = [one for one in watched.findings if one.id == "dead_units:4"]
    (after,) = [one for one in watched.findings if one.id == "dead_units:4"]
    assert (during.step, after.step) == (16, 16)
    assert during.detected_at <= 16 + 8
    assert first(watched).layer in ("4", "2")


def test_a_layer_that_no_optimizer_has(training):
    training.optimizer = torch.optim.SGD([*training.model[0].parameters(), *training.model[5].parameters()], lr=0.1)
    with training.watch() as watched:
        training.train(10)
        found = first(watched)
        assert (found.symptom, found.layer) == ("no_update", "2")
        assert found.detected_at <= 5
        assert found.remedy.arguments == {"parameters": ["2.weight", "2.bias"]}
    assert first(watched).id == found.id


class PlainList(nn.Module):
    """Has layers that torch does not know."""

    def __init__(self):
        super().__init__()
        self.stem, self.blocks, self.head = nn.Linear(4, 16), [nn.Linear(16, 16)], nn.Linear(16, 3)

    def forward(self, x):
        return self.head(self.blocks[0](self.stem(x).relu()).relu())


@pytest.mark.parametrize("every", [1, 10, None])
def test_layers_in_a_plain_list(every, training, tmp_path):
    training.model = PlainList()
    training.optimizer = torch.optim.Adam(training.model.parameters(), lr=0.01)
    with training.watch(every=every, folder=tmp_path, run="a") as watched:
        training.train(40)
    found = first(watched)
    assert (found.symptom, found.layer, found.step, found.severity) == ("no_update", None, 1, "warning")
    assert found.explanation.startswith("blocks.0.weight and another get gradients, but nothing trains or saves them")
    assert [one.id for one in monitorch.diagnosis.check(tmp_path / "a")] == [one.id for one in watched.findings]


def test_layers_in_a_plain_list_that_an_optimizer_has(training):
    training.model = PlainList()
    parameters = [*training.model.parameters(), *training.model.blocks[0].parameters()]
    training.optimizer = torch.optim.Adam(parameters, lr=0.01)
    with training.watch() as watched:
        training.train(40)
    assert watched.findings == []


@pytest.mark.parametrize("is_added", [False, True])
def test_a_layer_that_is_thawed_later_and_that_no_optimizer_has(is_added, training):
    training.model[2].requires_grad_(False)
    training.optimizer = torch.optim.SGD([own for own in training.model.parameters() if own.requires_grad], lr=0.1)
    with training.watch() as watched:
        training.train(10)
        assert watched.findings == []
        training.model[2].requires_grad_(True)
        if is_added:
            training.optimizer.add_param_group({"params": list(training.model[2].parameters())})
        training.train(15)
    found = [(one.symptom, one.layer, one.step) for one in watched.findings]
    assert found == ([] if is_added else [("no_update", "2", 11)])


def test_gradients_that_are_never_emptied(training):
    training.zeroes = False
    with training.watch() as watched:
        training.train(15)
        assert first(watched).symptom == "stale_gradient"
    found = first(watched)
    assert (found.symptom, found.layer, found.remedy.action) == ("stale_gradient", None, "zero_grad")
    assert found.detected_at <= 7


def test_a_loss_that_is_a_sum_explodes(training):
    training.loss_fn = nn.CrossEntropyLoss(reduction="sum")
    training.optimizer = torch.optim.SGD(training.model.parameters(), lr=3.0)
    with training.watch(every=10) as watched:  # so that only losses tell
        training.train(20)
    found = first(watched)
    assert found.symptom == "step_too_large"
    assert "The loss is a sum over the batch" in found.remedy.text


def test_a_loss_that_is_made_anew_from_its_number(training):
    with training.watch() as watched:
        for _ in range(10):
            x, y = training.batch()
            loss = training.loss_fn(training.model(x), y)
            torch.tensor(loss.item(), requires_grad=True).backward()
            training.optimizer.step()
    assert "No backward pass has made any." in first(watched).explanation
    assert ".item()" in first(watched).remedy.text


def test_the_size_of_batches_is_right_in_a_long_run(training, monkeypatch):
    monkeypatch.setattr("monitorch.diagnosis.history.MOST_KEPT", 100)
    with training.watch() as watched:
        training.train(200)
    facts = watched._diagnosis.history.facts
    assert (facts.batch, sum(facts.target_counts)) == (64.0, 200 * 64)


def test_a_model_whose_weights_are_all_frozen(training):
    training.model.requires_grad_(False)
    training.model[5].bias.requires_grad_(True)
    with training.watch(on_error="raise") as watched:
        training.train(200)
    assert "requires_grad=False" in first(watched).remedy.text


def test_inputs_that_are_too_large(training):
    training.scale = 300.0
    with training.watch() as watched:
        training.train(5)
        assert "input_scale" in {one.symptom for one in watched.findings}
    found = first(watched)
    assert (found.symptom, found.step, found.detected_at) == ("input_scale", 1, 1)


def test_a_layer_that_divides_by_zero():
    training = Training(between=lambda: Divider(fails_at=12))
    with training.watch() as watched:
        training.train(15)
        found = first(watched)
    assert (found.symptom, found.layer, found.step, found.severity) == ("nonfinite", "3", 12, "error")
    assert first(watched).id == found.id


def test_without_diagnosis_there_is_none_and_nothing_is_measured_for_it(training, tmp_path):
    training.scale = 300.0
    with training.watch(diagnose=False, folder=tmp_path, run="run") as watched:
        training.train(10)
        assert watched.findings == []
    assert watched.findings == []
    assert not any(isinstance(lens, DiagnosisSignals) for lens in watched.inspector.lenses)
    assert watched.inspector.state.diagnosis is None
    with open_run(tmp_path / "run") as run:
        assert "findings" not in run.meta
        assert "diagnosis" not in run.meta
        assert run.samples() == {}


def test_weights_and_random_numbers_are_the_same_with_and_without():
    ends = []
    for diagnose in (True, False):
        training = Training()
        with training.watch(diagnose=diagnose):
            training.train(25)
        state = [tensor.numpy().tobytes() for tensor in training.model.state_dict().values()]
        ends.append((state, torch.get_rng_state().numpy().tobytes()))
    assert ends[0] == ends[1]


@pytest.mark.parametrize(
    "wrong", ["dead_units", ["dead_units"], [DeadUnits], [None], [0.5], 0.5, DeadUnits, DeadUnits()]
)
def test_what_is_no_symptom_is_refused_before_anything_is_made(training, wrong, tmp_path):
    with pytest.raises(OptionError, match=r"DeadUnits\(share=0\.7\)"):
        training.watch(symptoms=wrong, folder=tmp_path, run="run")
    assert not (tmp_path / "run").exists()


def test_thresholds_can_be_changed(training):
    training.scale = 300.0
    with training.watch(symptoms=[monitorch.diagnosis.symptoms.InputScale(size=1000)]) as watched:
        training.train(5)
    assert "input_scale" not in {one.symptom for one in watched.findings}


def test_each_finding_is_one_event_and_all_are_facts_of_the_run(training, tmp_path):
    training.optimizer = torch.optim.SGD([*training.model[0].parameters(), *training.model[5].parameters()], lr=0.1)
    training.scale = 20.0
    with training.watch(folder=tmp_path, run="run") as watched:
        for _ in range(6):
            training.train(5)
            assert watched.findings
    live = watched.findings
    problems = [one.title for one in live if one.severity != "info"]
    assert {"no update", "input scale"} <= set(problems)
    with open_run(tmp_path / "run") as run:
        assert [Finding.from_json(one) for one in run.meta["findings"]] == live
        kinds = Counter(event.kind for event in run.events())
        assert (
            RunFacts.from_json(run.meta["diagnosis"]).parameters.keys()
            == dict(training.model.named_parameters()).keys()
        )
    assert {kind: kinds[kind] for kind in problems} == dict.fromkeys(problems, 1)


def test_a_healthy_run_has_an_empty_list_of_findings(training, tmp_path):
    with training.watch(folder=tmp_path, run="run"):
        training.train(10)
    with open_run(tmp_path / "run") as run:
        assert run.meta["findings"] == []


def test_a_run_without_a_step_is_not_healthy_but_not_diagnosed(training, tmp_path):
    with training.watch(folder=tmp_path, run="run"):
        pass
    with open_run(tmp_path / "run") as run:
        assert "findings" not in run.meta
        assert any("0 steps were observed" in note for note in run.meta["notes"])


@dataclass(frozen=True)
class Failing(Symptom):
    """A symptom with a mistake in it."""

    id: ClassVar[str] = "failing"

    def look(self, run):
        raise KeyError("a mistake")


@dataclass(frozen=True)
class Flapping(Symptom):
    """One that comes and goes."""

    id: ClassVar[str] = "flapping"

    def look(self, run):
        if run.step % 10 == 5:
            yield self.finding(None, run.step, run.step, "warning", "It is there. Now.", Remedy("Wait."))


def test_a_symptom_that_fails_is_told_once_and_stops_nothing(training):
    training.scale = 300.0

    def watch_and_train():
        with training.watch(symptoms=[Failing()]) as watched:
            for _ in range(4):
                training.train(5)
                assert first(watched).symptom == "input_scale"

    with pytest.warns(MonitorchWarning, match="looking for failing failed: KeyError") as told:
        watch_and_train()
    assert len(told) == 1


def test_a_symptom_that_comes_and_goes_is_told_once(training):
    with training.watch(symptoms=[Flapping()]) as watched:
        for _ in range(6):
            training.train(5)
            lasting = {one.symptom for one in watched.findings if one.is_open}
            assert ("flapping" in lasting) == (watched.inspector.state.step % 10 == 5)
    assert [event.kind for event in watched.events()].count("flapping") == 1


@dataclass(frozen=True)
class Worsening(Symptom):
    """One that becomes an error."""

    id: ClassVar[str] = "worsening"

    def look(self, run):
        severity = "info" if run.step < 10 else "error" if 20 <= run.step < 25 else "warning"
        yield self.finding(None, 1, 1, severity, "It is there. Now.", Remedy("Wait."))


def test_one_that_gets_worse_is_told_again(training):
    with training.watch(symptoms=[Worsening()]) as watched:
        for _ in range(6):
            training.train(5)
            assert watched.findings
    told = [(event.severity, event.step, event.text) for event in watched.events() if event.kind == "worsening"]
    assert told == [("warning", 10, "It is there. Now."), ("error", 20, "Now an error. It is there. Now.")]
    assert all(event.numbers["since"] == 1 for event in watched.events() if event.kind == "worsening")


@dataclass(frozen=True)
class Late(Symptom):
    """One that was there for long, and says how many steps it knows."""

    id: ClassVar[str] = "late"

    def look(self, run):
        if run.step >= 10:
            yield self.finding(None, 1, 3, "warning", f"It is there after {run.step} steps.", Remedy("Wait."))


def test_an_event_and_its_text_are_of_one_moment(training):
    with training.watch(symptoms=[Late()]) as watched:
        for _ in range(3):
            training.train(5)
            assert isinstance(watched.findings, list)
    (told,) = [event for event in watched.events() if event.kind == "late"]
    assert told.line == "step 10: late: It is there after 10 steps. (since 1)"


def test_events_come_by_step_and_causes_before_consequences(training):
    nn.init.constant_(training.model[2].bias, -1000.0)
    with training.watch() as watched:
        training.train(60)
        found = [one.title for one in watched.findings if one.severity != "info"]
    events = watched.events()
    assert len(events) > 2
    assert [event.step for event in events] == sorted(event.step for event in events)
    told = [event.kind for event in events if event.step == events[-1].step]
    assert told == [title for title in found if title in told]


def test_what_the_store_did_not_take_comes_again(training, tmp_path, monkeypatch):
    put, refused = Writer.put_samples, []

    def full(self, signal, samples, **names):
        if signal == signals.GRADIENT and len(refused) < 2:
            refused.append(names["names"])
            return False
        return put(self, signal, samples, **names)

    monkeypatch.setattr(Writer, "put_samples", full)
    with training.watch(folder=tmp_path, run="run") as watched:
        training.train(20)
    assert refused[0] == refused[1] != ()
    live = watched._diagnosis.history.table(signals.GRADIENT)
    with open_run(tmp_path / "run") as run:
        ((names, samples),) = run.samples()[signals.GRADIENT]
    assert set(names) == set(live.places)
    assert sorted(set(samples.steps.tolist())) == live.steps.tolist() == list(range(1, 21))


def test_a_run_that_goes_on_without_its_state_did_not_begin_here(training, tmp_path):
    with training.watch(folder=tmp_path, run="run"):
        training.train(20)
    training.scale = 300.0
    with training.watch(folder=tmp_path, run="run", resume=True) as watched:
        training.train(10)
    assert watched._diagnosis.history.facts.since == 20
    assert first(watched).symptom == "input_scale"
    with open_run(tmp_path / "run") as run:
        (stored,) = (one for one in run.meta["findings"] if one["symptom"] == "input_scale")
    assert stored["step"] == 20 + first(watched).step
    assert stored["evidence"][0]["steps"][0] == 21


def test_a_generator_that_steps_rarely_gets_its_gradients():
    torch.manual_seed(0)
    make, judge = (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, size)) for size in (4, 1))
    both = nn.ModuleList([make, judge])
    optimizers = [torch.optim.Adam(part.parameters(), lr=1e-3) for part in both]
    loss_fn = nn.BCEWithLogitsLoss()
    with monitorch.watch(both, optimizers, loss_fn=loss_fn, every=1, tick_every=5, visualizer="dummy") as watched:
        for step in range(60):
            made = make(torch.randn(16, 4))
            optimizers[1].zero_grad()
            loss_fn(
                judge(torch.cat([made.detach(), torch.randn(16, 4) + 1])), torch.arange(32)[:, None] / 16 // 1
            ).backward()
            optimizers[1].step()
            if step % 25 == 24:
                optimizers[0].zero_grad()
                loss_fn(judge(make(torch.randn(16, 4))), torch.ones(16, 1)).backward()
                optimizers[0].step()
            assert "no_gradient" not in {one.symptom for one in watched.findings}


def test_losses_of_every_step_and_of_evaluations_are_kept(training):
    losses, checks = [], []

    def keep(module, _, loss):
        (losses if training.model.training else checks).append(loss.item())

    training.loss_fn.register_forward_hook(keep)
    with training.watch(every=4) as watched:
        for _ in range(3):
            training.model.train()
            training.train(8)
            training.model.eval()
            with torch.no_grad():
                x, y = training.batch()
                training.loss_fn(training.model(x), y)
    history = watched._diagnosis.history
    assert history.loss(TRAINING).steps.tolist() == list(range(1, 25))
    np.testing.assert_allclose(history.loss(TRAINING).values, losses, rtol=1e-6)
    assert history.loss(VALIDATION).steps.tolist() == [8, 16, 24]
    np.testing.assert_allclose(history.loss(VALIDATION).values, checks, rtol=1e-6)
    assert history.table(signals.GRADIENT).steps.tolist() == history.table(signals.OUTPUT).steps.tolist()
    assert set(np.diff(history.table(signals.OUTPUT).steps).tolist()) == {4}


@pytest.mark.parametrize("lenses", ["standard", "all", "by size"])
def test_signals_are_those_of_tensors(lenses, training):
    seen, options = {}, {"normalize_by_size": True, "parameters": "all"}
    if lenses == "by size":
        lenses = ["standard", lens.ParameterGradientGeometry(**options), lens.ParameterNorm(**options)]

    def keep(module, _, output):
        seen.setdefault("output", output.detach().clone())

    training.model[2].register_forward_hook(keep)
    with training.watch(lenses=lenses) as watched:
        before = training.model[2].weight.detach().clone()
        training.train(1)
        gradient = training.model[2].weight.grad.clone()
        training.train(9)
    history = watched._diagnosis.history
    output = seen["output"].double().numpy()
    rms = np.sqrt((output**2).mean(1)).mean()
    spread = output.std(0).mean() / np.sqrt((output**2).mean())
    assert history.table(signals.OUTPUT).column("2")[0] == pytest.approx(rms, rel=1e-5)
    assert history.table(signals.LAYER_BATCH_SPREAD).column("2")[0] == pytest.approx(spread, rel=1e-4)
    assert history.table(signals.GRADIENT).column("2.weight")[0] == pytest.approx(float(gradient.norm()), rel=1e-5)
    alike = history.table(signals.WEIGHT_ALIKE)
    weight = before.double().numpy()
    assert alike.steps.tolist() == [1]
    expected = weight.std(0).mean() / np.sqrt((weight**2).mean())
    assert alike.column("2.weight")[0] == pytest.approx(expected, rel=1e-4)
    first_norm = history.table(signals.WEIGHT)
    assert first_norm.steps[0] == 0
    assert first_norm.column("2.weight")[0] == pytest.approx(float(before.norm()), rel=1e-5)
    assert first_norm.column("2.weight")[-1] == pytest.approx(float(training.model[2].weight.detach().norm()), rel=1e-5)
    for signal in (signals.ZEROS, signals.DEATH, signals.CHANGED, signals.RATE, signals.INPUT_STD, signals.PERPLEXITY):
        assert history.table(signal), signal


@pytest.mark.parametrize("option", [{"record_eval": True}, {"evaluation_from_grad": True}], ids=str)
def test_outputs_are_those_of_training_passes_whatever_lenses_show(option, training):
    seen = []

    def keep(module, _, output):
        if module.training:
            seen.append(float(output.detach().square().mean(1).sqrt().mean()))

    training.model[2].register_forward_hook(keep)
    own = lens.OutputNorm(include=[nn.Linear], normalize_by_size=True, **option)
    with training.watch(lenses=["standard", own]) as watched:
        for _ in range(5):
            training.train(1)
            training.model.eval()
            training.model(10 * training.batch()[0])
            training.model.train()
    assert watched._diagnosis.history.table(signals.OUTPUT).column("2") == pytest.approx(np.array(seen), rel=1e-5)


class Recurrent(nn.Module):
    """Has parameters of other names than ``weight`` and ``bias``."""

    def __init__(self):
        super().__init__()
        self.states, self.head = nn.LSTM(4, 16, batch_first=True), nn.Linear(16, 1)

    def forward(self, x):
        return self.head(self.states(x)[0]).mean(1)


def test_gradients_that_a_lens_of_the_user_does_not_measure_are_not_missing():
    torch.manual_seed(0)
    model, loss_fn = Recurrent(), nn.MSELoss()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    lenses = ["standard", lens.ParameterGradientGeometry()]
    options = {"loss_fn": loss_fn, "lenses": lenses, "every": 1, "visualizer": "dummy"}
    with monitorch.watch(model, optimizer, **options) as watched:
        for _ in range(40):
            x = torch.randn(32, 5, 4)
            optimizer.zero_grad()
            loss_fn(model(x), x.mean((1, 2)).unsqueeze(1)).backward()
            optimizer.step()
    assert "no_gradient" not in {one.symptom for one in watched.findings}


@pytest.mark.parametrize("kind", SIGNALS, ids=lambda kind: kind.__name__)
def test_each_statistic_that_a_diagnosis_takes_exists(kind):
    made = GradientGeometry(correlation=True, normalize=False, inplace=True) if kind is GradientGeometry else kind
    assert set(SIGNALS[kind]) <= set(made.statistics)


UNUSUAL = {
    "uint8": torch.arange(16.0).reshape(4, 4).to(torch.uint8),
    "float8": torch.arange(16.0).reshape(4, 4).to(torch.float8_e4m3fn),
    "no elements": torch.ones(4, 0),
    "no numbers": torch.ones(4, 4, device="meta"),
}


@pytest.mark.parametrize(("kind", "table"), UNUSUAL.items(), ids=UNUSUAL)
def test_unusual_parameters_do_not_hide_the_first_step_of_others(kind, table):
    class Quantised(nn.Module):
        def __init__(self):
            super().__init__()
            self.table = nn.Parameter(table, requires_grad=False)
            self.linear = nn.Linear(4, 2)

        def forward(self, x):
            return self.linear(x)

    model, loss_fn = Quantised(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.linear.parameters(), lr=0.1)
    with monitorch.watch(model, optimizer, loss_fn=loss_fn, visualizer="dummy", tick_every=2) as watched:
        for _ in range(4):
            loss_fn(model(torch.randn(16, 4)), torch.randn(16, 2)).backward()
            optimizer.step()
            optimizer.zero_grad()
    alike = watched._diagnosis.history.table(signals.WEIGHT_ALIKE)
    assert alike.places == (("table", "linear.weight") if kind == "float8" else ("linear.weight",))


@pytest.mark.parametrize("reentrant", [False, True])
def test_layers_inside_checkpoints_are_compared_between_samples(reentrant):
    class Checkpointed(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.inside, self.last = nn.Linear(4, 8), nn.Linear(8, 8), nn.Linear(8, 2)

        def forward(self, x):
            return self.last(checkpoint(self.inside, self.first(x).relu(), use_reentrant=reentrant))

    model, loss_fn = Checkpointed(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with monitorch.watch(model, optimizer, loss_fn=loss_fn, every=1, visualizer="dummy") as watched:
        for _ in range(4):
            loss_fn(model(torch.randn(16, 4)), torch.randn(16, 2)).backward()
            optimizer.step()
            optimizer.zero_grad()
    table = watched._diagnosis.history.table(signals.LAYER_BATCH_SPREAD)
    assert (sorted(table.places), len(table.steps)) == (["first", "inside"], 4)


def test_of_many_layers_some_are_compared_between_samples():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(4, 4) for _ in range(30)])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with monitorch.watch(model, optimizer, loss_fn=nn.MSELoss(), every=1, visualizer="dummy") as watched:
        for _ in range(2):
            model(torch.randn(8, 4)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    places = watched._diagnosis.history.table(signals.LAYER_BATCH_SPREAD).places
    assert len(places) == MOST_SPREADS
    assert (places[0], places[-1]) == ("0", "28")  # the last one makes the output


def test_a_watch_that_goes_on_knows_that_it_has_not_seen_the_start(training):
    with training.watch() as watched:
        training.train(20)
        state = watched.state_dict()
    training.scale = 300.0
    with training.watch() as watched:
        watched.load_state_dict(state)
        training.train(10)
    assert watched._diagnosis.history.facts.since == 20
    found = first(watched)
    assert (found.symptom, found.step) == ("input_scale", 21)


def test_a_watch_without_an_optimizer_finds_what_it_can(training):
    training.scale = 300.0
    with monitorch.watch(
        training.model, loss_fn=training.loss_fn, every=1, tick_every=5, visualizer="dummy"
    ) as watched:
        training.train(10)
    assert "input_scale" in {one.symptom for one in watched.findings}


def test_own_lenses_alone_are_diagnosed_as_far_as_they_go(training):
    lenses = [monitorch.lens.ParameterNorm()]
    with monitorch.watch(training.model, training.optimizer, lenses=lenses, every=1, visualizer="dummy") as watched:
        training.train(10)
        assert watched.findings == []
    assert not any(isinstance(lens, DiagnosisSignals) for lens in watched.inspector.lenses)


@pytest.mark.parametrize("parameters", ["weight", ["weight", "bias"], "all", "bias"], ids=str)
def test_lenses_on_parameters_of_some_names_tell_the_same(parameters):
    training = Training()
    training.optimizer = torch.optim.Adam(training.model.parameters(), lr=1e-7)
    chosen = [
        lens.LossMetrics(loss_fn=training.loss_fn),
        lens.ParameterGradientGeometry(parameters=parameters),
        lens.UpdateRatio(training.optimizer, parameters=parameters),
        lens.ParameterNorm(parameters=parameters),
    ]
    with monitorch.watch(training.model, training.optimizer, lenses=chosen, every=1, visualizer="dummy") as watched:
        training.train(40)
    kinds = {"weight", "bias"} if parameters == "all" else set(np.atleast_1d(parameters).tolist())
    expected = {name for name, _ in training.model.named_parameters() if name.rpartition(".")[2] in kinds}
    for signal in (signals.GRADIENT, signals.UPDATE_RATIO):
        assert set(watched._diagnosis.history.table(signal).places) == expected
    weights = watched._diagnosis.history.table(signals.WEIGHT)
    assert {
        name for name in weights.places if np.isfinite(weights.column(name)).sum() > 1
    } == expected  # not only at first
    assert [one.symptom for one in watched.findings] == ["no_progress"] * ("weight" in kinds)
