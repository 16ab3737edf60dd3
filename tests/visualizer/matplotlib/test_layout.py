import pytest

from monitorch.visualizer.matplotlib.layout import PlotBlock, TagColumn, merge_orders, paginate, split_evenly


def columns(count, layers=0, labels=()):
    names = tuple(f"layer{index}" for index in range(layers))
    return [TagColumn(f"tag{index}", tuple(labels), names) for index in range(count)]


@pytest.mark.parametrize(
    ("count", "at_most", "lengths"), [(0, 6, []), (6, 6, [6]), (7, 6, [3, 4]), (14, 6, [4, 5, 5]), (60, 12, [12] * 5)]
)
def test_parts_are_even(count, at_most, lengths):
    assert [len(part) for part in split_evenly(range(count), at_most)] == lengths


@pytest.mark.parametrize(
    ("orders", "merged"),
    [
        ([], ""),
        (["abc", "abc"], "abc"),
        (["ac", "abcd"], "abcd"),
        (["abc", "xb"], "axbc"),
        (["abc", "bx"], "abxc"),
        (["ab", "cd"], "abcd"),
        (["abc", "cba"], "abc"),
    ],
)
def test_orders_of_layers_are_merged(orders, merged):
    assert "".join(sorted(merge_orders(orders))) == "".join(sorted(merged))
    assert [x for x in merge_orders(orders) if x != "x"] == [x for x in merged if x != "x"]


def test_small_run_is_one_page_without_title():
    (page,) = paginate(columns(3), columns(4, layers=5))
    assert page.title == ""
    assert [block.big for block in page.blocks] == [True, False]
    assert page.size[0] == 18


def test_width_follows_the_columns_until_the_page_is_full():
    widths = [paginate(columns(count), [])[0].size[0] for count in (1, 2, 3, 4, 6, 12)]
    assert widths == [5, 10, 15, 18, 18, 18]


def test_deep_run_is_split_by_layers():
    pages = paginate(columns(2), columns(3, layers=60))
    assert len(pages) == 5
    assert [page.title.split("  ")[0] for page in pages][::4] == ["layers 1-12 of 60", "layers 49-60 of 60"]
    assert [block.big for block in pages[0].blocks] == [True, False]
    assert all(not block.big for page in pages[1:] for block in page.blocks)


def test_deep_and_wide_run_keeps_pages_bounded():
    pages = paginate(columns(8), columns(14, layers=60))
    shown = [(column.tag, layer) for page in pages for b in page.blocks for column in b.columns for layer in b.layers]
    assert len(shown) == len(set(shown)) == 14 * 60
    assert all(page.size[0] <= 18 and page.size[1] <= 23 for page in pages)


def test_tags_without_common_layers_form_blocks_of_their_own():
    activations, weights = TagColumn("A", (), ("relu1", "relu2")), TagColumn("W", (), ("lin1", "lin2"))
    (page,) = paginate([], [activations, weights, TagColumn("A2", (), ("relu2",))])
    assert [[column.tag for column in block.columns] for block in page.blocks] == [["A", "A2"], ["W"]]
    assert [block.layers for block in page.blocks] == [("relu1", "relu2"), ("lin1", "lin2")]


def test_page_leaves_out_tags_that_lack_all_of_its_layers():
    full = TagColumn("full", (), tuple(f"layer{index:02}" for index in range(24)))
    late = TagColumn("late", (), full.layers[20:])
    first, second = paginate([], [full, late])
    assert [column.tag for column in first.blocks[0].columns] == ["full"]
    assert [column.tag for column in second.blocks[0].columns] == ["full", "late"]


def test_legend_takes_the_rows_that_it_needs():
    one = PlotBlock(tuple(columns(1, labels=["mean", "min -- max"])), ("a",), big=False, width=5)
    four = [f"{part}_loss {edge}" for part in ("train", "val") for edge in ("mean", "-σ -- something +σ")]
    column = TagColumn("T", tuple(four))
    narrow, wide = (PlotBlock((column,), (), big=True, width=width) for width in (2.5, 8))
    assert one.legend_columns(one.columns[0]) == 2
    assert (narrow.legend_columns(column), wide.legend_columns(column)) == (1, 4)
    assert narrow.head > wide.head


def test_given_width_is_kept_unless_nothing_would_fit():
    assert paginate(columns(4), [], width=9)[0].size[0] == 9
    assert paginate(columns(4), [], width=1)[0].size[0] == 6
