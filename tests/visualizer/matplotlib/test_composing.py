import math

import matplotlib.pyplot as plt
import pytest
from matplotlib.colors import same_color

from monitorch.visualizer import MatplotlibVisualizer, TagType

LOSS = {"T": {"train_loss mean": [2.0, 1.0], "val_loss mean": [3.0, 2.0]}}


def texts(axes):
    return [text.get_text() for text in axes.texts]


def ticks(axis):
    low, high = sorted(axis.get_view_interval())
    return [tick for tick in axis.get_majorticklocs() if low <= tick <= high]


def test_big_tags_stand_above_small_ones(attributes):
    built = MatplotlibVisualizer()
    for tag, big in {"small 1": False, "big 1": True, "small 2": False, "big 2": True}.items():
        built.register_tags(tag, attributes(big_plot=big))
        built.plot_numerical_values(0, tag, {tag if big else "layer": {"mean": 1.0}})
    rows = [[part.get_suptitle() for part in block.subfigs] for block in built.show_fig().subfigs]
    assert rows == [["big 1", "big 2"], ["small 1", "small 2"]]


def test_backgrounds_of_columns_alternate(attributes):
    built = MatplotlibVisualizer()
    for tag in "abc":
        built.register_tags(tag, attributes())
    colours = [part.get_facecolor() for part in built.show_fig().subfigs[0].subfigs]
    assert colours[0] == colours[2] != colours[1]


def test_a_row_is_a_layer(attributes, axes_of):
    built = MatplotlibVisualizer()
    for tag, layers in {"T": ["a", "b", "c"], "U": ["c", "a"]}.items():
        built.register_tags(tag, attributes())
        built.plot_numerical_values(0, tag, {layer: {"mean": 1.0} for layer in layers})
    figure = built.show_fig()
    bottoms = [{name: axes.get_position().y0 for name, axes in axes_of(figure, tag).items()} for tag in "TU"]
    assert list(bottoms[0]) == ["a", "b", "c"]
    assert bottoms[1] == {layer: bottoms[0][layer] for layer in "ac"}


def test_legend_stands_once_per_tag_and_names_all_layers_lines(visualizer, axes_of):
    band = {"b": (("min", "max"), [0.0], [2.0])}
    figure = visualizer({"a": {"mean": [1.0]}, "b": {"median": [1.0]}}, bands=band).show_fig()
    first, second = axes_of(figure).values()
    assert [text.get_text() for text in first.get_legend().get_texts()] == ["mean", "median", "min -- max"]
    assert second.get_legend() is None


@pytest.mark.parametrize(
    ("kind", "annotate"), [(TagType.NUMERICAL, False), (TagType.RELATIONS, True), (TagType.RELATIONS, False)]
)
def test_no_legend_without_annotate_or_for_shares(visualizer, axes_of, kind, annotate):
    figure = visualizer({"T": {"a": [0.5], "b": [0.5]}}, kind=kind, big_plot=True, annotate=annotate).show_fig()
    (axes,) = axes_of(figure).values()
    assert axes.get_legend() is None


@pytest.mark.parametrize("lines", [1, 4, 13])
@pytest.mark.parametrize("big", [True, False])
def test_legends_neither_touch_plots_nor_leave_the_figure(visualizer, axes_of, lines, big):
    names = [f"a_long_metric_{index} mean" for index in range(lines)]
    figure = visualizer({"T": {name: [1.0] for name in names}}, big_plot=big).show_fig()
    figure.canvas.draw()
    (axes,) = axes_of(figure).values()
    legend = axes.get_legend().get_window_extent()
    assert 0 <= legend.x0 < legend.x1 <= figure.bbox.x1
    assert axes.get_tightbbox().y1 >= legend.y0 >= (axes.bbox if big else axes.title.get_window_extent()).y1


@pytest.mark.parametrize("layers", [3, 60])
def test_long_names_are_cut_to_the_width_of_their_plot(visualizer, layers):
    names = [f"model.encoder.block.{index}.mixture_of_experts.feed_forward.{'x' * 40}.gate" for index in range(layers)]
    figure = visualizer({name: {"mean": [1.0]} for name in names}).show_fig()
    figure.canvas.draw()
    for axes in figure.axes:
        title = axes.title.get_window_extent()
        assert title.width <= axes.bbox.width
        assert axes.get_title().startswith("model.")
        assert axes.get_title().endswith(".gate")


