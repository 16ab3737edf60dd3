"""Ticks, labels, pushed numbers and lenses of an inspector."""

import math

import pytest
import torch
from torch import nn

from monitorch import PyTorchInspector
from monitorch.errors import OptionError
from monitorch.lens import LossMetrics, OutputNorm, ParameterNorm
from monitorch.visualizer import PrintVisualizer


@pytest.fixture
def inspector(shown, model):
    return PyTorchInspector([ParameterNorm()], module=model, visualizer=shown)


def test_ticks_are_numbered_from_one(inspector, shown):
    inspector.tick_epoch()
    inspector.tick()
    assert shown.labels() == [1, 2]


def test_epoch_labels_this_tick_and_the_next_is_one_more(inspector, shown):
    inspector.tick_epoch()
    inspector.tick_epoch(epoch=10)
    inspector.tick_epoch()
    inspector.tick_epoch(0)
    inspector.tick_epoch()
    assert shown.labels() == [1, 10, 11, 0, 1]
    assert inspector.state.counter == 2


@pytest.mark.parametrize(("items", "labels"), [("ab", [1, 2]), ("a", [1]), ("", [1])])
def test_iter_ticks_after_each_item_and_once_for_none(items, labels, inspector, shown):
    assert list(inspector.iter(items)) == list(items)
    assert shown.labels() == labels


def test_item_that_is_left_by_break_is_not_ticked(inspector, shown):
    for item in inspector.iter("abc"):
        if item == "b":
            break
    assert shown.labels() == [1]


def test_range_takes_what_range_takes(inspector, shown):
    assert list(inspector.range(2, 8, 3)) == [2, 5]
    assert shown.labels() == [1, 2]


def test_tick_comes_between_the_items(inspector, shown):
    seen = [(item, list(shown.labels())) for item in inspector.iter("ab")]
    assert seen == [("a", []), ("b", [1])]


def test_loss_alone_needs_no_model(shown):
    lens = LossMetrics(metrics=["acc"])
    inspector = PyTorchInspector([lens], visualizer=shown)
    for loss in (1.0, torch.tensor(3.0, requires_grad=True)):
        inspector.push_loss(loss, train=True)
    inspector.push_loss(5.0, train=False)
    inspector.push_metric("acc", 0.5)
    inspector.push_metric("undeclared", 9.0)
    inspector.tick_epoch()
    assert shown.calls[0][2] == {"Loss": {"train_loss mean": 2.0, "val_loss mean": 5.0}}
    assert shown.calls[1][2] == {"Metrics": {"acc mean": 0.5}}
    assert (lens.loss(train=True), lens.loss(train=False)) == (2.0, 5.0)


def test_losses_go_by_the_names_of_the_user(shown):
    inspector = PyTorchInspector([LossMetrics()], visualizer=shown, train_loss_str="fit", non_train_loss_str="check")
    inspector.push_loss(1.0, train=True, running=False)
    inspector.push_loss(2.0, train=False)
    inspector.tick_epoch()
    assert shown.calls[0][2] == {"Loss": {"fit mean": 1.0, "check mean": 2.0}}


def test_logged_numbers_are_shown_without_being_declared(inspector, shown):
    inspector.log(lr=0.1, samples=torch.tensor(8))
    inspector.log(lr=0.3)
    inspector.tick_epoch()
    inspector.log(other=1.0)
    inspector.tick_epoch()
    assert shown.line("Logged", "Logged", "lr mean") == {1: pytest.approx(0.2)}
    assert shown.line("Logged", "Logged", "samples mean") == {1: 8.0}
    assert shown.line("Logged", "Logged", "other mean") == {2: 1.0}


@pytest.mark.parametrize("deferred", [False, True])
def test_records_are_those_of_the_last_tick_also_after_detaching(model, train, shown, deferred):
    shown.deferred = deferred
    inspector = PyTorchInspector([OutputNorm(), ParameterNorm()], module=model, visualizer=shown)
    train(model)
    inspector.tick_epoch()
    train(model)
    inspector.log(seen=1.0)
    inspector.tick_epoch(epoch=7)
    inspector.detach()
    records = inspector.records()
    assert {record.epoch for record in records} == {7}
    assert {record.tag for record in records} >= {"Output Norm", "Weight Norm", "Logged"}
    means = [record for record in records if record.statistic == "mean"]
    assert all(record.value == shown.line(record.tag, record.layer)[7] for record in means)
    inspector.attach(model)
    assert inspector.records() == []


@pytest.mark.parametrize(
    ("ticks", "labels"), [([None, 11, None], [11, 12]), ([12, None], []), ([None, None, 4], [2]), ([3, 8], [8])]
)
def test_whether_a_tick_is_shown_depends_on_the_number_it_was_recorded_under(model, shown, ticks, labels):
    inspector = PyTorchInspector([ParameterNorm()], module=model, visualizer=shown, is_active_fn=2)
    for number in ticks:
        inspector.tick_epoch(epoch=number)
    assert list(shown.line("Weight Norm", "0")) == labels


def test_lenses_is_the_very_list_that_was_passed(model, shown):
    lenses = [ParameterNorm()]
    assert PyTorchInspector(lenses, module=model, visualizer=shown).lenses is lenses


def test_lenses_may_come_from_a_generator(model, shown):
    inspector = PyTorchInspector((lens for lens in [ParameterNorm()]), module=model, visualizer=shown)
    inspector.tick_epoch()
    assert shown.layers_of("Weight Norm") == {"0", "2"}


