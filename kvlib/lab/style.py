"""One look for every figure of the course: colours, markers, numbers, the card it is drawn on.

Figures are drawn on a soft light card with dark ink, which reads on a web page, on paper and in a
light notebook. In a dark notebook a rule of CSS turns the card dark and keeps the hues.
"""

import base64
import html
import io

import matplotlib
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from PIL import Image

from kvlib.grid import KINDS  # noqa: F401  (the order of colours and markers)

COLORS = {"MHA": "#0072B2", "GQA": "#009E73", "MQA": "#D55E00"}
TEXT_COLORS = {"MHA": "#005F96", "GQA": "#00714F", "MQA": "#A94A00"}  # 4.5:1 or more on CARD
MARKERS = {"MHA": "s", "GQA": "o", "MQA": "^"}

FLOOR = "#8A3F7B"  # one floor on its own; the lab draws three, dashed, in their kinds' colours
FLOOR_LINE = (0, (5, 2.5))
FLOOR_LINE_HEAVY = (0, (2.6, 1.3))  # the same dashes on a line twice as wide
WEIGHTS = "#6A6F78"
WEIGHTS_LINE = (0, (1.2, 1.8))
MEMORY = "#A02C3A"
GUESS = "#7A5A00"

CARD = "#F7F6F2"
INK = "#24272C"
MUTED = "#5A5F67"
HAIRLINE = "#C9C8C2"

RC = {
    "figure.facecolor": CARD, "savefig.facecolor": CARD, "axes.facecolor": CARD,
    "axes.edgecolor": MUTED, "axes.labelcolor": INK, "text.color": INK,
    "xtick.color": MUTED, "ytick.color": MUTED, "xtick.labelcolor": INK, "ytick.labelcolor": INK,
    "axes.spines.top": False, "axes.spines.right": False,
    "axes.titlelocation": "left", "axes.titlesize": 12, "axes.labelsize": 10,
    "xtick.labelsize": 9.5, "ytick.labelsize": 9.5, "font.size": 10, "legend.frameon": False,
    "axes.prop_cycle": matplotlib.cycler(color=[*COLORS.values(), FLOOR, GUESS, WEIGHTS]),
}  # fmt: skip

FIGURE_CSS = """
.kvlib-scroll { max-width: 100%; overflow-x: auto; }
.kvlib-figure { display: block; height: auto; max-width: 100%; border-radius: 6px; }
[data-jp-theme-light="false"] .kvlib-figure, .vscode-dark .kvlib-figure {
  filter: invert(0.9) hue-rotate(180deg); }
.jp-OutputArea-output pre { word-break: normal; overflow-wrap: break-word; }
@media print { .kvlib-figure { filter: none !important; } }
""".replace("\n", " ").strip()


def apply() -> None:
    """Make matplotlib draw every later figure of this process in the course's style."""
    matplotlib.rcParams.update(RC)


def new_figure(width: int = 900, height: int = 380, layout: str | None = "constrained") -> Figure:
    """Return an empty figure of this many pixels on the course's card, outside pyplot."""
    with matplotlib.rc_context(RC):
        size = (width / 100, height / 100)
        figure = Figure(figsize=size, dpi=100, facecolor=CARD, layout=layout)
        FigureCanvasAgg(figure)
    return figure


def image_of(figure: Figure) -> Image.Image:
    """Return what the figure's canvas holds now (draw it first) as an RGB image."""
    canvas = figure.canvas
    size = canvas.get_width_height()
    return Image.frombuffer("RGBA", size, canvas.buffer_rgba(), "raw", "RGBA", 0, 1).convert("RGB")


def png(image: Image.Image, colors: int | None = None) -> bytes:
    """Return the image as PNG bytes: fast to make, or with `colors` small to keep."""
    buffer = io.BytesIO()
    if colors is None:
        image.save(buffer, "PNG", compress_level=1)
    else:
        small = image.quantize(colors, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        palette, card = small.getpalette(), 3 * small.getpixel((0, 0))
        palette[card : card + 3] = image.getpixel((0, 0))  # not the mean of all that are near it
        small.putpalette(palette)
        small.save(buffer, "PNG", optimize=True)
    return buffer.getvalue()


class Picture:
    """Show a figure as one small PNG with a text alternative, the same on every run.

    `alt` says in words what the figure shows: for a screen reader, and as the plain-text output, which
    notebook tests compare. Keep measured numbers out of it.
    """

    def __init__(self, figure: Figure, alt: str):
        self.figure, self.alt = figure, alt

    def _repr_mimebundle_(self, include=None, exclude=None) -> dict[str, str]:
        self.figure.canvas.draw()
        return {"text/html": picture_html(image_of(self.figure), self.alt), "text/plain": self.alt}


def picture_html(image: Image.Image, alt: str, note: str = "") -> str:
    """Return a picture with its words as HTML: JupyterLab gives an image/png output no alt text.

    A narrow window shrinks it as far as its words stay legible, then scrolls it. `note` is a line under it.
    """
    width, height = image.size
    under = f"<p>{html.escape(note)}</p>" if note else ""
    return (
        f'<style>{FIGURE_CSS}</style><div class="kvlib-scroll" tabindex="0"><img class="kvlib-figure" '
        f'width="{width}" height="{height}" style="min-width: {least_width(width)}px" '
        f'alt="{html.escape(alt)}" src="data:image/png;base64,{saved_png(image)}"></div>{under}'
    )


def least_width(width: int) -> int:
    """Return the pixels down to which a picture may shrink: words of 8 points stay 9 pixels high."""
    return round(0.8 * width)


def saved_png(image: Image.Image) -> str:
    """Return the image in 64 colours as base64 text, the form a notebook file keeps."""
    return base64.b64encode(png(image, colors=64)).decode("ascii")


def format_bytes(count: float) -> str:
    """Return bytes as text with three digits at most; kB, MB, GB and TB are powers of 1000."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size * 0.9995:
            return f"{_three_digits(count / size)} {unit}"
    return f"{count:.0f} bytes"


def format_time(seconds: float) -> str:
    """Return a time as text with three digits at most, in microseconds, ms or s."""
    if seconds < 99.95e-6:
        return f"{_three_digits(seconds * 1e6)} µs"
    if seconds < 0.9995:
        return f"{_three_digits(seconds * 1e3)} ms"
    return f"{_three_digits(seconds)} s"


def format_tokens(count: int) -> str:
    """Return a power-of-two context length as short text: 512, 8k (k is 1024)."""
    return f"{count // 1024}k" if count >= 1024 and count % 1024 == 0 else str(count)


def format_ratio(ratio: float) -> str:
    """Return a ratio as text: 1.3, 12, 140."""
    return _three_digits(ratio) if ratio >= 99.5 else f"{ratio:.2g}"


def _three_digits(value: float) -> str:
    """Return 1,234, 123, 12.3 or 1.23, and below one two digits: 0.12."""
    if value <= 0:
        return "0"
    if value < 0.995:
        return f"{value:.2g}"
    if value >= 99.95:
        return f"{value:,.0f}"
    text = f"{value:.2f}" if value < 9.995 else f"{value:.1f}"
    return text.rstrip("0").rstrip(".")
