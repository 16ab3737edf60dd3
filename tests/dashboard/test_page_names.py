"""Names on the page: none is obeyed, and none looks like another; in a real browser."""

from urllib.parse import quote

import pytest

from monitorch.store import Layer, Writer
from tests.marks import slow

pytestmark = pytest.mark.xdist_group("browser")

RUNS = [f"baseline_learning_rate_0.001_batch_size_64_hidden_{letter}_dropout_0.1_warmup_1000" for letter in "AB"]
LAYERS = [f"model.{'deep.' * 8}block_{place}.{'inner.' * 6}projection.weight" for place in range(12)]
ODD = "run\u202egnp.exe"
ODD_LAYERS = ["fc\u202etxt.weight", "\u2066isolated", "escape\x1b[31m", "plain"]
CUT = "return [...document.querySelectorAll(arguments[0])].filter((e) => e.scrollWidth > e.clientWidth).length"


@pytest.fixture(scope="module")
def named(tmp_path_factory, serving):
    """The address of a page over runs with names that are hard to show."""
    folder = tmp_path_factory.mktemp("named")
    logged = "Logged/evil\u202emetric mean"
    for name, layers in ((ODD, ODD_LAYERS), *((name, LAYERS) for name in RUNS)):
        config = {"note\u202e": "evil\u202evalue", "of": name}
        with Writer(folder / name, meta={"started": 1000.0, "config": config}) as writer:
            for step in range(4):
                norms = [[1.0 + place + step for place in range(len(layers))]]
                writer.put("Norms", step, norms, layers=layers, statistics=["Norm/mean"])
                writer.put("run", step, [[1.0 + step]], layers=["run"], statistics=[logged])
            writer.event(2, "odd\u202ekind", "warning", layer=layers[0], body={"reason": "why\u202enot"})
    with serving(folder) as client:
        yield client.url


@pytest.mark.parametrize("tab", ["layer", "alerts", "runs", "table"])
def test_nothing_in_a_name_turns_text_around_or_hides_it(visited, named, tab):
    visited.follow(f"{named}#run={quote(ODD)}&layer={quote(ODD_LAYERS[0])}&compare={RUNS[0]}&tab={tab}")
    said = visited.run(
        "const read = [...document.querySelectorAll('[title], [aria-label]')];"
        "return [document.title, document.body.textContent,"
        " ...read.flatMap((e) => [e.title, e.ariaLabel ?? ''])].join('\\n')"
    )
    assert not {"\u202e", "\u2066", "\x1b"} & set(said)
    assert r"run\u202egnp.exe" in said
    assert visited.run("return document.querySelector('.run-select').value") == ODD
    if tab != "runs":  # which takes the place of the heat map
        assert [name.split("\n")[0] for name in visited.texts(".gutter .name")] == [
            r"fc\u202etxt.weight",
            r"\u2066isolated",
            r"escape\x1b[31m",
            "plain",
        ]


def test_runs_whose_names_differ_in_the_middle_can_be_told_apart(visited, named):
    visited.follow(f"{named}#run={RUNS[0]}&compare={RUNS[1]}&difference=1")
    for names in (visited.texts(".chip bdi"), visited.texts(".legend .muted bdi")):
        assert len(set(names)) == len(names) == 2
    visited.click("[role=tab]", "Runs")
    names = visited.texts(".run-list tbody .name bdi")
    assert len(set(names)) == len(names) == 3
    assert visited.run(CUT, ".run-list tbody .name .link") == 0


@pytest.mark.parametrize("width", [360, slow(1440)])
def test_layers_whose_names_differ_in_the_middle_can_be_told_apart(page, named, window, width):
    window(width)
    for sort in ("model", "worst"):
        page.follow(f"{named}#run={RUNS[0]}&sort={sort}")
        names = page.texts(".gutter .label:not(.is-group) .name")
        assert len(set(names)) == len(names) == 12
        assert page.run(CUT, ".gutter .label:not(.is-group) .name") == 0


def test_a_model_that_is_a_single_layer_is_called_the_model_and_can_be_opened(page, tmp_path, serving):
    with Writer(tmp_path / "linear", meta={"started": 1000.0}) as writer:
        writer.introduce_layers([Layer("", "Linear", 5), Layer("weight"), Layer("bias")])
        for step in range(4):
            writer.put("Outputs", step, [[1.0 + step]], layers=[""], statistics=["Output Norm/mean"])
            norms = [[2.0 + step, 3.0 + step]]
            writer.put("Gradients", step, norms, layers=["weight", "bias"], statistics=["Gradient Norm/mean"])
    with serving(tmp_path) as client:
        page.open(f"{client.url}#run=linear&lens=Outputs&statistic=Output+Norm%2Fmean")
        assert page.texts(".gutter .name") == ["the model"]
        assert page.texts(".worst h2") == ["Largest numbers; nothing stands out"]
        page.click(".gutter .label")
        page.wait(lambda: page.texts(".layer .chart h3"))
        assert sorted(page.texts(".layer .chart h3")) == ["Gradient Norm", "Output Norm"]
        page.click("[role=tab]", "Table")
        assert page.texts(".table-tab tbody th") == ["the model"]