def test_d62_ticks_stay_few_and_integer_over_many_epochs(visualizer, axes_of):
    built = visualizer({"a": {"mean": [1.0, 2.0]}})
    built.plot_numerical_values(5000, "T", {"a": {"mean": 3.0}})
    built.show_fig().canvas.draw()
    found = ticks(axes_of(built.show_fig())["a"].xaxis)
    assert 3 <= len(found) <= 8
    assert all(float(tick).is_integer() for tick in found)


def test_ticks_of_a_single_epoch(visualizer, axes_of):
    assert ticks(axes_of(visualizer({"a": {"mean": [1.0]}}, first_epoch=7).show_fig())["a"].xaxis) == [7]


def test_all_plots_show_the_same_epochs(attributes):
    built = MatplotlibVisualizer()
    for tag, epoch in {"early": 0, "late": 100}.items():
        built.register_tags(tag, attributes())
        built.plot_numerical_values(epoch, tag, {"a": {"mean": 1.0}})
    limits = {axes.get_xlim() for axes in built.show_fig().axes}
    assert limits == {(-2, 102)}


@pytest.mark.parametrize("big", [True, False])
@pytest.mark.parametrize("ends", [(1, -1), (-1, 1)])
def test_d63_ends_of_the_axis_come_in_any_order(visualizer, axes_of, big, ends):
    figure = visualizer({"T": {"mean": [0.1, 0.2]}}, big_plot=big, ylim=ends).show_fig()
    (axes,) = axes_of(figure).values()
    assert axes.get_ylim() == (-1, 1)


@pytest.mark.parametrize("ends", [(1, 1), (math.nan, 1), (0, math.inf)])
def test_senseless_ends_are_left_to_matplotlib(visualizer, axes_of, ends):
    axes = axes_of(visualizer({"a": {"mean": [4.0, 5.0]}}, ylim=ends).show_fig())["a"]
    assert axes.get_ylim()[0] < 4 < 5 < axes.get_ylim()[1]


def test_d64_loss_lines_have_their_named_colours(visualizer, axes_of):
    (axes,) = axes_of(visualizer(LOSS, big_plot=True).show_fig()).values()
    assert {line.get_label(): line.get_color() for line in axes.lines} == {
        "train_loss mean": "blue",
        "val_loss mean": "orange",
    }


def test_d64_loss_bands_have_their_named_colours(visualizer, axes_of):
    bands = {"T": (("val_loss -σ", "val_loss +σ"), [2.0, 1.0], [4.0, 3.0])}
    (axes,) = axes_of(visualizer(LOSS, bands=bands, big_plot=True).show_fig()).values()
    (band,) = axes.collections
    assert band.get_label() == "val_loss -σ -- val_loss +σ"
    assert same_color(band.get_facecolor()[0][:3], "sandybrown")
    assert band.get_alpha() == 0.2


def test_a_line_looks_the_same_in_all_layers(visualizer, axes_of):
    figure = visualizer({"a": {"x": [1.0], "y": [1.0]}, "b": {"y": [1.0]}}).show_fig()
    plots = axes_of(figure)
    assert plots["a"].lines[1].get_color() == plots["b"].lines[0].get_color() != plots["a"].lines[0].get_color()


def test_d16_worst_of_nothing_is_shown_as_nothing(attributes, axes_of):
    built = MatplotlibVisualizer()
    built.register_tags("T", attributes(TagType.PROBABILITY, big_plot=True))
    worst = {"worst activation_rate": math.inf, "worst death_rate": -math.inf}
    built.plot_probabilities(0, "T", {"T": worst})
    (axes,) = axes_of(built.show_fig()).values()
    assert "no finite values" in texts(axes)
    assert axes.get_ylim() == (0, 1)


def test_tags_without_numbers_say_so_before_the_first_tick(attributes, axes_of):
    built = MatplotlibVisualizer()
    for tag, changes in {"big": {"big_plot": True}, "small": {}, "log": {"logy": True}}.items():
        for kind in TagType:
            built.register_tags(f"{tag} {kind.name}", attributes(kind, **changes))
    figure = built.show_fig()
    figure.canvas.draw()
    assert [texts(axes) for axes in figure.axes] == [["no data"]] * 9


