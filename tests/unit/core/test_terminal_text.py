"""What a terminal would obey is spelled out."""

import sys
import unicodedata

import pytest

from stratagem._src.core.terminal_text import plain_output, printable, printable_output

ORDERS = {
    "title": "\x1b]0;owned\x07",
    "clipboard": "\x1b]52;c;cm0gLXJmIH4K\x07",
    "clear": "\x1b[2J",
    "report": "\x1b[6n",
    "eight bit": "\x9b2J\x9d0;owned\x9c",
    "device control": "\x1bP$q\x1b\\",
    "return": "safe\rowned",
    "backspace": "safe\b\b\b\bowned",
    "reversed": "\u202eowned",
    "hidden": "\u200bowned\ufeff",
    "delete": "\x7f",
    "not text": "\udcff",
    "half a colour": "\x1b[31",
}


def is_harmless(text):
    return all(
        unicodedata.category(c) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
        for c in text.replace("\n", "")
    )


@pytest.mark.parametrize("text", ORDERS.values(), ids=ORDERS)
@pytest.mark.parametrize("shown", [printable, printable_output, plain_output])
def test_nothing_is_left_to_obey(shown, text):
    out = shown(f"before {text} after")
    assert is_harmless(out)
    assert out.startswith(("before", "safe"))
    assert out.endswith("after")
    out.encode("utf-8")


def test_every_character_is_harmless_afterwards():
    # Joiners and marks of writing systems reorder and hide nothing.
    for number in range(sys.maxunicode + 1):
        character = chr(number)
        if unicodedata.category(character) in ("Cc", "Cs", "Zl", "Zp") and character != "\n":
            assert is_harmless(printable(character)), hex(number)
    assert is_harmless(
        printable("".join(map(chr, [*range(0x202A, 0x202F), *range(0x2066, 0x206A)])))
    )


@pytest.mark.parametrize("text", ["plain", "Grüße", "損失 0.5", "a\nb", "नमस्ते", "👩‍🚀", "5 %"])
def test_text_stays(text):
    assert printable(text) == printable_output(text) == plain_output(text) == text


def test_colours_stay_where_they_are_wanted():
    text = "\x1b[1;31mred\x1b[0m \x1b[Aup \x1b]0;owned\x07"
    assert printable_output(text) == "\x1b[1;31mred\x1b[0m up \\x1b]0;owned\\x07"
    assert plain_output(text) == "red up \\x1b]0;owned\\x07"
    assert "\x1b" not in printable(text)
