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
