"""A watch in a real notebook: a kernel runs the cells, and what they show is looked at in a real browser."""

import os

import nbformat
import pytest
from nbclient import NotebookClient

pytestmark = pytest.mark.xdist_group("browser")

SETUP = """
import sys
import torch
from torch import nn

import monitorch

model, loss_fn = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1)), nn.MSELoss()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05)


def step():
    inputs = torch.randn(64, 8)
    optimizer.zero_grad()
    loss_fn(model(inputs), inputs.sum(1, keepdim=True)).backward()
    optimizer.step()


watched = monitorch.watch(model, optimizer, loss_fn=loss_fn, run="noted", every=1, tick_every=5)
"""
LIVE = """
from monitorch.dashboard import card as drawing  # counts pictures, to train until there are some

pictures, draw = [], drawing.card
drawing.card = lambda run: pictures.append(run.last_step) or draw(run)
watched.live(every=0.05)
while len(pictures) < 4 or pictures[-1] is None:
    step()
"""
BAR = """
from tqdm import tqdm

with tqdm(range(20), file=sys.stdout) as bar:
    for _ in bar:
        step()
        bar.set_postfix(watched.postfix())
"""
CLOSE = "watched.close()"
SHOW = "watched"


class Recorded(NotebookClient):
    """Runs a notebook, and keeps what was shown on the way."""

    def process_message(self, msg, cell, cell_index):
        if msg["header"]["msg_type"] in ("display_data", "update_display_data"):
            shown = msg["content"]["data"]["text/plain"], msg["content"]["transient"].get("display_id")
            self.shown.append((cell_index, msg["header"]["msg_type"], *shown))
        return super().process_message(msg, cell, cell_index)


@pytest.fixture(scope="module")
def notebook(tmp_path_factory):
    """A notebook after a kernel has run it."""
    folder = tmp_path_factory.mktemp("notebook")
    cells = [nbformat.v4.new_code_cell(source) for source in (SETUP, LIVE, BAR, CLOSE, SHOW)]
    client = Recorded(
        nbformat.v4.new_notebook(cells=cells),
        timeout=300,
        kernel_name="python3",
        resources={"metadata": {"path": folder}},
    )
    client.shown = []
    client.execute(env={**os.environ, "PYTHONWARNINGS": ""})
    client.folder = folder
    return client


def test_the_picture_below_the_cell_is_replaced_while_it_trains(notebook):
    kinds = [kind for cell, kind, *_ in notebook.shown if cell == 1]
    assert kinds[0] == "display_data"
    assert len(kinds) >= 3
    assert set(kinds[1:]) == {"update_display_data"}
    assert len({place for *_, place in notebook.shown}) == 1
    steps = [text.partition("step ")[2].partition("  ")[0] for *_, text, _ in notebook.shown]
    assert len(set(steps)) >= 3
    assert notebook.shown[0][2] == "noted  running · no steps yet  not diagnosed"
    assert notebook.shown[-1][2].startswith("noted  finished · step ")


def test_the_notebook_keeps_the_last_picture_where_the_first_one_was(notebook):
    (output,) = notebook.nb.cells[1].outputs
    assert output["data"]["text/plain"] == notebook.shown[-1][2]
    assert "finished" in output["data"]["text/html"]
    assert [cell.outputs for cell in notebook.nb.cells[3:4]] == [[]]


def test_a_progress_bar_shows_the_numbers(notebook):
    text = "".join(output["text"] for output in notebook.nb.cells[2].outputs)
    assert "verdict=" in text
    assert "loss=" in text


def test_the_watch_in_the_last_line_of_a_cell_shows_the_run(notebook):
    (output,) = notebook.nb.cells[4].outputs
    assert output["data"]["text/plain"].startswith("noted: finished at step ")
    assert output["data"]["text/html"].startswith("<iframe sandbox=")


def test_a_browser_shows_what_the_cells_show(notebook, chromium):
    """The outputs as a page of their own: what a notebook makes of them, without the notebook around."""
    shown = [output["data"]["text/html"] for place in (1, 4) for output in notebook.nb.cells[place].outputs]
    page = "<!doctype html><meta charset='utf-8'><style>html{color-scheme:light dark}</style>" + "<hr>".join(shown)
    file = notebook.folder / "outputs.html"
    file.write_text(page, encoding="utf-8")
    chromium.get_log("browser")
    chromium.get(file.as_uri())
    facts = chromium.execute_script(
        "const box = document.querySelector('.monitorch'), lines = [...box.querySelectorAll('polyline')];"
        "return {text: box.innerText, wide: box.scrollWidth - box.clientWidth,"
        " drawn: lines.map(line => line.getBoundingClientRect().width),"
        " frames: document.querySelectorAll('iframe').length}"
    )
    verdict = notebook.shown[-1][2].rpartition("  ")[2]
    assert " ".join(facts["text"].split()).startswith(f"noted {verdict} finished · step ")
    assert "train_loss" in facts["text"]
    assert "gradient_norm" in facts["text"]
    assert facts["wide"] <= 0
    assert len(facts["drawn"]) >= 2
    assert min(facts["drawn"]) > 200
    assert facts["frames"] == 1
    chromium.switch_to.frame(0)
    try:
        chromium.implicitly_wait(30)
        assert chromium.find_element("css selector", "html[data-drawn] .heat-canvas").is_displayed()
    finally:
        chromium.implicitly_wait(0)
        chromium.switch_to.default_content()
    complaints = [entry["message"] for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"]
    assert complaints == []
