"""Which names there are, what importing them loads, and which way imports go."""

import ast
import importlib
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

import pytest

import monitorch

SOURCE = Path(monitorch.__file__).parent

PUBLIC = {
    "monitorch": "PyTorchInspector watch preflight MonitorchError MonitorchWarning __version__",
    "monitorch.inspector": "PyTorchInspector InspectorState",
    "monitorch.inspector.inspector_state": "InspectorState",
    "monitorch.numerical": "Accumulator GeometryComputation RunningMeanVar RunningValue extract_point extract_range "
    "parse_range_name reduce_activation_to_activation_rates start_sync_rmv_or_error finish_sync_rmv_or_error",
    "monitorch.preprocessor": "AbstractBackwardPreprocessor AbstractForwardPreprocessor AbstractModulePreprocessor "
    "AbstractPreprocessor AbstractTensorPreprocessor ExplicitCall GradientActivation GradientGeometry LossModule "
    "OutputActivation OutputGradientGeometry OutputNorm ParameterDifferenceGeometry ParameterNorm ParameterCond",
    "monitorch.gatherer": "AbstractGatherer FeedForwardGatherer BackwardGatherer ParameterGradientGatherer "
    "EpochModuleGatherer CallParameterGatherer OptimizerStepParameterGatherer",
    "monitorch.lens": "AbstractLens LossMetrics OutputActivation OutputGradientGeometry OutputNorm "
    "ParameterGradientActivation ParameterGradientGeometry ParameterCond ParameterNorm ParameterUpdateGeometry",
    "monitorch.visualizer": "AbstractVisualizer MatplotlibVisualizer PlayerVisualizer PrintVisualizer "
    "RecorderVisualizer StoreVisualizer TagAttributes TagType TensorBoardVisualizer DummyVisualizer _vizualizer_dict",
    "monitorch.visualizer.trackers": "MlflowTracker TensorBoardTracker Tracker TrackerVisualizer TrackioTracker "
    "WandbTracker",
    "monitorch.store": "Axis Event Frame Layer LayerSeries LensInfo Run RunInfo Statistic Window Writer is_absent "
    "list_runs open_run",
    "monitorch.watching": "Watch watch",
    "monitorch.watching.preflight": "Preflight preflight",
    "monitorch.testing": "assert_trains",
    "monitorch.diagnosis.ranking": "LayerHealth Severity rank severities worst_first",
}

# what measures, from the arithmetic to the one call that uses it all; each may import those before it
MEASURES = ("numerical", "engine", "preprocessor", "gatherer", "lens", "inspector", "watching")
# what shows and stores numbers; works where there is no torch
SHOWS = ("visualizer", "store", "diagnosis", "dashboard", "cli")

# a package never imports those of this list, whatever happens inside a function
NEVER = {package: {*MEASURES[place + 1 :]} for place, package in enumerate(MEASURES)}
NEVER |= {package: {*MEASURES, "observe"} for package in SHOWS}
for package in ("numerical", "engine", "preprocessor", "gatherer"):
    NEVER[package] |= {*SHOWS, "observe"}
NEVER["observe"] = {*MEASURES[2:], *SHOWS}
for package in {*NEVER} - {"cli"}:
    NEVER[package] |= {"integration"}
NEVER["integration"] = set()  # for programs that know us, and may use everything
NEVER["lens"] |= {*SHOWS} - {"visualizer"}
NEVER["store"] |= {"visualizer", "diagnosis", "cli"}
NEVER["diagnosis"] |= {*SHOWS} - {"diagnosis", "store"}

# these train, or write with a tool of torch, when they are asked to
WITH_TORCH = {"demo_data.py", "demo_faults.py", "demo_model.py", "demo_training.py", "tensorboard_visualizer.py"}

# the public names of a lens and of the preprocessor that it shows
SAME_NAME = {"OutputActivation", "OutputGradientGeometry", "OutputNorm", "ParameterCond", "ParameterNorm"}


def run_fresh(code, *arguments):
    """Run a program in a new interpreter; returns what it prints."""
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def tree_of(file):
    return ast.parse(file.read_text(encoding="utf-8"))


def imports(nodes, file):
    """Dotted names that import statements ask for, relative ones made absolute."""
    package = ("monitorch", *file.relative_to(SOURCE).parent.parts)
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            path = ".".join((*base, *filter(None, [node.module])))
            yield from (f"{path}.{alias.name}" for alias in node.names)


@pytest.mark.parametrize("package", PUBLIC)
def test_every_public_name_can_be_imported(package):
    module = importlib.import_module(package)
    for name in PUBLIC[package].split():
        assert getattr(module, name) is not None


@pytest.mark.parametrize("package", [package for package in PUBLIC if package.count(".") < 2])
def test_all_lists_names_that_exist_without_duplicates(package):
    module = importlib.import_module(package)
    assert len(set(module.__all__)) == len(module.__all__)
    assert all(hasattr(module, name) for name in module.__all__)


@pytest.mark.parametrize("package", ["monitorch", "monitorch.visualizer"])
def test_unknown_name_is_an_attribute_error(package):
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nonsense'"):
        _ = importlib.import_module(package).Nonsense


