"""What the pictures of all panels share: pixels of a figure, and panes drawn over what stands still."""

from __future__ import annotations

from PIL.Image import Image

from kvlib.lab import style
from kvlib.lab.panes import Pane


class PanelPicture:
    """Hold a figure of this many pixels; a subclass adds the artists and an `update` that draws."""

    def __init__(self, width: int, height: int):
        self.figure = style.new_figure(width, height, layout=None)
        self._drawn = False
        self.figure.canvas.mpl_connect("draw_event", self._note_drawn)

    def _note_drawn(self, event) -> None:
        self._drawn = True

    def image(self) -> Image:
        """Return the pixels as an RGB image, also of a figure that was never updated."""
        if not self._drawn:
            self.figure.canvas.draw()
        return style.image_of(self.figure)

    def png(self) -> bytes:
        """Return the picture as PNG bytes, quickly made."""
        return style.png(self.image())


class PanePicture(PanelPicture):
    """Draw panes whose artists move: what changes only with the axes' limits is kept as pixels.

    A subclass puts its panes into `panes`; bars and labels belong to one of them.
    """

    def __init__(self, width: int, height: int):
        super().__init__(width, height)
        self.panes: tuple[Pane, ...] = ()
        self._background = None

    def draw(self, moved: bool) -> None:
        """Restore the kept pixels and draw every moving artist over them; `moved`: limits did."""
        canvas = self.figure.canvas
        if moved or self._background is None:
            canvas.draw()
            self._background = canvas.copy_from_bbox(self.figure.bbox)
        canvas.restore_region(self._background)
        renderer = canvas.get_renderer()
        for pane in self.panes:
            for artist in sorted(pane.moving, key=lambda artist: artist.get_zorder()):
                artist.draw(renderer)

    def labels(self) -> list:
        """Return every text now shown, tick labels and axis labels too."""
        texts = [text for pane in self.panes for text in pane.moving]
        for pane in self.panes:
            texts += [*pane.axes.get_xticklabels(), *pane.axes.get_yticklabels()]
            texts += [pane.axes.xaxis.label, pane.axes.yaxis.label]
        return [text for text in texts if hasattr(text, "get_text") and text.get_text()]
