"""The page's files: what is vendored is what its makers published, and all of it fits into one script."""

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
def test_modules_are_short_and_make_no_markup_of_text(module):
    text = module.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 300
    assert max(map(len, text.splitlines())) <= 120
    assert (
        re.findall(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|https?://(?!www\.w3\.org/2000/svg)",
            text,
        )
        == []
    )


def test_one_script_has_every_module_and_no_module_syntax():
    script = bundle.script()
    assert {path.stem for path in MODULES} == set(re.findall(r"^const module_(\w+) =", script, re.MULTILINE))
    assert re.findall(r"^(?:import|export) ", script, re.MULTILINE) == []
    assert "</script" not in script.lower()
    assert "</style" not in bundle.sheet().lower()


def test_a_module_stands_behind_those_it_imports():
    script = bundle.script()
    places = {name: script.index(f"const module_{name} =") for name in re.findall(r"const module_(\w+) =", script)}
    for name, place in places.items():
        end = script.index("\n})();", place)
        needed = re.findall(r"= module_(\w+);", script[place:end])
        assert all(places[other] < place for other in needed), name


def test_modules_that_import_each_other_are_refused(tmp_path, monkeypatch):
    (tmp_path / "main.js").write_text('import { b } from "./other.js";\nexport const a = 1;\n')
    (tmp_path / "other.js").write_text('import { a } from "./main.js";\nexport const b = 1;\n')
    monkeypatch.setattr(bundle, "STATIC", tmp_path)
    with pytest.raises(ValueError, match="modules import each other: main -> other -> main"):
        bundle._add("main", {}, ())