def test_what_shows_numbers_starts_without_torch():
    modules = ", ".join(["monitorch", *(f"monitorch.{package}" for package in SHOWS), "monitorch.dashboard.app"])
    assert (
        run_fresh(f"import sys, {modules}; print(*({{'torch', 'matplotlib', 'tensorboard'}} & set(sys.modules)))") == []
    )


FIRST_IMPORT = """
import sys, time
before, began = set(sys.modules), time.process_time()
import monitorch
took = time.process_time() - began  # other work of the machine does not count
print(took, *sorted({name.split(".")[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))
"""


def test_importing_the_package_loads_nothing_else_and_takes_a_moment():
    ran = [run_fresh(FIRST_IMPORT) for _ in range(5)]
    assert [names for _, *names in ran] == [["monitorch"]] * 5
    assert min(float(took) for took, *_ in ran) < 0.05


PACKAGES = [package for package in NEVER if package not in ("cli", "engine")]  # those two are not for users


FIRST_USE = """
import os, sys
import rich.console, torch._dynamo, uvicorn  # once, and then a process for each package
import monitorch
for package in sys.argv[1:]:
    if os.fork() == 0:
        assert package in dir(monitorch), package
        print(getattr(monitorch, package).__name__, flush=True)
        os._exit(0)
    assert os.wait()[1] == 0, package
"""


def test_packages_are_found_on_first_use():
    packages = [*PACKAGES, "errors", "testing"]
    assert run_fresh(FIRST_USE, *packages) == [f"monitorch.{package}" for package in packages]


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("PyTorchInspector", "inspector"),
        ("watch", "watching"),
        ("Watch", "watching"),
        ("preflight", "watching.preflight"),
    ],
)
def test_name_at_the_top_level_is_the_one_of_its_module(name, module):
    assert getattr(monitorch, name) is getattr(importlib.import_module(f"monitorch.{module}"), name)


WITHOUT_EXTRAS = """
import sys

class Blocker:
    def __init__(self, finder):
        self.finder = finder

    def find_spec(self, name, path=None, target=None):
        absent = name.split(".")[0] in ("matplotlib", "tensorboard")
        return None if absent else self.finder.find_spec(name, path, target)

sys.meta_path[:] = map(Blocker, sys.meta_path)
"""


@pytest.mark.parametrize(
    ("name", "kind"), [("matplotlib", "MatplotlibVisualizer"), ("tensorboard", "TensorBoardVisualizer")]
)
def test_without_an_optional_package_the_error_holds_the_pip_line(name, kind):
    code = f"""{WITHOUT_EXTRAS}
from monitorch import visualizer
visualizer.PrintVisualizer()
assert {name!r} in visualizer._vizualizer_dict and {kind!r} in visualizer.__all__
for ask in (lambda: visualizer.{kind}, lambda: visualizer.create({name!r})):
    try:
        ask()
    except ImportError as error:
        print(str(error).replace(" ", "_"))
"""
    message = f"{kind} needs the package '{name}': pip install 'monitorch[{name}]'"
    assert run_fresh(code) == [message.replace(" ", "_")] * 2


def test_without_optional_packages_training_is_watched_all_the_same():
    code = f"""{WITHOUT_EXTRAS}
from torch import nn
from monitorch.inspector import PyTorchInspector
from monitorch.lens import ParameterNorm
inspector = PyTorchInspector([ParameterNorm()], module=nn.Linear(1, 1), visualizer="dummy")
inspector.tick_epoch()
print(inspector.state.counter)
"""
    assert run_fresh(code) == ["2"]


def files_of(package):
    return sorted((SOURCE / package).rglob("*.py"))


def test_every_package_is_in_the_order_of_imports():
    packages = {file.parent.name for file in SOURCE.glob("*/__init__.py")}
    assert packages == {*MEASURES, *SHOWS, "observe", "integration"} == set(NEVER)


@pytest.mark.parametrize("package", NEVER)
def test_imports_go_one_way(package):
    for file in files_of(package):
        if file.name in WITH_TORCH:
            continue
        found = {name.split(".")[1] for name in imports(ast.walk(tree_of(file)), file) if name.startswith("monitorch.")}
        assert not found & NEVER[package], f"{file.name} imports {found & NEVER[package]}"


def test_what_is_right_of_the_tick_never_imports_torch():
    files = [SOURCE / "errors.py", SOURCE / "statistic.py", *(file for package in SHOWS for file in files_of(package))]
    trees = {file: ast.walk(tree_of(file)) for file in files}
    with_torch = {
        file.name
        for file, nodes in trees.items()
        if any(name.split(".")[0] == "torch" for name in imports(nodes, file))
    }
    assert with_torch == WITH_TORCH


def test_a_public_class_name_stands_in_one_file():
    places = defaultdict(set)
    for file in set(SOURCE.rglob("*.py")) - set(files_of("integration")):  # each framework has its MonitorchCallback
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places[node.name].add(file)
    assert {name for name, files in places.items() if len(files) > 1} == SAME_NAME
