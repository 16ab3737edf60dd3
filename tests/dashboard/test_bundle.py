"""The page's files: what is vendored is what its makers published, and a report holds every module as it is."""

import base64
import hashlib
import json
import re

import pytest

from monitorch.dashboard import bundle

STATIC = bundle.STATIC
MODULES = sorted(STATIC.glob("*.js"))


def test_vendored_files_are_those_of_the_manifest():
    manifest = json.loads((STATIC / "vendor/manifest.json").read_text(encoding="utf-8"))
    listed = {name: digest for package in manifest.values() for name, digest in package["files"].items()}
    files = {path for path in (STATIC / "vendor").rglob("*") if path.is_file() and path.name != "manifest.json"}
    assert {str(path.relative_to(STATIC / "vendor")) for path in files} == set(listed)
    for name, digest in listed.items():
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest
    assert all(package["version"] and package["licence"] for package in manifest.values())
    assert any(name.endswith("LICENSE") for name in listed)


@pytest.mark.parametrize("module", MODULES, ids=lambda path: path.stem)
def test_modules_make_no_markup_of_text(module):
    forbidden = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|https?://(?!www\.w3\.org/2000/svg)"
    assert re.findall(forbidden, module.read_text(encoding="utf-8")) == []


def test_an_import_map_holds_every_module_as_it_is():
    imports = json.loads(bundle.embedded_map())["imports"]
    kind = "data:text/javascript;base64,"
    assert {address[: len(kind)] for address in imports.values()} == {kind}
    held = {name: base64.b64decode(address[len(kind) :]) for name, address in imports.items()}
    assert held == {f"page/{path.name}": path.read_bytes() for path in MODULES}


def test_the_server_lets_the_import_map_of_the_page_run_and_no_other_text():
    html = (STATIC / "index.html").read_text(encoding="utf-8")
    inline = re.findall(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", html, re.DOTALL)
    assert inline == [bundle.SERVED_MAP]
    assert json.loads(bundle.SERVED_MAP) == {"imports": {"page/": "./"}}


def test_what_a_report_holds_ends_no_element_early():
    assert "</script" not in (bundle.chart_library() + bundle.embedded_map()).lower()
    assert "</style" not in bundle.sheet().lower()
