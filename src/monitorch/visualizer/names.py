"""Names as text: safe to print, and shortened without becoming equal."""

import unicodedata
from collections.abc import Iterator, Mapping, Sequence
from string import digits

_ENDS_OF_PARTS = ". "
_ENDS_OF_WORDS = "._-/ "


def printable(text: object) -> str:
    r"""Text without terminal control codes: characters that are not visible are written as escapes.

    >>> printable("fc1")
    'fc1'
    >>> print(printable(chr(27) + "[2J"))
    \x1b[2J
    """
    text = str(text)
    if text.isprintable():
        return text
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def cells(text: str) -> int:
    """How many terminal columns a text takes.

    >>> cells("fc1"), cells("层1")
    (3, 3)
    """
    return len(text) if text.isascii() else sum(map(_cells, text))


def padded(text: str, width: int, *, right: bool = False) -> str:
    """Text padded to this many columns, aligned left or right."""
    space = " " * (width - cells(text))
    return space + text if right else text + space


def shortened(names: Sequence[str], width: int, mark: str = "…") -> list[str]:
    """Names that take at most ``width`` columns, cut in the middle; different names stay different.

    A common beginning of all long names is cut first. Names that would still look the same also lose their own common
    beginning, so that they start where they differ.

    >>> shortened(["encoder.0.attn.qkv.bias", "decoder.0.attn.qkv.bias", "head"], 16)
    ['encod…n.qkv.bias', 'decod…n.qkv.bias', 'head']
    >>> shortened(["encoder.0.attn.qkv.bias", "encoder.1.attn.qkv.bias", "head"], 16)
    ['…0.attn.qkv.bias', '…1.attn.qkv.bias', 'head']
    >>> shortened(["attention_projection.weight", "attention_projection.bias", "head"], 16)
    ['atten…ion.weight', 'atten…ction.bias', 'head']
    """
    short = {name: name for name in names if cells(name) <= width}
    long = {name: name for name in names if name not in short}
    short |= _told_apart(long, width, mark, _ENDS_OF_PARTS, set(short.values()))
    return [short[name] for name in names]


def _told_apart(texts: Mapping[str, str], width: int, mark: str, ends: str, taken: set[str]) -> dict[str, str]:
    """A short text for each name, none of them taken; names that would look the same start where they differ."""
    prefix = _common_parent([*texts.values()], ends)
    rest = {name: mark + text[len(prefix) :] if cells(prefix) > cells(mark) else text for name, text in texts.items()}
    head = _best_head([*rest.values()], width, mark, taken)
    alike: dict[str, dict[str, str]] = {}
    for name, text in rest.items():
        alike.setdefault(next(_cuts(text, width, mark, head)), {})[name] = text
    found: dict[str, str] = {}
    for group in alike.values():
        if cells(_common_parent([*group.values()], _ENDS_OF_WORDS)) > cells(mark):
            found |= _told_apart(group, width, mark, _ENDS_OF_WORDS, taken)
            continue
        for name, text in group.items():
            found[name] = next(cut for cut in _cuts(text, width, mark, head) if cut not in taken)
            taken.add(found[name])
    return found


def _common_parent(names: Sequence[str], ends: str) -> str:
    """The common beginning of all names, up to one of the ``ends``; empty for a single name.

    Parameters of one module keep its name: without it they could be anybody's.
    """
    if len(names) < 2:
        return ""
    first, last = min(names), max(names)
    same = next((place for place, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    parent = first[: _last_end(first[:same], ends)]
    if (
        ends == _ENDS_OF_PARTS
        and parent.endswith(".")
        and not any(_last_end(name[len(parent) :], ends) for name in names)
    ):
        parent = parent[: _last_end(parent[:-1], ends)]
    return parent


def _last_end(text: str, ends: str) -> int:
    """Where the last part of a text begins."""
    return max(text.rfind(end) for end in ends) + 1


def _best_head(names: Sequence[str], width: int, mark: str, taken: set[str]) -> int:
    """How many columns of the beginning to keep, so that the fewest names become equal; by default about a third."""
    room = max(width - cells(mark), 1)
    heads = sorted(range(room + 1), key=lambda head: abs(head - room // 3))
    long = [name for name in names if cells(name) > width]
    return max(heads, key=lambda head: len({_cut(name, head, room - head, mark) for name in long} - taken))


def _cuts(name: str, width: int, mark: str, head: int) -> Iterator[str]:
    """Ways to shorten a name, best first: not at all, other places for the cut, then a number at the end."""
    if cells(name) <= width:
        yield name
    room = max(width - cells(mark), 1)
    for kept in (head, *sorted(range(room + 1), key=lambda kept: abs(kept - head))):
        yield _cut(name, kept, room - kept, mark)
    number = 2
    while True:
        ending = f"~{number}"
        rest = max(room - len(ending), 0)
        yield _cut(name, min(head, rest), max(rest - head, 0), mark) + ending
        number += 1


def _cut(name: str, head: int, tail: int, mark: str) -> str:
    """Beginning and end of a name; a number is never cut in two, or layer 11 would look like layer 1."""
    start, end = _beginning(name, head), _beginning(name[::-1], tail)[::-1]
    after, before = name[len(start) :], name[: len(name) - len(end)]
    if start[-1:].isdigit() and after[:1].isdigit():
        start = start.rstrip(digits)
    if end[:1].isdigit() and before[-1:].isdigit():
        end = end.lstrip(digits)
    return start + mark + end


def _beginning(text: str, width: int) -> str:
    if text.isascii():
        return text[:width]
    taken = 0
    for place, character in enumerate(text):
        taken += _cells(character)
        if taken > width:
            return text[:place]
    return text


def _cells(character: str) -> int:
    if unicodedata.category(character) in ("Mn", "Me"):
        return 0
    return 2 if unicodedata.east_asian_width(character) in "WF" else 1
