"""What is released: wheel and source archive, installed where nothing else is, and used there as a new user would.

"Nothing else" is a new virtual environment with the wheel, and links to the packages that the wheel requires, and to
those that these require, as the environment of the tests has them. No other package can be imported there.
"""

import hashlib
import importlib.metadata
import os
import re
import subprocess
import sys
import tarfile
import urllib.request
import venv
import zipfile
from email import message_from_string
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import monitorch

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("release")]  # it is built once for all

ROOT = Path(__file__).parent.parent
TRAINING = """
import monitorch, torch
from torch import nn

model, loss_fn = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 1)), nn.MSELoss()
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
with monitorch.watch(model, optimizer, loss_fn=loss_fn, run="first") as watched:
    for _ in range(40):
        inputs = torch.randn(32, 4)
        optimizer.zero_grad()
        loss_fn(model(inputs), inputs.sum(1, keepdim=True)).backward()
        optimizer.step()
print(watched)
"""


def run(*command, folder=ROOT, **environment):
    """Run a program to its end; returns what it prints."""
    known = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or folder == ROOT}
    words = [str(word) for word in command]
    done = subprocess.run(
        words, cwd=folder, env=known | environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def files_of_git(*options):
    if not (ROOT / ".git").exists():
        pytest.skip("the source archive itself has no repository to compare with")
    return {*run("git", "ls-files", *options).splitlines()}


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The source archive, the wheel made from it, and the wheel made from the repository."""
    from_archive, from_here = tmp_path_factory.mktemp("dist"), tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--no-isolation", "--outdir", from_archive, ROOT)
    run(sys.executable, "-m", "build", "--no-isolation", "--wheel", "--outdir", from_here, ROOT)
    (archive,), (wheel,), (other,) = from_archive.glob("*.tar.gz"), from_archive.glob("*.whl"), from_here.glob("*.whl")
    return archive, wheel, other


@pytest.fixture(scope="module")
def wheel(built):
    """The wheel as a user gets it: the contents by path."""
    with zipfile.ZipFile(built[1]) as opened:
        return {name: opened.read(name) for name in opened.namelist()}


@pytest.fixture(scope="module")
def metadata(wheel):
    (text,) = (content for name, content in wheel.items() if name.endswith(".dist-info/METADATA"))
    return message_from_string(text.decode())


def required(metadata):
    """The packages that an installation without extras brings along."""
    found, waiting = {}, metadata.get_all("Requires-Dist")
    while waiting:
        requirement = Requirement(waiting.pop())
        name = canonicalize_name(requirement.name)
        if name not in found and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            found[name] = importlib.metadata.distribution(name)
            waiting += found[name].requires or []
    return found.values()


@pytest.fixture(scope="module")
def environment(built, metadata, tmp_path_factory):
    """The folder of the programs of an environment in which nothing else is installed."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False)
    (packages,) = folder.glob("lib/python*/site-packages")
    for distribution in required(metadata):
        for top in {path.parts[0] for path in distribution.files if path.parts[0] not in ("..", "__pycache__")}:
            (packages / top).symlink_to(distribution.locate_file(top))
    python = folder / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", "--quiet", built[1])
    return folder / "bin"


def test_the_source_archive_builds_the_same_wheel(built):
    digests = [
        {name: hashlib.sha256(opened.read(name)).hexdigest() for name in opened.namelist()}
        for opened in map(zipfile.ZipFile, built[1:])
    ]
    assert digests[0] == digests[1]


def test_the_source_archive_holds_what_the_tests_need_and_no_more(built):
    with tarfile.open(built[0]) as opened:
        names = {name.partition("/")[2] for name in opened.getnames()}
    assert {name for name in files_of_git() - names if not name.startswith(".ci/")} == set()
    assert names - files_of_git("--cached", "--others", "--exclude-standard") == {"PKG-INFO"}


def test_the_wheel_holds_the_page_its_licences_and_the_mark_of_types(wheel):
    package = {name for name in wheel if not name.startswith(f"monitorch-{monitorch.__version__}.dist-info/")}
    known = files_of_git("--cached", "--others", "--exclude-standard", "src")
    assert package == {name.removeprefix("src/") for name in known}
    page = "monitorch/dashboard/static/"
    assert {"monitorch/py.typed", f"{page}index.html", f"{page}main.js", f"{page}style.css"} <= package
    vendored = {name.split("/")[4] for name in package if name.startswith(f"{page}vendor/") and name.count("/") > 4}
    licences = [name for name in wheel if ".dist-info/licenses/" in name]
    for folder in vendored:
        (licence,) = (name for name in licences if name.endswith(f"vendor/{folder}/LICENSE"))
        assert b"Permission is hereby granted" in wheel[licence]
    assert len(licences) == len(vendored) + 1


def test_metadata_say_what_is_needed_and_what_is_tested(metadata):
    assert metadata["Version"] == monitorch.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_payload().startswith("# monitorch")
    claimed = {text.rpartition(" ")[2] for text in metadata.get_all("Classifier") if re.search(r":: 3\.\d+$", text)}
    assert "{}.{}".format(*sys.version_info) in claimed
    assert metadata["Requires-Python"] == ">=3.10"
    links = [line.split(", ") for line in metadata.get_all("Project-URL")]
    assert all(len(label) <= 32 and address.startswith("https://") for label, address in links)  # an index wants that


def test_the_changelog_begins_with_this_version_and_its_links_lead_somewhere():
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    assert re.search(r"^## (.*)$", text, re.MULTILINE)[1] == monitorch.__version__
    assert all((ROOT / target).exists() for target in re.findall(r"\]\(([^)#:]+)\)", text))


def test_nothing_but_what_is_required_can_be_imported_there(environment, metadata):
    program = "import importlib.util as u, sys; print(*[name for name in sys.argv[1:] if u.find_spec(name)])"
    names = ["monitorch", "torch", "matplotlib", "pytest", "lightning", "transformers", "pip"]
    assert run(environment / "python", "-c", program, *names, folder=environment).split() == ["monitorch", "torch"]


def test_the_demo_runs_there(environment, tmp_path):
    assert run(environment / "monitorch", "--version", folder=tmp_path) == f"monitorch {monitorch.__version__}\n"
    printed = run(environment / "monitorch", "demo", "--steps", "3", folder=tmp_path)
    assert "pip install 'monitorch[matplotlib]'" in printed
    assert (tmp_path / "monitorch_demo" / "report.html").stat().st_size > 300_000
    printed = run(environment / "monitorch", "demo", "--fault", "no_update", folder=tmp_path)
    assert "warning: no update in" in printed


def test_a_training_is_watched_reported_and_shown_there(environment, tmp_path):
    printed = run(environment / "python", "-W", "error", "-c", TRAINING, folder=tmp_path)
    assert printed.endswith("\nhealthy\n")
    assert run(environment / "monitorch", "check", "--fail-on", "warning", folder=tmp_path).startswith("healthy\n")
    assert run(environment / "monitorch", "report", folder=tmp_path).startswith("first.html: ")
    page = [environment / "monitorch", "ui", "--port", "0", "--no-browser"]
    with subprocess.Popen(page, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as serving:
        url = next(match[0] for line in serving.stdout if (match := re.search(r"http://\S+", line)))
        with urllib.request.urlopen(url) as answer:
            assert b"monitorch" in answer.read()
        serving.terminate()
