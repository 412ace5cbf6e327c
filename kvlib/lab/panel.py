"""What every panel with a picture shares: how it is shown where widgets are not, and how it speaks."""

import html

import ipywidgets as widgets

from kvlib.lab import style


class PicturePanel(widgets.VBox):
    """A box of controls around one picture and one status line.

    A subclass sets `picture` (with `image()`) and `status` (an HTML widget), and gives `summary()`:
    the panel in words, the same on every run.
    """

    def summary(self) -> str:
        raise NotImplementedError

    def _repr_mimebundle_(self, include=None, exclude=None, **kwargs):
        """Add the picture and the words, for viewers that show no widgets."""
        bundle = super()._repr_mimebundle_(include=include, exclude=exclude, **kwargs)
        data, *metadata = bundle if isinstance(bundle, tuple) else (bundle,)
        data = {**(data or {}), "text/plain": self.summary()}
        data["image/png"] = style.saved_png(self.picture.image())
        return (data, *metadata) if metadata else data

    def _write(self, text: str) -> None:
        """Put text into the status line, which a screen reader announces."""
        self.status.value = f'<p role="status" aria-live="polite">{html.escape(text)}</p>'
