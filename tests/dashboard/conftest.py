"""Runs to look at, a server, and a browser."""

import contextlib
import http.client
import json
import os
import shutil
import struct
import threading
from types import SimpleNamespace

import numpy as np
import pytest
from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.support.ui import WebDriverWait

from monitorch.dashboard.run_folder import RunFolder
from monitorch.dashboard.serving import listen, make_server
from monitorch.store import Statistic, Writer

LAYERS = ("conv", "block.0.fc", "block.0.norm", "block.1.fc", "head")
STEPS = 24
HOW_TO_GET_A_BROWSER = "the page is tested in Chromium: apt-get install chromium chromium-driver"


def rate(layer, step, shift=0.0):
    """What the sample runs have for a layer at a step; between 0 and 1."""
    return (0.15 * layer + step / 60 + shift) % 1.0


def fill(writer, steps, shift=0.0, layers=LAYERS):
    """Store a statistic from 0 to 1, one that spans decades, and losses."""
    for step in steps:
        moment = {"epoch": step // 6, "time": 1000.0 + step}
        rates = [rate(index, step, shift) for index in range(len(layers))]
        writer.put("Rates", step, [rates], layers=layers, statistics=["Rate/value"], **moment)
        norms = [10.0 ** (index % 5 - 2) * (1 + step / 10) for index in range(len(layers))]
        writer.put("Norms", step, [norms], layers=layers, statistics=["Norm/mean"], **moment)
        loss = [[1 / (1 + step) + shift]]
        writer.put("run", step, loss, layers=["run"], statistics=["Loss/train_loss mean"], **moment)


@pytest.fixture(scope="session")
def sample():
    """The sample run's numbers, for tests that compute what they expect."""
    return SimpleNamespace(layers=LAYERS, steps=STEPS, rate=rate, fill=fill)


@pytest.fixture(scope="session")
def new_run():
    """Begin a run that a test goes on with."""

    def begin(folder, steps=STEPS, shift=0.0, layers=LAYERS, rank=0, **facts):
        writer = Writer(folder, rank=rank, meta={"started": 1000.0, "config": {"lr": 0.1 + shift}, **facts})
        writer.introduce_layers(layers)
        writer.introduce_statistics("Rates", [Statistic("Rate/value", "linear", (0.0, 1.0))])
        fill(writer, range(steps), shift, layers)
        writer.flush()
        return writer

    return begin


@pytest.fixture
def make_run(new_run):
    """A run that is finished."""

    def make(folder, *arguments, **options):
        new_run(folder, *arguments, **options).close()
        return folder

    return make


@pytest.fixture(scope="session")
def serving():
    """A context with a real server over a folder; gives what asks it."""

    @contextlib.contextmanager
    def run(folder, host="127.0.0.1", token=None):
        run_folder = RunFolder(folder)
        server, listening = make_server(run_folder, host, token), listen("127.0.0.1", 0)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
        thread.start()
        try:
            yield Client(listening.getsockname()[1])
        finally:
            server.should_exit = True
            thread.join(timeout=20)
            listening.close()
        assert not thread.is_alive()

    return run


class Client:
    """Asks a server, with headers as they are given and paths as they are written."""

    def __init__(self, port):
        self.port, self.url = port, f"http://127.0.0.1:{port}/"

    def ask(self, path, method="GET", **headers):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        try:
            fields = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.putrequest(method, path, skip_host="Host" in fields)
            for name, value in fields.items():
                connection.putheader(name, value)
            connection.endheaders()
            answer = connection.getresponse()
            return SimpleNamespace(status=answer.status, headers=answer.headers, body=answer.read())
        finally:
            connection.close()

    def json(self, path):
        answer = self.ask(path)
        assert answer.status == 200, answer.body
        return json.loads(answer.body, parse_constant=lambda text: pytest.fail(f"{text} is not JSON"))

    def blocks(self, query):
        answer = self.ask(f"/api/windows?{query}")
        assert answer.status == 200, answer.body
        return unpack(answer.body)


def unpack(body):
    """Read the bytes of windows as their description says: independent of the code that wrote them."""
    (length,) = struct.unpack_from("<I", body)
    blocks = json.loads(body[4 : 4 + length])["blocks"]
    offset = 4 + length
    for block in blocks:
        for axis in ("step", "epoch", "time", "last"):
            block[axis] = np.frombuffer(body, "<f8", block["columns"], offset)
            offset += 8 * block["columns"]
    for block in blocks:
        shape = len(block["layers"]), block["columns"]
        for plane in block["planes"]:
            block[plane] = np.frombuffer(body, "<f4", shape[0] * shape[1], offset).reshape(shape)
            offset += 4 * shape[0] * shape[1]
    assert offset == len(body)
    return blocks


@pytest.fixture(scope="session")
def unpacked():
    return unpack


@pytest.fixture(scope="session")
def chromium():
    """One browser for all tests, which finds no host but this machine."""
    binary, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if not binary or not driver:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(HOW_TO_GET_A_BROWSER)
    options = webdriver.ChromeOptions()
    options.binary_location = binary
    for argument in (
        "--headless=new",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-dev-shm-usage",
        "--window-size=1400,900",
        "--force-device-scale-factor=1",
        "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
    ):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    started = webdriver.Chrome(options, webdriver.ChromeService(driver))
    started.set_script_timeout(20)
    yield started
    started.quit()


@pytest.fixture(scope="session")
def site(tmp_path_factory, new_run, serving, sample):
    """Three finished runs: one as it should be, one that differs, one with numbers that are none."""
    folder = tmp_path_factory.mktemp("runs")
    new_run(folder / "first").close()
    new_run(folder / "second", shift=0.25).close()
    broken = new_run(folder / "broken")
    values = [[0.5, np.nan, np.inf, -np.inf, 0.5]]
    broken.put("Rates", 24, values, layers=sample.layers, statistics=["Rate/value"])
    broken.event(24, "not_finite", "error", layer="block.0.fc", body={"reason": "a NaN", "limit": float("inf")})
    broken.close()
    with serving(folder) as client:
        yield client.url


class Page:
    """The page in a browser, with the words of somebody who looks at it.

    The page says when it has drawn all that belongs to its present state: ``<html data-drawn>`` is how often it has,
    and is missing while something is on its way. Nothing here waits for time.
    """

    def __init__(self, driver):
        self.driver = driver

    def open(self, url):
        """Open an address and wait until all that it asks for is drawn."""
        if self.driver.current_url != "about:blank":
            self.driver.get("about:blank")
        self.driver.get(url)
        self.settle()

    def follow(self, url):
        """The same in the page that is open: as a link in it does, this changes no more than what the address says."""
        page, _, choices = url.partition("#")
        if self.driver.current_url.partition("#")[0] != page:
            self.open(url)
        elif self.driver.current_url != url:
            self.redraw(lambda: self.run("location.hash = arguments[0]", choices))

    def drawn(self):
        """How often the page has drawn everything; None while it has something left to draw."""
        text = self.run("return document.documentElement.dataset.drawn")
        return int(text) if text else None

    def settle(self):
        """Wait until the page has drawn everything."""
        self.until(lambda: self.drawn() is not None)

    def redraw(self, action):
        """Do what makes the page draw something, and wait until it has."""
        before = self.drawn()
        action()
        self.until(lambda: self.drawn() not in (None, before))

    def wait(self, condition):
        """Wait until something holds on a page that has drawn everything."""

        def holds():
            before = self.drawn()
            return before is not None and condition() and self.drawn() == before

        return self.until(holds)

    def until(self, condition):
        """Wait until something holds, whether or not the page has drawn everything."""
        return WebDriverWait(self.driver, 60, poll_frequency=0.02).until(lambda _: condition())

    def keys(self, *keys):
        """Press keys, one after the other."""
        for key in keys:
            self.driver.find_element(By.TAG_NAME, "body").send_keys(key)
            self.settle()

    def mouse(self, actions):
        """Do what a chain of actions says."""
        actions.perform()
        self.settle()

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def drawn_step(self):
        text = self.run("return document.querySelector('.heat-canvas')?.dataset.step")
        return int(text) if text else None

    def texts(self, selector):
        script = (
            "return [...document.querySelectorAll(arguments[0])].filter(e => e.offsetParent).map(e => e.textContent)"
        )
        return self.run(script, selector)

    def click(self, selector, text=None):
        """Click what is visible and, if given, has this text."""
        script = (
            "const all = [...document.querySelectorAll(arguments[0])].filter(e => e.offsetParent);"
            "const found = all.find(e => arguments[1] === null || e.textContent.trim() === arguments[1]);"
            "found?.click(); return Boolean(found)"
        )
        self.until(lambda: self.run(script, selector, text))
        self.settle()

    def rows(self):
        """The names of the layers beside the heat map."""
        return self.run("return [...document.querySelectorAll('.gutter .label:not(.is-group)')].map(e => e.title)")

    def cell(self, row, share):
        """The colour in the middle of a row, so far from left to right."""
        script = (
            "const c = document.querySelector('.heat-canvas'), [row, share] = arguments;"
            "const label = [...document.querySelectorAll('.gutter .label')].find(e => e.title === row);"
            "const y = label.offsetTop + label.offsetHeight / 2, ratio = c.height / c.clientHeight;"
            "const copy = document.createElement('canvas'); copy.width = copy.height = 1;"
            "const context = copy.getContext('2d', { willReadFrequently: true });"
            "context.drawImage(c, -Math.floor(share * c.width), -Math.floor(y * ratio));"
            "return [...context.getImageData(0, 0, 1, 1).data]"
        )
        return self.run(script, row, share)

    def complaints(self):
        """What the browser's console holds."""
        return [entry["message"] for entry in self.driver.get_log("browser") if entry["level"] != "DEBUG"]


@contextlib.contextmanager
def new_tab(driver):
    first = driver.current_window_handle
    driver.switch_to.new_window("tab")  # a history that is full forgets what a script has added
    own = driver.current_window_handle
    driver.switch_to.window(first)
    try:
        yield own
    finally:  # a page that is left open goes on asking its server, and complains in the console of all later tests
        driver.switch_to.window(own)
        driver.close()
        driver.switch_to.window(first)


@contextlib.contextmanager
def looking_at(driver, tab):
    """The page in a tab; a test that leaves complaints in the console, or reaches for another host, fails."""
    driver.get_log("browser")
    first = driver.current_window_handle
    driver.switch_to.window(tab)
    opened = Page(driver)
    yield opened
    complaints = opened.complaints()
    script = "return performance.getEntriesByType('resource').map(e => e.name)"
    foreign = [name for name in opened.run(script) if not name.startswith(("http://127.0.0.1:", "blob:", "data:"))]
    driver.switch_to.window(first)
    assert (complaints, foreign) == ([], [])


@pytest.fixture
def page(chromium):
    """The page in a new tab."""
    with new_tab(chromium) as tab, looking_at(chromium, tab) as opened:
        yield opened


@pytest.fixture(scope="module")
def tab_of_all(chromium):
    with new_tab(chromium) as tab:
        yield tab


@pytest.fixture
def visited(chromium, tab_of_all):
    """The page as other tests of the file have left it, which is quick: for tests of what an address leads to."""
    with looking_at(chromium, tab_of_all) as opened:
        yield opened


@pytest.fixture
def window(page):
    """Give the window a size; it goes with the tab."""

    def resize(width, height=900):
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 800}
        page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)

    return resize