@pytest.mark.parametrize("kind", TagType)
@pytest.mark.parametrize("values", [{}, {"T": {}}])
def test_empty_dictionaries_are_tolerated(attributes, axes_of, kind, values):
    built = MatplotlibVisualizer()
    built.register_tags("T", attributes(kind, big_plot=True))
    built.plot_numerical_values(0, "T", values, {"T": {}})
    (axes,) = axes_of(built.show_fig()).values()
    assert texts(axes) == ["no data"]


def test_empty_small_tag_beside_a_full_one(visualizer, attributes, axes_of):
    built = visualizer({"a": {"mean": [1.0]}, "b": {"mean": [1.0]}})
    built.register_tags("U", attributes())
    (axes,) = axes_of(built.show_fig(), "U").values()
    assert texts(axes) == ["no data"]


def test_small_values_have_their_power_of_ten_beside_the_title(visualizer, axes_of):
    figure = visualizer({"a": {"mean": [1e-6, 2e-6]}}).show_fig()
    figure.canvas.draw()
    axes = axes_of(figure)["a"]
    offset = axes.yaxis.get_offset_text()
    assert offset.get_text().startswith("1e")
    assert offset.get_window_extent().x1 <= axes.bbox.x0 + 1


@pytest.mark.parametrize("numbers", [[1e-9, 1e3], [1.0, 30.0], [1.2, 1.3], [5.0, 5.0]])
def test_logarithmic_axes_have_few_short_numbers(visualizer, axes_of, numbers):
    figure = visualizer({"a": {"mean": numbers}}, logy=True).show_fig()
    figure.canvas.draw()
    axes = axes_of(figure)["a"]
    labels = [label.get_text() for label in axes.get_yticklabels() if label.get_text()]
    assert axes.get_yscale() == "log"
    assert 1 <= len(ticks(axes.yaxis)) <= 7
    assert all(len(label) <= 6 for label in labels)


def test_every_tag_of_a_wide_run_is_drawn(attributes):
    built = MatplotlibVisualizer()
    tags = {f"big {index}": True for index in range(8)} | {f"small {index}": False for index in range(14)}
    for tag, big in tags.items():
        built.register_tags(tag, attributes(big_plot=big))
        built.plot_numerical_values(0, tag, {tag if big else "layer": {"mean": 1.0}})
    figures = built.figures()
    drawn = [part.get_suptitle() for figure in figures for block in figure.subfigs for part in block.subfigs]
    assert drawn == list(tags)
    assert max(len(block.subfigs) for figure in figures for block in figure.subfigs) <= 6
    assert max(figure.get_size_inches()[0] for figure in figures) <= 18
    assert len(plt.get_fignums()) == len(figures)


def logged(attributes, ticks, *, axis=None, **changes):
    """A visualizer with one big tag ``Logged``; ``ticks`` is ``[(epoch, step, {line: number})]``."""
    built = MatplotlibVisualizer()
    built.register_tags("Logged", attributes(big_plot=True, **changes))
    for epoch, step, lines in ticks:
        if axis is not None:
            built.begin_tick(epoch, step, axis)
        built.plot_numerical_values(epoch, "Logged", {"Logged": lines}, {})
    return built


def panels(figure):
    """Title, label of the horizontal axis, and the points of each line."""
    parts = [part for block in figure.subfigs for part in block.subfigs]
    return {
        part.get_suptitle(): (axes.get_xlabel(), [list(map(tuple, line.get_xydata().tolist())) for line in axes.lines])
        for part in parts
        for axes in part.axes
    }


def test_names_that_have_nothing_in_common_have_a_plot_each(attributes):
    ticks = [
        (1, 10, {"lr mean": 0.1, "speed mean": 500.0}),
        (2, 20, {"lr mean": 0.2, "speed mean": 600.0, "plain": 7.0}),
    ]
    found = panels(logged(attributes, ticks, apart=True).show_fig())
    assert found == {
        "lr": ("epoch", [[(1, 0.1), (2, 0.2)]]),
        "speed": ("epoch", [[(1, 500.0), (2, 600.0)]]),
        "plain": ("epoch", [[(2, 7.0)]]),
    }
    assert list(panels(logged(attributes, ticks).show_fig())) == ["Logged"]