def test_lens_that_is_appended_later_works_from_the_next_tick_on(inspector, shown, model, train):
    train(model)
    inspector.tick_epoch()
    inspector.lenses.append(OutputNorm())
    inspector.tick_epoch()
    assert "Output Norm" in shown.tags
    train(model)
    inspector.tick_epoch()
    assert list(shown.line("Output Norm", "1")) == [3]


@pytest.mark.parametrize(
    ("lenses", "text"),
    [
        ([OutputNorm], r"which is not a lens: write OutputNorm\(\)"),
        (["OutputNorm"], "which is not a lens: see monitorch"),
        ([None], "which is not a lens: see monitorch"),
        ("OutputNorm", r"lenses takes a list of lenses, such as \[ParameterNorm\(\)\], not 'OutputNorm'"),
        (OutputNorm, "lenses takes a list of lenses"),
        (OutputNorm(), "lenses takes a list of lenses"),
        (None, "lenses takes a list of lenses"),
    ],
)
def test_what_is_no_lens_is_refused(lenses, text, model):
    with pytest.raises(OptionError, match=text):
        PyTorchInspector(lenses, module=model, visualizer="dummy")


@pytest.mark.parametrize(
    ("option", "value", "text"),
    [
        ("depth", "1", "depth takes a whole number, not '1'"),
        ("depth", 1.5, "depth takes a whole number, not 1.5"),
        ("master_rank", "0", "master_rank takes a whole number, not '0'"),
        ("module_name_prefix", 3, "module_name_prefix takes a string, not 3"),
        ("visualizer", None, "visualizer must be one of 'print', .* or a visualizer object, not None"),
        ("visualizer", PrintVisualizer, r"visualizer must be one of .*: write PrintVisualizer\(\)"),
    ],
)
def test_options_of_the_wrong_type_are_refused(option, value, text):
    with pytest.raises(OptionError, match=text):
        PyTorchInspector([], **{"visualizer": "dummy", option: value})


@pytest.mark.parametrize("label", ["a", 2.5, [1]])
def test_wrong_label_is_refused_and_does_no_harm(label, shown):
    inspector = PyTorchInspector([LossMetrics()], visualizer=shown)
    with pytest.raises(OptionError, match="epoch takes a whole number"):
        inspector.tick_epoch(label)
    inspector.tick_epoch()
    assert shown.labels() == [1]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"depth": -2}, "depth=-2 must be -1"),
        ({"is_active_fn": 0}, "is_active_fn=0 must be at least 1"),
        ({"on_error": "shout"}, "on_error='shout' is unknown; choose from 'warn', 'raise'"),
        ({"visualizer": "papyrus"}, "choose from 'print', 'dummy', 'matplotlib', 'tensorboard'"),
        ({"module": "model"}, "a model is a torch.nn.Module, not str"),
    ],
)
def test_bad_options_are_refused_with_what_is_possible(options, text, model):
    with pytest.raises(OptionError, match=text):
        PyTorchInspector([ParameterNorm()], **{"module": model, "visualizer": "dummy"} | options)


@pytest.mark.parametrize(
    ("depth", "prefix", "layers"), [(-1, "/", {"0/0", "0/1/0", "1"}), (1, ".", {"1"}), (2, "/", {"0/0", "1"})]
)
def test_depth_and_prefix_reach_the_names_of_layers(depth, prefix, layers, shown):
    model = nn.Sequential(nn.Sequential(nn.Linear(1, 1), nn.Sequential(nn.Linear(1, 1))), nn.Linear(1, 1))
    inspector = PyTorchInspector(
        [ParameterNorm()], module=model, visualizer=shown, depth=depth, module_name_prefix=prefix
    )
    inspector.tick_epoch()
    assert shown.layers_of("Weight Norm") == layers


def test_tied_weights_are_shown_once_and_their_other_names_listed(shown):
    model = nn.ModuleDict({"embed": nn.Embedding(5, 3), "head": nn.Linear(3, 5, bias=False)})
    model["head"].weight = model["embed"].weight
    inspector = PyTorchInspector([ParameterNorm(parameters="weight")], module=model, visualizer=shown)
    inspector.tick_epoch()
    assert shown.layers_of("Weight Norm") == {"embed"}
    assert inspector.aliases == {"embed.weight": ["head.weight"]}
    inspector.detach()
    assert inspector.aliases == {}


def test_hooks_touch_neither_the_random_stream_nor_the_weights(shown, all_lenses):
    def fit(watch):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(4, 1))
        optimizer, loss_fn = torch.optim.Adam(model.parameters()), nn.MSELoss()
        inspector = PyTorchInspector(all_lenses(optimizer, loss_fn), module=model, visualizer=shown) if watch else None
        for _ in range(3):
            optimizer.zero_grad()
            loss_fn(model(torch.randn(4, 3)), torch.randn(4, 1)).backward()
            optimizer.step()
            if inspector is not None:
                inspector.tick()
        return torch.get_rng_state(), *model.parameters()

    for bare, watched in zip(fit(watch=False), fit(watch=True), strict=True):
        assert torch.equal(bare, watched)
    assert shown.labels() == [1, 2, 3]


def test_empty_tick_shows_empty_tags_and_loss_is_nan(model, shown):
    lens = LossMetrics()
    inspector = PyTorchInspector([lens, OutputNorm()], module=model, visualizer=shown)
    inspector.tick_epoch()
    assert [tag for _, tag, _ in shown.calls] == list(shown.tags)
    assert not any(values for *_, values in shown.calls)
    assert math.isnan(lens.loss(train=True))
