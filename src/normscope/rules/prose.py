"""Numbers, counts and names as sentences need them."""

from collections.abc import Iterable, Sequence
from math import floor, isfinite, log10

from normscope.results.rows import path_text

SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
NAMED = 5  # items that a sentence lists
LONGEST = 200  # characters of a name or of a token: hostile models have longer ones


def number(value: float) -> str:
    """Three digits, thousands separated, no computer's exponent.

    >>> number(24382.3), number(0.256), number(0.0000023), number(-1.5e12), number(0.0)
    ('24,382', '0.256', '2.3·10⁻⁶', '−1.5·10¹²', '0')
    """
    if value == 0 or not isfinite(value):
        return "0" if value == 0 else "infinity" if value > 0 else "−infinity" if value < 0 else "not a number"
    sign, size = "−" if value < 0 else "", abs(value)
    if 1000 <= size < 1e9:
        return f"{sign}{size:,.0f}"
    if 1e-3 <= size < 1000:
        return f"{sign}{size:.3g}"
    exponent = floor(log10(size))
    digits = f"{size / 10.0**exponent:.3g}" if exponent > -300 else f"{size:.2e}".partition("e")[0]
    if digits == "10":
        digits, exponent = "1", exponent + 1
    return f"{sign}{digits}·10{str(exponent).translate(SUPERSCRIPTS)}"


def percent(share: float) -> str:
    """
    >>> percent(0.0398), percent(0.00071), percent(0.000002), percent(1e-12)
    ('3.98%', '0.071%', '0.0002%', 'less than 0.0001%')
    """
    if 0 < share < 1e-6:
        return "less than 0.0001%"
    return "0%" if share == 0 else f"{100 * share:.3g}%" if share >= 1e-4 else f"{100 * share:.6f}".rstrip("0") + "%"


def count(many: int, what: str) -> str:
    """
    >>> count(1, "norm"), count(1200, "norm")
    ('1 norm', '1,200 norms')
    """
    return f"{many:,} {what}" if many == 1 else f"{many:,} {what}s"


def part(some: Sequence[object], of: Sequence[object], what: str = "norm") -> str:
    """
    >>> part([1], [1, 2, 3])
    '1 of 3 norms'
    """
    return f"{len(some):,} of {count(len(of), what)}"


def verb(some: Sequence[object], singular: str, plural: str) -> str:
    return singular if len(some) == 1 else plural


def name(path: str) -> str:
    """A module in a sentence: its path, cut if it is longer than a line or two.

    >>> name("h.0.ln_1"), name("")
    ('h.0.ln_1', '(the model)')
    """
    shown = path_text(path)
    return shown if len(shown) <= LONGEST else f"{shown[:LONGEST]}…"


def listed(items: Iterable[object], most: int = NAMED) -> str:
    """Some of many, joined.

    >>> listed([507, 247, 17]), listed([1]), listed(range(9))
    ('507, 247 and 17', '1', '0, 1, 2, 3, 4 and 4 more')
    """
    words = [str(item) for item in items]
    if len(words) > most:
        return f"{', '.join(words[:most])} and {len(words) - most:,} more"
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


def token(text: str | None, position: int, sequence: int | None = None) -> str:
    """A token with its place.

    >>> token(" than", 25, 3), token(None, 0)
    ('" than" (token 25 of sequence 3)', 'token 0')
    """
    place = f"token {position}" + ("" if sequence is None else f" of sequence {sequence}")
    return place if text is None else f"{quoted_token(text)} ({place})"


def quoted_token(text: str) -> str:
    """A token in quotation marks; line breaks, control and direction marks are visible.

    >>> quoted_token("\\n"), quoted_token("a\\u202eb")
    ('"↵"', '"a·b"')
    """
    shown = "".join(
        "↵" if character == "\n" else character if character.isprintable() else "·" for character in text[:LONGEST]
    )
    return f'"{shown}{"…" if len(text) > LONGEST else ""}"'
