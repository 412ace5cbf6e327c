"""What every panel with a picture shares: how it is shown where widgets are not, and how it speaks."""

import html
from collections.abc import Sequence
from pathlib import Path

import ipywidgets as widgets

from kvlib.lab import style
from kvlib.lab.manners import Manners, status_line

LOOK = f"<style>{style.FIGURE_CSS}{Path(__file__).with_name('look.css').read_text('utf-8')}</style>"
AGAIN = "This is a picture of the panel. Run its cell to use it."


class PicturePanel(widgets.VBox):
    """A box of rows of controls over one picture, or its parts from left to right, and a status line.

    A subclass sets `picture` (with `image()`), gives the pixels of each part, and `summary()`: the
    panel in words, the same on every run. Where the window is narrow, the parts stand on each other.
    """

    def __init__(self, rows: Sequence[widgets.Widget], name: str, sizes: Sequence[tuple[int, int]]):
        self.images = [_image(width, height) for width, height in sizes]
        self.status = status_line()
        self._manners = Manners()
        pictures = widgets.HBox(self.images)
        pictures.add_class("kvlib-scroll")
        if len(self.images) > 1:
            pictures.add_class("kvlib-parts")
        super().__init__(
            [widgets.HTML(LOOK), *rows, pictures, self.status, self._manners.hidden()]
        )
        self.add_class("kvlib-panel")
        self.add_class("kvlib-pictured")
        self.add_class(name)

    @property
    def image(self) -> widgets.Image:
        """Return the picture's widget, the first where it has parts."""
        return self.images[0]

    def summary(self) -> str:
        raise NotImplementedError

    def _repr_mimebundle_(self, include=None, exclude=None, **kwargs):
        """Add the picture and the words, for viewers that show no widgets."""
        bundle = super()._repr_mimebundle_(include=include, exclude=exclude, **kwargs)
        data, *metadata = bundle if isinstance(bundle, tuple) else (bundle,)
        data = {**(data or {}), "text/plain": self.summary()}
        data["text/html"] = style.picture_html(self.picture.image(), self.summary(), AGAIN)
        return (data, *metadata) if metadata else data

    def _write(self, text: str) -> None:
        """Put text into the status line, which a screen reader announces, and under the picture's alt."""
        self.status.value = f"<p>{html.escape(text)}</p>"
        self._manners.words = [text]

    def _guarded(self, action) -> None:
        """Do what a control asks for; what goes wrong is said, as an observer's error shows nowhere."""
        try:
            action()
        except Exception as error:
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._write(f"{type(error).__name__}: {error} The panel still works: change a control.")


class SteppedPanel(PicturePanel):
    """A picture of one step of many, with a `slider` over them and Previous and Next beside it.

    A subclass gives `sentence()`, what is shown in words, and draws in `_show`, unless `_quiet`.
    """

    BEFORE = "There is no step before this."  # said at the first step
    BEHIND = "That was the last step."
    _quiet = False

    def sentence(self) -> str:
        raise NotImplementedError

    def _move(self, by: int) -> None:
        """Go on or back; at either end stay, so that a button keeps the keyboard's focus."""
        goal = self.slider.value + by
        if 0 <= goal <= self.slider.max:
            self.slider.value = goal
        else:
            self._write(f"{self.sentence()} {self.BEFORE if by < 0 else self.BEHIND}")

    def _end_at(self, last_step: int) -> None:
        """Let the slider end at another step; keep the one shown where there is one, and draw once."""
        self._quiet = True
        try:
            self.slider.value = min(self.slider.value, last_step)
            self.slider.max = last_step
        finally:
            self._quiet = False
        self._show()

    def _failed(self, error: Exception) -> None:
        self._write(f"This panel failed with {type(error).__name__}: {error}. Run its cell again.")


def _image(width: int, height: int) -> widgets.Image:
    """Return a place for a picture that shrinks as far as its words stay legible."""
    least = f"{style.least_width(width)}px"
    image = widgets.Image(
        format="png", width=width, height=height,
        layout={"width": "100%", "max_width": f"{width}px", "min_width": least, "height": "auto",
                "flex": f"1 1 {least}", "margin": "0"},
    )  # fmt: skip
    image.add_class("kvlib-figure")
    return image
