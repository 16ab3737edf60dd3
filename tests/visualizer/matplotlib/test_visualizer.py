import matplotlib
import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure

from monitorch.errors import LifecycleError, OptionError
from monitorch.visualizer import AbstractVisualizer, MatplotlibVisualizer, TagType

MANY = {f"layer{index}": {"mean": [1.0, 2.0]} for index in range(30)}


def test_is_a_visualizer_of_the_package():
    from monitorch.visualizer import matplotlib as package

    assert issubclass(MatplotlibVisualizer, AbstractVisualizer)
    assert package.MatplotlibVisualizer is MatplotlibVisualizer
    assert isinstance(MatplotlibVisualizer._NO_SMALL_TAGS_WARNING, str)


def test_plotting_only_stores(visualizer):
    built = visualizer({"a": {"mean": [1.0]}})
    assert plt.get_fignums() == []
    assert built.figure_ is None


def test_shows_one_open_figure_and_caches_it(visualizer):
    built = visualizer({"a": {"mean": [1.0]}})
    figure = built.show_fig()
    assert isinstance(figure, Figure)
    assert built.show_fig() is figure is built.figure_
    assert plt.fignum_exists(figure.number)


def test_d61_show_fig_refreshes_after_further_ticks(visualizer, axes_of):
    built = visualizer({"a": {"mean": [1.0, 2.0]}})
    stale = built.show_fig()
    built.plot_numerical_values(2, "T", {"a": {"mean": 3.0}})
    assert built.figure_ is None
    fresh = built.show_fig()
    assert list(axes_of(fresh)["a"].lines[0].get_ydata()) == [1, 2, 3]
    assert plt.get_fignums() == [fresh.number]
    assert fresh is not stale


def test_d60_figures_are_closed_on_reset(visualizer):
    built = visualizer({"a": {"mean": [1.0]}})
    for epoch in range(22):
        built.plot_numerical_values(epoch, "T", {"a": {"mean": 1.0}})
        built.show_fig()
        assert built.reset_fig() is built
    assert plt.get_fignums() == []


def test_d60_figsize_follows_the_number_of_layers(visualizer):
    built = visualizer({"a": {"mean": [1.0]}})
    low = built.show_fig().get_size_inches()[1]
    built.plot_numerical_values(1, "T", {"b": {"mean": 1.0}, "c": {"mean": 1.0}})
    high = built.show_fig().get_size_inches()[1]
    built.reset_fig().plot_numerical_values(0, "T", {"a": {"mean": 1.0}})
    assert high > low + 2
    assert built.show_fig().get_size_inches()[1] == low


def test_reset_drops_numbers_and_keeps_tags(visualizer, axes_of):
    built = visualizer({"a": {"mean": [1.0]}}).reset_fig()
    (axes,) = axes_of(built.show_fig()).values()
    assert [text.get_text() for text in axes.texts] == ["no data"]


@pytest.mark.parametrize("size", [(7, 5), (0.5, 0.5)])
def test_keywords_go_to_the_figure(attributes, size):
    built = MatplotlibVisualizer(figsize=size, dpi=50, num="mine", facecolor="pink")
    built.register_tags("Weight Gradient Correlation", attributes())
    for epoch in range(3):
        values = {f"a_rather_long_name_{index}": {"mean": 1.0} for index in range(20)}
        built.plot_numerical_values(epoch, "Weight Gradient Correlation", values)
    first, second = built.figures()
    assert tuple(first.get_size_inches()) == tuple(second.get_size_inches()) == size
    assert first.dpi == 50
    assert first.get_label() == "mine"
    assert first.get_facecolor() == matplotlib.colors.to_rgba("pink")
    first.canvas.draw()


units = pytest.mark.skipif(matplotlib.__version_info__ < (3, 11), reason="matplotlib knows inches only")


@pytest.mark.parametrize(
    "options",
    [{"figsize": None}, {"layout": "constrained"}, pytest.param({"figsize": (40, 30, "cm")}, marks=units)],
)
def test_keywords_that_meddle_with_the_layout_are_harmless(attributes, options):
    built = MatplotlibVisualizer(**options)
    built.register_tags("T", attributes())
    built.plot_numerical_values(0, "T", {"a": {"mean": 1.0}})
    built.show_fig().canvas.draw()


