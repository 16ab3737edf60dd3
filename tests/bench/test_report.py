"""Tables and verdicts follow from figures."""

import json

import pytest

from bench import report, targets


def run_of(*rows, device="cpu"):
    about = {"date": "today", "machine": "a machine", "versions": {"torch": "2"}, "sections": ["small"], "quick": False}
    return {**about, "device": device, "cases": list(rows), "kernels": []}


def verdicts(*runs):
    return {(on, what): line for on, what, *line in targets.judge(runs)}


def test_text_is_aligned_and_leaves_out_empty_columns(case_row):
    rows = [case_row(), case_row(problem="unavailable: not yet\nmore", correlation="sketch")]
    head, first, second = report.tables(run_of(*rows), report.text)[0].splitlines()
    assert first.index("1.200") == head.index("with ms") + 2
    assert second.endswith("unavailable: not yet")
    assert "+syncs" not in head


def test_cost_of_a_module_is_told_where_all_are_alike(case_row):
    assert report.CASES["us/module"](case_row(model="layers=10", ratio=1.06)) == "10.0"
    assert report.CASES["us/module"](case_row(model="mlp")) == ""


def test_kernels_have_their_own_table():
    run = {**run_of(), "kernels": [{"kernel": "norm", "tensor": "8", "ms": 1.0, "tb_per_s": 4.0, "of_ceiling": 0.9}]}
    (table,) = report.tables(run, report.markdown)
    assert table.splitlines()[-1] == "| norm | 8 | 1.000 | 4.00 | 90% |"


@pytest.mark.parametrize(("ratio", "met"), [(1.35, "yes"), (1.36, "**no**")])
def test_ratio_against_its_target(case_row, ratio, met):
    assert verdicts(run_of(case_row(ratio=ratio)))["CPU, one thread", "mlp eager, ratio"][1:] == [f"{ratio:.4g}", met]


def test_one_step_in_ten_is_judged_by_the_cost_of_every_step(case_row):
    line = verdicts(run_of(case_row(ratio=1.5), case_row(ratio=1.2, every=10)))
    assert line["CPU, one thread", "mlp eager, every 10, ratio"] == ["at most 1.11", "1.2", "**no**"]


def test_what_was_not_measured_is_not_judged(case_row):
    peers = [
        case_row(subject="upstream"),
        case_row(compiled=True),
        case_row(lenses="OutputNorm"),
        case_row(problem="no"),
    ]
    assert {line[1] for line in verdicts(run_of(*peers)).values()} == {"not measured"}
    assert verdicts(run_of(case_row(ratio=1.0, every=10)))["CPU, one thread", "mlp eager, every 10, ratio"][1:] == [
        "1",
        "",
    ]


def test_document_from_files(case_row, tmp_path, monkeypatch, capsys):
    files = []
    for device in ("cpu", "cuda"):
        files.append(tmp_path / f"{device}.json")
        files[-1].write_text(json.dumps(run_of(case_row(model="gpt2", compiled=True), device=device)))
    monkeypatch.setattr("sys.argv", ["report", *map(str, files), "--out", str(tmp_path / "RESULTS.md")])
    report.main()
    text = (tmp_path / "RESULTS.md").read_text()
    assert "| GPU | gpt2 compiled, graph breaks | at most 0 | 0 | yes |" in text
    assert "## cuda: small" in text
    assert "wrote" in capsys.readouterr().out


def test_quick_figures_are_refused(tmp_path, monkeypatch, capsys):
    (tmp_path / "quick.json").write_text(json.dumps({**run_of(), "quick": True}))
    monkeypatch.setattr("sys.argv", ["report", str(tmp_path / "quick.json")])
    with pytest.raises(SystemExit):
        report.main()
    assert "say nothing about costs" in capsys.readouterr().err


@pytest.mark.parametrize(("milliseconds", "met"), [(1.9, "yes"), (2.1, "**no**")])
def test_ticks_have_their_own_table_and_targets(milliseconds, met):
    row = {"series": 5022, "layers": 76, "parameters": True, "thread_ms": milliseconds, "cpu_ms": 9.0, "calls": 5288}
    run = {**run_of(), "ticks": [row]}
    (table,) = report.tables(run, report.markdown)
    assert table.splitlines()[-1] == f"| 5022 | 76 | read at the tick | {milliseconds:.2f} | 9.0 | 5288 |"
    thread, total = targets.judge_ticks([run])
    assert thread[1:] == [
        "a tick of 5,022 series, parameters read, ms of the training thread",
        "at most 2",
        f"{milliseconds:.4g}",
        met,
    ]
    assert total[-1] == "yes"


@pytest.mark.parametrize(("microseconds", "met"), [(10.0, "yes"), (10.1, "**no**")])
def test_idle_steps_are_compared_with_empty_hooks(microseconds, met):
    row = {"layers": 20, "bare_us": 400.0, "empty_us": 3.0, "idle_us": microseconds, "loss_us": 3.0}
    run = {**run_of(), "idle": [row]}
    (table,) = report.tables(run, report.markdown)
    assert table.splitlines()[-1] == f"| 20 | 400 | 3.0 | {microseconds} | 3.0 |"
    step, loss = targets.judge_idle([run])
    assert step[1:3] == ["idle steps of 20 layers, as multiples of four empty hooks", "at most 3.33"]
    assert (step[-1], loss[-2:]) == (met, ["1", "yes"])


