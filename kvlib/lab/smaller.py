"""A panel of smaller caches: choose bits, or a window and sinks, and see bytes beside perplexity."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence

import ipywidgets as widgets

from kvlib.checks import check_whole
from kvlib.lab import style
from kvlib.lab.panel import PicturePanel
from kvlib.lab.smaller_picture import HEIGHT, WIDTH, SmallerPicture
from kvlib.lab.smaller_run import (
    BITS,
    FULL,
    QUANTISED,
    SINKS,
    WINDOW,
    WINDOWS,
    Choice,
    bytes_held,
    checked,
    drawable,
    dropped,
    reading,
)
from kvlib.perplexity import Perplexity

PAUSE_S = 0.01  # between two chunks, so that a click gets through



class SmallerPanel(PicturePanel):
    """Show the bytes a cache really holds beside the perplexity of a text that is read with it.

    `tokens` is the text. `found` gives what was measured before, by `Choice`; the rest is measured on
    request, a chunk at a time, and Stop ends it. A perplexity that is NaN or infinite is said and dropped.
    Raises ValueError for a text of fewer than 2 tokens and for a `choice` without a button.
    """

    def __init__(
        self, model, tokens: Sequence[int], *, found: Mapping[Choice, Perplexity] | None = None,
        choice: Choice | None = None, chunk_size: int = 32,
    ):  # fmt: skip
        if len(tokens) < 2:
            raise ValueError(f"a text of {len(tokens)} tokens predicts nothing; give at least 2")
        check_whole("chunk_size", chunk_size)
        choice = Choice() if choice is None else checked(choice)
        self.model, self.tokens, self.chunk_size = model, list(tokens), chunk_size
        given = dict(found or {})
        self.found: dict[Choice, Perplexity] = {c: f for c, f in given.items() if drawable(f)}
        self._bytes: dict[Choice, int] = {c: f.cache_bytes for c, f in given.items()}
        self._task, self._wanted = None, []
        self._notes = [dropped(c, f) for c, f in given.items() if c not in self.found]
        self.picture = SmallerPicture()
        self._make_controls(choice)
        super().__init__(
            [
                _row(self.kind, self.bits),
                _row(self.window, self.sinks),
                _row(self.measure_button, self.stop_button, self.progress),
            ],
            "kvlib-smaller",
            [(WIDTH, HEIGHT)],
        )
        self._guarded(self._show_notes)

    def _make_controls(self, choice: Choice) -> None:
        self.kind = _toggles(
            "Cache", [("full", FULL), ("quantised", QUANTISED), ("window", WINDOW)], choice.kind
        )
        self.bits = _toggles("Bits", [(str(b), b) for b in BITS], choice.bits or BITS[0])
        self.window = _toggles("Window", [(str(w), w) for w in WINDOWS], choice.window or WINDOWS[-1])
        sinks = 4 if choice.sinks is None else choice.sinks
        self.sinks = _toggles("Sinks", [(str(s), s) for s in SINKS], sinks)
        self.measure_button = widgets.Button(
            description="Measure", layout={"width": "110px"},
            tooltip="Read the text with the chosen cache, and with the full one where that is not known yet",
        )  # fmt: skip
        self.stop_button = widgets.Button(
            description="Stop", layout={"width": "80px"}, disabled=True,
            tooltip="Stop reading; what was measured before stays",
        )  # fmt: skip
        self.progress = widgets.FloatProgress(min=0, max=1, layout={"width": "240px", "visibility": "hidden"})
        for control in (self.kind, self.bits, self.window, self.sinks):
            control.observe(lambda _: self._guarded(self._show), "value")
        self.measure_button.on_click(lambda _: self._guarded(self._measure_clicked))
        self.stop_button.on_click(lambda _: self._guarded(self.stop))

    # For a cell ---------------------------------------------------------------------------------

    def choice(self) -> Choice:
        """Return what the controls say now."""
        if self.kind.value == QUANTISED:
            return Choice(QUANTISED, bits=self.bits.value)
        if self.kind.value == WINDOW:
            return Choice(WINDOW, window=self.window.value, sinks=self.sinks.value)
        return Choice()

    def measure(self, choice: Choice) -> Perplexity:
        """Read the text with this cache now, unless it is known, and return what was found.

        Raises ValueError where its perplexity is no finite number.
        """
        self._want(choice)
        for _ in self._jobs():
            pass
        if choice not in self.found:
            raise ValueError(" ".join(self._notes))
        return self.found[choice]

    def stop(self) -> None:
        """Stop reading; what was measured before stays."""
        self._wanted = []
        if not self.stop_button.disabled:
            self._notes = ["Stopped."]
        self._show_notes()

    def summary(self) -> str:
        """Return the panel in words, without anything measured: the same on every machine."""
        return (
            f"Smaller caches: choose full, quantised to 8 or 4 bits, or a window of {WINDOWS[0]} to "
            f"{WINDOWS[-1]} tokens with 0 to {SINKS[-1]} sinks, and see the bytes held beside the perplexity "
            f"of a text of {len(self.tokens):,} tokens. Run this cell to use the controls."
        )

    # Measuring ----------------------------------------------------------------------------------

    def _measure_clicked(self) -> None:
        self._want(self.choice())
        if not self._wanted:
            self._show("That is measured already.")
            return
        try:
            loop = asyncio.get_running_loop()
        except RuntimeError:  # no event loop, no clicks either: read it now
            for _ in self._jobs():
                pass
            return
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._work())

    def _want(self, choice: Choice) -> None:
        """Ask for a choice, and for the full cache it is compared with."""
        self._notes = []
        for each in (Choice(), choice):
            if each not in self.found and each not in self._wanted:
                self._wanted.append(each)

    async def _work(self) -> None:
        try:
            for _ in self._jobs():
                await asyncio.sleep(PAUSE_S)
        except Exception as error:
            self._wanted = []
            self._failed(error)

    def _jobs(self) -> Iterator[None]:
        """Read what is wanted, chunk by chunk, until nothing is left or Stop was pressed."""
        try:
            while self._wanted:
                now = self._wanted[0]
                for step in reading(self.model, self.tokens, now.cache, self.chunk_size):
                    if not self._wanted or self._wanted[0] is not now:
                        break
                    if isinstance(step, Perplexity):
                        self._keep(now, step)
                        self._wanted.pop(0)
                    else:
                        self._show_progress(now, step)
                    yield
                self._show_notes()
        finally:
            self._wanted = []
            self._show_progress(None, 0)
            self._show_notes()

    def _keep(self, choice: Choice, found: Perplexity) -> None:
        """Keep what can be drawn; of anything else say that it is dropped."""
        self._bytes[choice] = found.cache_bytes
        if drawable(found):
            self.found[choice] = found
        else:
            self._notes.append(dropped(choice, found))

    # Showing ------------------------------------------------------------------------------------

    def _show_progress(self, now: Choice | None, share: float) -> None:
        """Show how far the reading is, or hide the bar where nothing is read."""
        self.stop_button.disabled = now is None
        self.progress.layout.visibility = "hidden" if now is None else "visible"
        self.progress.value = share
        if now is not None:
            self._write(f"Reading the text with {now.name()}: {share:.0%}. {self.sentence()}")

    def sentence(self) -> str:
        """Say what is held and what is lost, in one or two sentences."""
        choice, full = self.choice(), self.found.get(Choice())
        mine, held = self.found.get(choice), self._held(choice)
        whole = self._held(Choice())
        said = f"{choice.name()}: {style.format_bytes(held)} held after {len(self.tokens) - 1:,} tokens"
        if choice.kind != FULL:
            said += f", {_compared(held, whole)} the full cache in {self._precision()}"
        if mine is None:
            return f"{said}. Its perplexity is not measured yet: press Measure."
        said += f". Perplexity {mine.value:.2f}"
        if choice.kind == FULL or full is None:
            return f"{said}."
        return f"{said}, with the full cache {full.value:.2f}."

    def _title(self) -> str:
        choice, full, mine = self.choice(), self.found.get(Choice()), self.found.get(self.choice())
        if choice.kind == FULL:
            return "The full cache loses nothing; the others are compared with it"
        holds = f"{choice.name()} holds {self._beside()}"
        if mine is None or full is None:
            return f"{holds}; what it loses is not measured yet"
        more = mine.value / full.value - 1
        change = (
            f"rises by {more:.1%}" if more >= 0.0005 else f"falls by {-more:.1%}" if more <= -0.0005 else ""
        )
        return f"{holds}, and perplexity {change or 'stays the same'}"

    def _beside(self) -> str:
        compared = _compared(self._held(self.choice()), self._held(Choice()))
        return f"{compared} the full cache in {self._precision()}"

    def _precision(self) -> str:
        return str(self.model.dtype).removeprefix("torch.")

    def _held(self, choice: Choice) -> int:
        if choice not in self._bytes:
            self._bytes[choice] = bytes_held(self.model, len(self.tokens) - 1, choice, self.chunk_size)
        return self._bytes[choice]

    def _show(self, more: str = "") -> None:
        choice = self.choice()
        self.bits.disabled = choice.kind != QUANTISED
        self.window.disabled = self.sinks.disabled = choice.kind != WINDOW
        self.picture.update(choice, self.found, self._held(choice), self._title())
        self.image.value = style.png(self.picture.image())
        self._write(f"{self.sentence()} {more}".strip())

    def _show_notes(self) -> None:
        """Show the panel, and behind its sentence what became of the last reading."""
        self._show(" ".join(self._notes))


def _compared(held: int, whole: int) -> str:
    """Return how many bytes are held beside the full cache's; on a short text a window may hold more."""
    return f"{held / whole:.0%} of the bytes of"


def _toggles(label: str, options, value) -> widgets.ToggleButtons:
    return widgets.ToggleButtons(
        options=options, value=value, description=label, style={"button_width": "auto"}
    )


def _row(*children) -> widgets.HBox:
    return widgets.HBox(children, layout={"flex_flow": "row wrap", "align_items": "center"})
