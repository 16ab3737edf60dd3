"""Pictures of the page: a run that goes wrong, and the same beside one that does not, in a real browser."""

from __future__ import annotations

import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from io import StringIO
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any
from urllib.parse import urlencode

import torch
from selenium import webdriver
from selenium.webdriver.support.ui import WebDriverWait
from torch import nn

import monitorch
from monitorch.cli.demo_data import encode, random_windows
from monitorch.cli.demo_model import CharacterTransformer
from monitorch.dashboard.run_folder import RunFolder
from monitorch.dashboard.serving import listen, make_server

FIGURES = Path(__file__).parents[1] / "figures"
STEPS, JUMP, RATE, FACTOR = 240, 144, 1e-3, 40
CONTEXT, BATCH, EVERY, EVALUATE_EVERY, SEED = 64, 16, 8, 24, 0
BASELINE, SICK = "baseline", "rate-jump"
PAGES = {
    "dashboard.png": {"run": SICK},
    "dashboard_compare.png": {
        "run": SICK,
        "compare": BASELINE,
        "difference": 1,
        "layer": "blocks.2.up.weight",
        "findings": "hidden",
    },
}
"""What the page shows in each picture."""


def train(name: str, folder: Path, factor: float) -> None:
    """A small transformer learns letters of Python's help texts; from some step on its learning rate is multiplied."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    corpus = encode(re.sub("[^a-z]+", " ", " ".join(topics.values()).lower()))
    model = CharacterTransformer(len(corpus.vocabulary), CONTEXT, width=128, depth=4)
    optimizer, loss_fn = torch.optim.AdamW(model.parameters(), lr=RATE), nn.CrossEntropyLoss()
    held_out = random_windows(corpus.validation, 2 * BATCH, CONTEXT)
    with redirect_stdout(StringIO()):
        watched = monitorch.watch(
            model, optimizer, loss_fn=loss_fn, every=EVERY, tick_every=EVERY, run=name, folder=folder, capture=False
        )
    with watched:
        for step in range(1, STEPS + 1):
            if step == JUMP:
                optimizer.param_groups[0]["lr"] *= factor
            text, following = random_windows(corpus.training, BATCH, CONTEXT)
            optimizer.zero_grad()
            loss_fn(model(text).flatten(0, 1), following.flatten()).backward()
            optimizer.step()
            if step % EVALUATE_EVERY == 0:
                model.eval()
                with torch.no_grad():
                    loss_fn(model(held_out[0]).flatten(0, 1), held_out[1].flatten())
                model.train()
    torch.set_num_threads(threads)


def make(runs: Path, figures: Path = FIGURES) -> None:
    """Train both runs, unless they are in the folder, and take the pictures."""
    folder = runs / "dashboard"
    for name, factor in {BASELINE: 1.0, SICK: FACTOR}.items():
        if not (folder / name).exists():
            train(name, folder, factor)
    photograph(folder, PAGES, figures)


def photograph(folder: Path, shown: Mapping[str, Mapping[str, Any]], figures: Path) -> None:
    """Pictures of the page, light and dark: of each what its address says."""
    with _server(folder) as address, _browser() as browser:
        for file, state in shown.items():
            for theme, ending in (("light", ""), ("dark", "_dark")):
                browser.get("about:blank")
                browser.get(f"{address}#{urlencode({**state, 'theme': theme})}")
                WebDriverWait(browser, 60).until(_is_drawn)
                path = figures / file
                browser.save_screenshot(str(path.with_stem(path.stem + ending)))


def _is_drawn(browser: webdriver.Chrome) -> bool:
    """The page says so itself."""
    return bool(browser.execute_script("return document.documentElement.dataset.drawn"))


@contextmanager
def _server(folder: Path) -> Iterator[str]:
    server, listening = make_server(RunFolder(folder), "127.0.0.1", None), listen("127.0.0.1", 0)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        thread.join(timeout=20)
        listening.close()


@contextmanager
def _browser() -> Iterator[webdriver.Chrome]:
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not binary or not driver:
        raise FileNotFoundError("pictures of the page are taken in Chromium: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--force-device-scale-factor=1",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ):
        options.add_argument(argument)
    browser = webdriver.Chrome(options, webdriver.ChromeService(driver))
    size = {"width": 1440, "height": 1080, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        yield browser
    finally:
        browser.quit()
