"""Make perplexity_text.txt, the text on which caches are compared: some of Python's own documentation.

    python assets/perplexity_text.py

The topics stand one behind the other, in this order, unchanged. Other Python versions word them a little
differently, so the text in this folder is kept and only made anew on purpose; it was made with
Python 3.11.7. Standard library only.

Source: `pydoc_data.topics` of CPython, what `help()` shows. Copyright 2001-2023 Python Software
Foundation; all rights reserved. Its licence, PSF License Version 2, is perplexity_text.LICENSE.txt.
"""

from pathlib import Path
from pydoc_data.topics import topics

TOPICS = "objects", "execmodel", "import", "with", "class"
VERSION = 3, 11, 7
PATH = Path(__file__).with_suffix(".txt")


def text() -> str:
    """Join the topics as this Python has them, an empty line between two."""
    return "\n\n".join(topics[name].strip() for name in TOPICS) + "\n"


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8", newline="\n")
    print(f"{PATH.name}: {len(text()):,} characters")