@pytest.mark.parametrize(("ratio", "met"), [(1.04, "yes"), (1.05, "**no**")])
def test_what_a_user_pays_comes_first(case_row, paid, ratio, met):
    run = {**run_of(case_row()), "user": [paid(ratio=ratio, said=0.045)]}
    table, steps = report.tables(run, report.markdown)
    head, _, line = table.splitlines()
    values = dict(zip(head.strip("| ").split(" | "), line.strip("| ").split(" | "), strict=True))
    assert values == {
        "model": "mlp",
        "watch": "default",
        "bare ms": "1.000",
        "ratio": f"{ratio:.3f}",
        "half of all windows": f"{ratio:.3f} to {ratio:.3f}",
        "of CPU time": "1.250",
        "at most": "1.040",
        "met": met,
        "overhead": f"{ratio - 1:.3f}",
        "shown": "0.045",
        "true": "yes",
        "+MiB": "512",
        "first stretch s": "2.25",
        "run of 5 s": "1.400",
        "run of 60 s": "1.080",
    }
    assert steps.startswith("| model | subject |")
    text = report.document([run])
    assert text.index("| on | model | watch |") < text.index("## Targets") < text.index("| model | subject |")
    assert text.count("| mlp | default |") == 1


def test_user_case_without_figures_says_why(paid):
    run = {**run_of(), "user": [paid(setting="every1"), paid(model="cnn", problem="left out: the time was up\nmore")]}
    _, bound, missing = report.tables(run, report.text)[0].splitlines()
    assert "at least 0.100" in bound
    assert missing.endswith("left out: the time was up")
    assert "left out" in report.user_progress(run["user"][1], 2, 2)
    assert report.user_progress(run["user"][0], 1, 2).startswith("[  1/2] mlp, every=1 ")


def test_user_targets(paid):
    gpu = [
        paid(model="gpt2", ratio=1.03, memory_gib=0.2, said=0.03),
        paid(model="gpt2-xl", compiled=True, ratio=1.05, memory_gib=0.4, whole_runs={}, said=0.2),
        paid(model="gpt2", setting="budget", ratio=1.024, whole_runs={}, said=0.02),
        paid(model="cnn", problem="failed"),
    ]
    runs = [{**run_of(device="cuda"), "user": gpu}, {**run_of(), "user": [paid(ratio=1.2)]}, run_of()]
    assert list(targets.judge_user(runs)) == [
        ["GPU", "watch, gpt2, default, ratio", "at most 1.04", "1.03", "yes"],
        ["GPU", "watch, gpt2-xl compiled, default, ratio", "at most 1.04", "1.05", "**no**"],
        ["GPU", "watch, gpt2, default, GiB added", "at most 0.15", "0.2", "**no**"],
        ["GPU", "watch, gpt2-xl compiled, default, GiB added", "at most 0.5", "0.4", "yes"],
        ["GPU", "watch, gpt2, default, run of 5 s, ratio", "at most 1.43", "1.4", "yes"],
        ["GPU", "watch, gpt2, default, run of 60 s, ratio", "at most 1.07", "1.08", "**no**"],
        ["GPU", "watch, gpt2, budget=0.02, ratio", "at most 1.025", "1.024", "yes"],
        ["GPU", "watch, cases whose shown overhead is true", "3", "2", "**no**"],
        ["CPU, one thread", "watch, mlp, default, ratio", "at most 1.04", "1.2", "**no**"],
        ["CPU, one thread", "watch, mlp, default, run of 5 s, ratio", "at most 1.43", "1.4", "yes"],
        ["CPU, one thread", "watch, mlp, default, run of 60 s, ratio", "at most 1.07", "1.08", "**no**"],
        ["CPU, one thread", "watch, cases whose shown overhead is true", "1", "0", "**no**"],
    ]


def test_cases_of_several_runs_stand_together_by_model(paid):
    first = {
        **run_of(device="cuda"),
        "user": [paid(model="mlp", said=0.5), paid(model="gpt2", setting="all", said=0.5)],
    }
    second = {**run_of(device="cuda"), "user": [paid(model="gpt2")]}
    (rows,) = targets.user_rows([first, second]).values()
    assert [(row["model"], row["setting"]) for row in rows] == [
        ("gpt2", "default"),
        ("gpt2", "all"),
        ("mlp", "default"),
    ]
    *_, judged = targets.judge_user([first, second])
    assert judged == ["GPU", "watch, cases whose shown overhead is true", "3", "2", "**no**"]


def test_the_readme_says_what_the_results_say():
    results, readme = (path.read_text(encoding="utf-8") for path in (report.RESULTS, report.README))
    assert report.renew(readme, results) == readme, "run python -m bench.report"
    assert report.summary(results).count("\n") == 8  # two lines of head, and seven models


def test_costs_in_the_readme_are_those_of_watching_without_options():
    head = "| on | model | watch | bare ms | ratio | +MiB | run of 5 s | run of 60 s |\n| --- |"
    rows = [
        "| CPU, one thread | mlp | default | 7.928 | 1.029 | 45 | 1.358 | 1.065 |",
        "| CPU, one thread | mlp | every=10 | 9.241 | 1.109 | 26 |  |  |",
        "| CPU, one thread | gpt2 | default | 900.1 | 1.029 | 45 |  |  |",
        "| GPU | mlp | default | 1.292 | 1.191 | 15 | 1.486 |  |",
        "| GPU | gpt2-xl | default | 214.310 | 1.026 | -23 | 1.298 |  |",
    ]
    table = "\n".join([head, *rows])
    assert report.summary(f"# Costs\n\n## Paid\n\n{table}\n\n## Targets\n\n| on |\n").splitlines()[2:] == [
        "| CPU, one thread | MLP 784-512-512-10 | 7.9 ms | 1.36 | 1.06 | 1.03 | 45 MiB |",
        "| GPU | GPT-2 XL (1.5 B parameters), bfloat16 | 214 ms | 1.30 |  | 1.03 | none |",
    ]
