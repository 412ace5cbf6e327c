"""Numbers as words: three digits, never an exponent. A figure: its words, its theme, its least width."""

import base64
import io
import re

import pytest
from PIL import Image

from kvlib.lab import style
from kvlib.lab.style import format_ratio


@pytest.mark.parametrize(
    ("ratio", "text"),
    [(0.5, "0.5"), (1.04, "1"), (1.26, "1.3"), (9.96, "10"), (99.4, "99"), (99.7, "99.7"), (1123.4, "1,123")],
)
def test_a_ratio_has_no_exponent(ratio, text):
    assert format_ratio(ratio) == text


def test_a_figure_carries_its_words_and_a_rule_for_the_dark_theme():
    figure = style.new_figure(300, 200)
    said = 'A line "up" & down'
    data = style.Picture(figure, said)._repr_mimebundle_()
    assert set(data) == {"text/html", "text/plain"} and data["text/plain"] == said
    page = data["text/html"]
    assert 'alt="A line &quot;up&quot; &amp; down"' in page and "min-width: 240px" in page
    assert '[data-jp-theme-light="false"] .kvlib-figure' in page and "invert(0.9)" in page
    (encoded,) = re.findall(r"data:image/png;base64,([^\"]+)", page)
    assert Image.open(io.BytesIO(base64.b64decode(encoded))).size == (300, 200)


def test_a_saved_picture_has_the_card_that_all_have():
    figure = style.new_figure(600, 300)
    axes = figure.add_subplot(title="A title")
    axes.barh(range(3), range(1, 4), color=list(style.COLORS.values()))
    figure.canvas.draw()
    small = Image.open(io.BytesIO(base64.b64decode(style.saved_png(style.image_of(figure)))))
    assert len(small.getcolors()) <= 64
    assert small.convert("RGB").getpixel((0, 0)) == (0xF7, 0xF6, 0xF2)  # style.CARD