def test_lines_and_bands_of_one_name_stay_together(attributes):
    built = MatplotlibVisualizer()
    built.register_tags("T", attributes(big_plot=True, apart=True))
    lines = {"a mean": 1.0, "a max": 2.0, "b mean": 3.0}
    bands = {("a -σ", "a +σ"): (0.5, 1.5), ("b -σ", "b +σ"): (2.5, 3.5)}
    for epoch in (1, 2):
        built.plot_numerical_values(epoch, "T", {"T": lines}, {"T": bands})
    figure = built.show_fig()
    parts = {part.get_suptitle(): part.axes[0] for block in figure.subfigs for part in block.subfigs}
    assert {name: (len(axes.lines), len(axes.collections)) for name, axes in parts.items()} == {
        "a": (2, 1),
        "b": (1, 1),
    }


def test_nothing_logged_yet_has_no_plot(attributes):
    built = logged(attributes, [], apart=True)
    built.register_tags("Loss", attributes(big_plot=True))
    assert list(panels(built.show_fig())) == ["Loss"]


@pytest.mark.parametrize(
    ("axis", "places"), [(None, [1, 2, 3]), ("epoch", [1, 2, 3]), ("tick", [1, 2, 3]), ("step", [10, 25, 40])]
)
def test_the_horizontal_axis_says_what_ticks_are_counted_in(attributes, axis, places):
    ticks = [(1, 10, {"a mean": 1.0}), (2, 25, {"a mean": 2.0}), (3, 40, {"a mean": 3.0})]
    ((label, (points,)),) = panels(logged(attributes, ticks, axis=axis).show_fig()).values()
    assert label == (axis or "epoch")
    assert [x for x, _ in points] == places


def test_numbers_of_two_ticks_at_one_step_stand_at_the_same_place(attributes):
    ticks = [(1, 10, {"train mean": 1.0}), (2, 10, {"val mean": 5.0}), (3, 20, {"train mean": 2.0, "val mean": 6.0})]
    ((_, (train, val)),) = panels(logged(attributes, ticks, axis="step").show_fig()).values()
    assert (train, val) == ([(10, 1.0), (20, 2.0)], [(10, 5.0), (20, 6.0)])


def test_samples_that_are_not_finite_are_marked_at_their_step(visualizer, attributes):
    built = MatplotlibVisualizer()
    built.register_tags("T", attributes(big_plot=True))
    for epoch, step in ((1, 10), (2, 20)):
        built.begin_tick(epoch, step, "step")
        built.count_nonfinite(epoch, "T", {"T": epoch - 1})
        built.plot_numerical_values(epoch, "T", {"T": {"mean": 1.0}})
    curves = built._history.layers("T")["T"]
    assert curves.nonfinite.points()[0].tolist() == [10, 20]


def test_a_figure_begins_anew_after_reset(attributes):
    built = logged(attributes, [(1, 10, {"a mean": 1.0})], axis="step")
    built.reset_fig()
    built.begin_tick(1, 10, "epoch")
    built.plot_numerical_values(1, "Logged", {"Logged": {"a mean": 1.0}})
    assert panels(built.show_fig()) == {"Logged": ("epoch", [[(1, 1.0)]])}


@pytest.mark.parametrize("kind", [TagType.NUMERICAL, TagType.RELATIONS])
def test_a_dollar_in_a_name_is_no_formula(attributes, kind):
    name = r"$\wrong{$"
    built = MatplotlibVisualizer()
    built.register_tags(name, attributes(kind))
    plot = {TagType.NUMERICAL: built.plot_numerical_values, TagType.RELATIONS: built.plot_relations}[kind]
    for epoch in range(2):
        plot(epoch, name, {name: {name: 0.5}})
    figure = built.show_fig()
    figure.canvas.draw()
    (axes,) = figure.subfigs[0].subfigs[0].axes
    assert name in (axes.get_title(), *texts(axes))
