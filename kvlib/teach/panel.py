"""What every teaching panel shares: a frame, a status line and a plain-text twin."""

import html
import re
from collections.abc import Callable, Sequence

import ipywidgets as widgets

from kvlib.lab.manners import Manners, status_line

RIGHT, WRONG, OPEN = "right", "wrong", "open"  # what a mark tells of an answer
_STYLE = """<style>
.kvlib-teach { border: 1px solid var(--jp-border-color1, #8a8a8a); border-radius: 4px;
  padding: 8px 14px; margin: 6px 0; }
.kvlib-teach .widget-html, .kvlib-teach .widget-html-content, .kvlib-teach p, .kvlib-teach li {
  color: var(--jp-content-font-color1, inherit); line-height: 1.5; }
.kvlib-teach .widget-html-content { white-space: normal; }
.kvlib-teach p, .kvlib-teach ul { margin: 4px 0; max-width: 80em; text-wrap: pretty; }
.kvlib-teach .kvlib-heading { font-weight: 600; font-size: 1.1em; }
.kvlib-teach code, .kvlib-teach pre { color: var(--jp-content-font-color1, inherit);
  background: var(--jp-layout-color2, rgba(128, 128, 128, 0.15)); padding: 1px 3px; }
.kvlib-teach pre { padding: 8px; overflow-x: auto; white-space: pre; line-height: 1.35; }
.kvlib-teach button.jupyter-button { white-space: normal; width: auto; height: auto;
  min-height: 30px; line-height: 1.4; padding: 4px 12px; text-align: left; overflow: visible;
  border: 1px solid var(--jp-border-color1, #8a8a8a); }
.kvlib-teach button.jupyter-button:focus-visible { outline-offset: 1px;
  outline: 2px solid var(--jp-brand-color1, #0072B2); }
.kvlib-teach input:focus-visible { outline: 2px solid var(--jp-brand-color1, #0072B2); }
.kvlib-teach .kvlib-said { padding-left: 8px;
  border-left: 4px solid var(--jp-brand-color1, #0072B2); }
.kvlib-teach button.kvlib-chosen { border-width: 2px; font-weight: 600;
  border-color: var(--jp-content-font-color1, #222); }
.kvlib-teach button.kvlib-chosen::before { content: "● "; }
.kvlib-teach .kvlib-right, .kvlib-teach button.kvlib-right { border-color: #2E9E6B; }
.kvlib-teach .kvlib-wrong, .kvlib-teach button.kvlib-wrong { border-color: #D55E00;
  border-left-style: double; border-left-width: 6px; }
.kvlib-teach .kvlib-open { border-color: #8a8a8a; border-left-style: dashed; }
.kvlib-teach .kvlib-right > p:first-child::before, .kvlib-teach button.kvlib-right::before {
  content: "✓ "; font-weight: 700; }
.kvlib-teach .kvlib-wrong > p:first-child::before, .kvlib-teach button.kvlib-wrong::before {
  content: "✗ "; font-weight: 700; }
.kvlib-teach .kvlib-open > p:first-child::before { content: "○ "; font-weight: 700; }
</style>"""


class Panel(widgets.VBox):
    """Frame some widgets under a heading, with a status line that a screen reader announces.

    A subclass gives `plain()`, the text shown where widgets are not: the same on every run.
    """

    def __init__(self, heading: str, *parts: widgets.Widget):
        self.status = status_line()
        title = widgets.HTML(_STYLE + f'<p class="kvlib-heading">{inline(heading)}</p>')
        super().__init__([title, *parts, self.status, Manners().hidden()])
        self.add_class("kvlib-panel")
        self.add_class("kvlib-teach")

    def plain(self) -> str:
        raise NotImplementedError

    def say(self, text: str, mark: str = "") -> None:
        """Put text into the status line, with a mark; a blank line in it starts a new paragraph."""
        self.status.value = as_said(text, mark)

    def guarded(self, handler: Callable) -> Callable:
        """Wrap an observer: its exception is shown in the status line and goes no further."""

        def run(*arguments):
            try:
                handler(*arguments)
            except Exception as error:
                self.say(
                    f"This panel failed with {type(error).__name__}: {error}. Run its cell again."
                )

        return run

    def button(self, text: str, action: Callable[[], None], tooltip: str = "") -> widgets.Button:
        """Make a button that runs `action`, guarded."""
        made = widgets.Button(
            description=text, tooltip=tooltip, layout=widgets.Layout(width="auto")
        )
        made.on_click(self.guarded(lambda _: action()))
        return made

    def option(self, text: str, action: Callable[[], None]) -> widgets.Button:
        """Make a button that is one of several to choose from: see `choose`."""
        made = self.button(text, action)
        made.add_class("kvlib-option")
        return made

    def _repr_mimebundle_(self, **kwargs):
        bundle = super()._repr_mimebundle_(**kwargs) or {}
        return {**bundle, "text/plain": self.plain()}

    def __repr__(self) -> str:
        return self.plain()


def choose(buttons: Sequence[widgets.Button], index: int, mark: str = "") -> None:
    """Show one option as the chosen one, and with a mark whether it is right."""
    for i, button in enumerate(buttons):
        for name in ("chosen", RIGHT, WRONG):
            button.remove_class(f"kvlib-{name}")
        if i == index:
            button.add_class("kvlib-chosen")
            if mark:
                button.add_class(f"kvlib-{mark}")


def as_said(text: str, mark: str = "") -> str:
    """Return the HTML of what a panel says, with a mark (RIGHT, WRONG, OPEN); "" for no text."""
    look = f"kvlib-said kvlib-{mark}" if mark else "kvlib-said"
    return f'<div class="{look}">{paragraphs(text)}</div>' if text else ""


def inline(text: str) -> str:
    """Escape text for HTML, with `code` between backticks."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", html.escape(text, quote=False))


def paragraphs(text: str) -> str:
    """Turn plain text into HTML: blank lines part paragraphs, "- " opens a list item."""
    blocks = []
    for block in re.split(r"\n\s*\n", text.strip()):
        lines = block.strip().splitlines()
        prose = [line for line in lines if not line.startswith("- ")]
        items = [line[2:] for line in lines if line.startswith("- ")]
        if prose:
            blocks.append(f"<p>{inline(' '.join(prose))}</p>")
        if items:
            blocks.append("<ul>" + "".join(f"<li>{inline(item)}</li>" for item in items) + "</ul>")
    return "".join(blocks)


def code(source: str) -> str:
    """Return source code as an HTML block."""
    return f"<pre><code>{html.escape(source.strip())}</code></pre>"
