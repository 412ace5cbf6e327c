"""What every teaching panel shares: a frame, a status line and a plain-text twin."""

import html
import re
from collections.abc import Callable

import ipywidgets as widgets

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
.kvlib-teach [role=status] { padding-left: 8px;
  border-left: 3px solid var(--jp-brand-color1, #0072B2); }
</style>"""


class Panel(widgets.VBox):
    """Frame some widgets under a heading, with a status line that a screen reader announces.

    A subclass gives `plain()`, the text shown where widgets are not: the same on every run.
    """

    def __init__(self, heading: str, *parts: widgets.Widget):
        self.status = widgets.HTML()
        title = widgets.HTML(_STYLE + f'<p class="kvlib-heading">{inline(heading)}</p>')
        super().__init__([title, *parts, self.status])
        self.add_class("kvlib-panel")
        self.add_class("kvlib-teach")

    def plain(self) -> str:
        raise NotImplementedError

    def say(self, text: str) -> None:
        """Put text into the status line; a blank line in it starts a new paragraph."""
        self.status.value = as_status(text)

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

    def _repr_mimebundle_(self, **kwargs):
        bundle = super()._repr_mimebundle_(**kwargs) or {}
        return {**bundle, "text/plain": self.plain()}

    def __repr__(self) -> str:
        return self.plain()


def as_status(text: str) -> str:
    """Return the HTML of a live region holding `text`, or "" for none."""
    return f'<div role="status" aria-live="polite">{paragraphs(text)}</div>' if text else ""


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
