"""What ipywidgets cannot say to a page: alt texts, pressed toggles, names of sliders, a status that lives.

One hidden widget in each panel sets these attributes in the browser. Where its script does not load,
the panel works without them.
"""

from __future__ import annotations

from pathlib import Path

import anywidget
import ipywidgets as widgets
import traitlets

HERE = Path(__file__).parent


class Manners(anywidget.AnyWidget):
    """The attributes of the panel that holds it; `words` are the alt texts of its pictures, in order."""

    _esm = (HERE / "manners.js").read_text("utf-8")
    words = traitlets.List(traitlets.Unicode()).tag(sync=True)

    def hidden(self) -> widgets.Box:
        """Return a box that keeps this widget off the screen, whatever becomes of it there."""
        return widgets.Box([self], layout={"display": "none"})


def status_line() -> widgets.HTML:
    """Return an empty line whose changes a screen reader announces."""
    line = widgets.HTML()
    line.add_class("kvlib-status")
    return line
