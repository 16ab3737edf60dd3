"""Attribute: monitors seen through a lens."""

import pickle

import pytest
import torch
from matplotlib.text import Text
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch import nn

from monitorch import MonitorchWarning, PyTorchInspector
from monitorch.lens import Attribute
from monitorch.observe import CAReducer, EMAReducer, PassthroughReducer
from monitorch.visualizer import PlayerVisualizer, PrintVisualizer, RecorderVisualizer, TensorBoardVisualizer


@pytest.fixture
def model():
    return nn.Sequential(nn.BatchNorm1d(2, momentum=0.5), nn.Linear(2, 2), nn.BatchNorm1d(2))


def run(model, inspector, *batches):
    for batch in batches:
        model(torch.tensor(batch))
    inspector.tick_epoch()


ONES, FIVES = [[0.0, 1.0], [2.0, 1.0]], [[4.0, 5.0], [6.0, 5.0]]  # means (1, 1) and (5, 5)


def test_single_number_is_shown_as_it_is_and_a_tensor_by_its_norm(model, watch, shown):
    inspector = watch(model, Attribute(["0.num_batches_tracked", "0.running_mean"]))
    run(model, inspector, ONES, FIVES)
    assert shown.values("Num Batches Tracked") == {"0": {"mean": 1.5}}
    means = [0.5 * 2**0.5, 2.75 * 2**0.5]
    assert shown.values("Running Mean")["0"]["mean"] == pytest.approx(sum(means) / 2)
    assert shown.ranges("Running Mean")["0"]["min", "max"] == pytest.approx(means)


def test_difference_of_a_state_written_in_place(model, watch, shown):
    inspector = watch(model, Attribute("0.running_mean", difference=True))
    run(model, inspector, ONES, FIVES)
    changes = [0.5 * 2**0.5, 2.25 * 2**0.5]
    assert shown.ranges("Running Mean Difference")["0"]["min", "max"] == pytest.approx(changes)


def test_reducer_and_map(model, watch, shown):
    lens = Attribute("0.running_mean", EMAReducer(1.0, 0.5), lambda after, before: after.sum() - before.sum(), True)
    inspector = watch(model, lens)
    run(model, inspector, ONES, FIVES)
    assert shown.ranges("Running Mean Difference")["0"]["min", "max"] == pytest.approx((1.0, 0.5 * 1.0 + 0.5 * 4.5))


def test_attributes_of_several_layers_share_a_tag_in_model_order(model, watch, shown):
    reducer = PassthroughReducer(1.0)
    inspector = watch(model, Attribute(["2.num_batches_tracked", "0.num_batches_tracked"], reducer))
    run(model, inspector, ONES)
    assert list(shown.values("Num Batches Tracked").items()) == [("0", {"mean": 1}), ("2", {"mean": 1})]
    assert reducer.latest is None


def test_attributes_below_a_parameter(model, watch, shown):
    inspector = watch(model, Attribute(["1.weight.grad", "1.bias.grad"]), module_name_prefix="/")
    model(torch.tensor(ONES)).sum().backward()
    run(model, inspector, ONES)
    assert list(shown.values("Grad")) == ["1.weight", "1.bias"]


def test_attribute_of_the_model_itself(watch, shown):
    norm = nn.BatchNorm1d(2)
    inspector = watch(norm, Attribute("num_batches_tracked"))
    run(norm, inspector, ONES)
    assert shown.values("Num Batches Tracked") == {"": {"mean": 1}}


def test_state_of_the_reducer_lives_on_after_a_tick(model, watch, shown):
    inspector = watch(model, Attribute("0.num_batches_tracked", CAReducer(1.0)))
    run(model, inspector, ONES, ONES)
    run(model, inspector, ONES)
    assert shown.values("Num Batches Tracked") == {"0": {"mean": 2}}


@pytest.mark.parametrize(("record_eval", "expected"), [(False, {}), (True, {"0": {"mean": 0}})])
def test_evaluation_passes(model, watch, shown, record_eval, expected):
    inspector = watch(model, Attribute("0.num_batches_tracked", record_eval=record_eval))
    run(model.eval(), inspector, ONES)
    assert shown.values("Num Batches Tracked") == expected


def test_inactive_times_are_not_shown(model, watch, shown):
    inspector = watch(model, Attribute("0.num_batches_tracked"))
    with inspector.paused():
        model(torch.tensor(ONES))
    run(model, inspector, ONES)
    assert shown.values("Num Batches Tracked") == {"0": {"mean": 2}}


def test_samples_of_another_shape_are_left_out(watch, shown):
    class Keep(nn.Module):
        def forward(self, x):
            self.cache = x
            return x

    model = Keep()
    model.cache = None
    inspector = watch(model, Attribute("cache"))
    with pytest.warns(MonitorchWarning, match="leaves out a sample"):
        run(model, inspector, [3.0, 4.0], [1.0])
    assert shown.values("Cache") == {"": {"mean": 5}}


def test_an_error_in_the_map_stops_the_lens_and_not_the_training(model, watch, shown):
    inspector = watch(model, Attribute("0.running_mean", map_=lambda mean: 1 / 0), on_error="warn")
    with pytest.warns(MonitorchWarning, match="stops watching BatchNorm1d: ZeroDivisionError"):
        model(torch.tensor(ONES))
    run(model, inspector, ONES)
    assert shown.values("Running Mean") == {}


def test_wrong_options():
    with pytest.raises(TypeError, match=r"needs a Reducer such as .*, not int"):
        Attribute("0.running_mean", 3)
    with pytest.raises(ValueError, match="attributes takes names"):
        Attribute([3])


def test_a_path_that_leads_nowhere_is_refused_when_the_model_is_there(model, watch):
    with pytest.raises(AttributeError, match=r"Sequential has no '0\.runing_mean'"):
        watch(model, Attribute("0.runing_mean"))


def test_a_layer_below_the_depth_is_told(model, watch):
    with pytest.warns(MonitorchWarning, match="name some with attributes="):
        watch(model, Attribute("0.running_mean"), depth=0)


def test_detached_lens_leaves_nothing_and_can_be_pickled(model, watch, hooks_on):
    lens = Attribute("0.running_mean", difference=True)
    inspector = watch(model, lens)
    assert hooks_on(model)
    inspector.detach()
    assert not hooks_on(model)
    assert pickle.loads(pickle.dumps(lens))


def test_every_visualizer_shows_it(model, tmp_path, capsys):
    def show(visualizer):
        inspector = PyTorchInspector([Attribute("0.num_batches_tracked")], module=model, visualizer=visualizer)
        model[0].reset_running_stats()
        run(model, inspector, *[ONES] * 7)  # the mean of 1 to 7 is 4
        return inspector.visualizer

    show("print")
    assert capsys.readouterr().out.split()[-1] == "4.000"
    texts = [text.get_text() for text in show("matplotlib").show_fig().findobj(Text)]
    assert any("Num Batches Tracked" in text for text in texts)
    show(RecorderVisualizer(tmp_path / "run.jsonl")).close()
    PlayerVisualizer(tmp_path / "run.jsonl", PrintVisualizer()).playback()
    assert capsys.readouterr().out.split()[-1] == "4.000"
    show(TensorBoardVisualizer(str(tmp_path / "board"))).writer.close()
    board = EventAccumulator(str(tmp_path / "board")).Reload()
    values = [event.value for tag in board.Tags()["scalars"] if tag.endswith("mean") for event in board.Scalars(tag)]
    assert values == [4]