def test_unknown_keyword_is_refused_by_matplotlib(attributes):
    built = MatplotlibVisualizer(figzise=(1, 1))
    built.register_tags("T", attributes())
    with pytest.raises((TypeError, AttributeError), match="figzise"):
        built.show_fig()


def test_pages_of_a_deep_model(visualizer, axes_of):
    built = visualizer(MANY)
    figures = built.figures()
    assert [list(axes_of(figure)) for figure in figures] == [
        [f"layer{index}" for index in part] for part in (range(10), range(10, 20), range(20, 30))
    ]
    assert "layers 11-20 of 30" in figures[1].get_suptitle()
    assert built.show_fig(page=2) is figures[1]
    assert built.figure_ is figures[0]
    assert max(figure.get_size_inches()[1] for figure in figures) < 25


def test_more_than_twenty_pages_raise_no_warning(visualizer, monkeypatch):
    monkeypatch.setattr("monitorch.visualizer.matplotlib.layout.MAX_LAYERS", 1)
    assert len(visualizer(MANY).figures()) == 30


@pytest.mark.parametrize("page", [0, -1, 4])
def test_unknown_page(visualizer, page):
    with pytest.raises(OptionError, match="from 1 to 3"):
        visualizer(MANY).show_fig(page=page)


def test_no_tags_at_all():
    with pytest.raises(LifecycleError, match="no tag was registered"):
        MatplotlibVisualizer().show_fig()


def test_unregistered_tag_is_ignored(visualizer):
    built = visualizer({"a": {"mean": [1.0]}})
    figure = built.show_fig()
    built.plot_numerical_values(5, "unknown", {"a": {"mean": 1.0}})
    built.plot_probabilities(5, "unknown", {"a": {"mean": 1.0}})
    built.plot_relations(5, "unknown", {"unknown": {"a": 1.0}})
    assert built.show_fig() is figure


def test_caller_may_change_what_it_handed_over(visualizer, axes_of):
    built = visualizer({})
    values, ranges = {"a": {"mean": 1.0}}, {"a": {("min", "max"): (0.0, 2.0)}}
    built.plot_numerical_values(0, "T", values, ranges)
    values["a"]["mean"] = 9.0
    values.clear()
    ranges["a"].clear()
    axes = axes_of(built.show_fig())["a"]
    assert list(axes.lines[0].get_ydata()) == [1]
    assert len(axes.collections) == 2


def test_later_tag_appears(visualizer, attributes, axes_of):
    built = visualizer({"a": {"mean": [1.0]}})
    built.show_fig()
    built.register_tags("U", attributes(TagType.RELATIONS, big_plot=True))
    assert axes_of(built.show_fig(), "U")


def test_save_writes_one_page(visualizer, tmp_path):
    built = visualizer({"a": {"mean": [1.0]}})
    assert built.save(tmp_path / "plot.png", dpi=20) == [tmp_path / "plot.png"]
    assert built.save(str(tmp_path / "bare"), dpi=20) == [tmp_path / "bare.png"]
    assert all(path.stat().st_size for path in tmp_path.iterdir())
    assert len(list(tmp_path.iterdir())) == 2


def test_save_numbers_further_pages(visualizer, tmp_path):
    paths = visualizer(MANY).save(tmp_path / "plot.svg")
    assert [path.name for path in paths] == ["plot.svg", "plot-2.svg", "plot-3.svg"]
    assert all(path.is_file() for path in paths)


def test_save_makes_one_pdf(visualizer, tmp_path):
    path = tmp_path / "plot.pdf"
    assert visualizer(MANY).save(path) == [path]
    assert path.read_bytes().count(b"/Type /Page ") == 3


def test_save_leaves_open_only_what_was_shown(visualizer, tmp_path):
    built = visualizer(MANY)
    built.save(tmp_path / "plot.png", dpi=10)
    assert built.figure_ is None
    shown = built.show_fig(2)
    built.save(tmp_path / "plot.png", dpi=10)
    assert plt.get_fignums() == [shown.number]


def test_save_refuses_unknown_formats(visualizer, tmp_path):
    with pytest.raises(ValueError, match="docx"):
        visualizer({"a": {"mean": [1.0]}}).save(tmp_path / "plot.docx")


def test_settings_of_the_user_are_left_alone(visualizer):
    before = dict(matplotlib.rcParams)
    visualizer(MANY).figures()
    assert dict(matplotlib.rcParams) == before
