"""A panel that appends token by token, by torch.cat and into a buffer, and counts what each moves."""

from __future__ import annotations

import ipywidgets as widgets

from kvlib.lab.appending_picture import HEIGHT, WIDTH, AppendingPicture
from kvlib.lab.appending_steps import Appending, Frame
from kvlib.lab.checks import one_of, whole_between
from kvlib.lab.panel import SteppedPanel

ROOMS = 12, 24, 48


class AppendingPanel(SteppedPanel):
    """A panel over room + 1 tokens; `kvlib`'s two caches append each, and every byte is counted.

    `room` is the buffer's max_seq_len, one of 12, 24 and 48, `step` the token it opens with. The bytes
    are those of one layer of SmolLM2 in float32. Raises ValueError for a room or step it does not have.
    """

    BEFORE, BEHIND = "There is nothing before it.", "The panel ends here; torch.cat could go on."

    def __init__(self, room: int = 24, step: int = 9):
        room = one_of("room", room, ROOMS)
        step = whole_between("step", step, 0, room + 1)
        self._made: dict[int, tuple[Appending, AppendingPicture]] = {}
        self._take(room)
        self.slider = widgets.IntSlider(
            value=step, min=0, max=self.run.last_step, description="Token", continuous_update=True,
            style={"description_width": "initial"}, layout={"width": "420px"},
        )  # fmt: skip
        self.previous = widgets.Button(description="Previous", tooltip="One token back")
        self.next = widgets.Button(description="Next", tooltip="Append one token")
        self.room = widgets.Dropdown(
            options=[(f"{n} tokens", n) for n in ROOMS], value=room, description="Room of the buffer",
            style={"description_width": "initial"}, layout={"width": "230px"},
        )  # fmt: skip
        row = [self.previous, self.next, self.slider, self.room]
        controls = widgets.HBox(row, layout={"flex_flow": "row wrap", "align_items": "center"})
        super().__init__([controls], "kvlib-appending", [(WIDTH, HEIGHT)])
        self.previous.on_click(lambda _: self._guarded(lambda: self._move(-1)))
        self.next.on_click(lambda _: self._guarded(lambda: self._move(1)))
        self.slider.observe(lambda _: self._guarded(self._show), "value")
        self.room.observe(lambda _: self._guarded(self._new_room), "value")
        self._show()

    def frame(self) -> Frame:
        """Return what the panel shows now."""
        return self.run.frames[self.slider.value]

    def sentence(self) -> str:
        """Return what the panel shows now, in words."""
        return self.run.sentence(self.frame())

    def summary(self) -> str:
        """Return the panel in words, the same on every run."""
        return (
            f"Two caches append, a buffer of {self.run.room} slots beside torch.cat. "
            f"{self.sentence()} "
            "Run this cell to step through it with Previous, Next or the slider."
        )

    def _take(self, room: int) -> None:
        """Make the run and the picture of a room, or take them up again."""
        if room not in self._made:
            run = Appending(room)
            self._made[room] = run, AppendingPicture(run)
        self.run, self.picture = self._made[room]

    def _new_room(self) -> None:
        """Take another buffer; the token stays, as far as there are that many."""
        self._take(self.room.value)
        self._end_at(self.run.last_step)

    def _show(self) -> None:
        if self._quiet:
            return
        self.picture.update(self.frame())
        self.image.value = self.picture.png()
        self._write(self.sentence())
