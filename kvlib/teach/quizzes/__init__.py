"""The quick questions of each lesson, written as text in NN.md; no widgets.

A question is a heading with its key, the question itself, and its options: `- [x]` marks the right one,
`- [ ]` a wrong one, and the quoted lines below an option are the reason that a learner reads.
"""

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

HERE = Path(__file__).parent
OPTION = re.compile(r"^- \[([ x])\] +(\S.*?)\n((?:  >[^\n]*\n)+)", re.M | re.S)
MEANT = re.compile(r"^\s*(?:[-*+] *\[|\[[ xX]?\])", re.M)  # where a writer meant an option
LETTERS = "ABCDEFGH"


@dataclass(frozen=True)
class Option:
    """One answer on offer, with the reason why it is right or wrong."""

    text: str
    reason: str


@dataclass(frozen=True)
class Question:
    """A question; `right` is the index of the right option."""

    key: str
    stem: str
    options: tuple[Option, ...]
    right: int

    def letter(self, index: int) -> str:
        """Return the letter an option is shown under."""
        return LETTERS[index]


def read(text: str) -> tuple[Question, ...]:
    """Read the questions of a text. Raises ValueError, with a question's key, for one not well formed."""
    text = text.removeprefix("\ufeff").replace("\r\n", "\n").rstrip() + "\n"
    questions = tuple(map(_question, re.split(r"^## *", text, flags=re.M)[1:]))
    keys = [question.key for question in questions]
    if not keys or len(set(keys)) != len(keys):
        raise ValueError(f"Each question has its own heading `## key`; here: {', '.join(keys) or 'none'}.")
    return questions


def _question(part: str) -> Question:
    key, _, body = part.partition("\n")
    key = key.strip()
    if not re.fullmatch(r"[\w-]+", key):
        raise ValueError(f"{key or 'A question'}: a heading is `## key`, and the key one word.")
    found = list(OPTION.finditer(body))
    if len(found) != len(MEANT.findall(body)) or OPTION.sub("", body).strip().count("\n\n"):
        raise ValueError(f"{key}: an option is `- [ ] text` or `- [x] text`, then its reason as `  > text`.")
    right = [i for i, option in enumerate(found) if option[1] == "x"]
    if not 2 <= len(found) <= len(LETTERS) or len(right) != 1:
        raise ValueError(f"{key} has {len(found)} options, {len(right)} of them right; one of 2 to 8 is.")
    options = tuple(Option(_line(o[2]), _line(re.sub("^  >", "", o[3], flags=re.M))) for o in found)
    question = Question(key, _line(body[: found[0].start()]), options, right[0])
    different = {option.text for option in options}
    if not all([question.stem, *(o.reason for o in options)]) or len(different) < len(options):
        raise ValueError(f"{key}: the question and each reason need words, and no two options the same.")
    return question


def _line(text: str) -> str:
    return " ".join(text.split())


def names() -> list[str]:
    """Return the names of all quizzes: a lesson's number, with a letter where a lesson has two parts."""
    return sorted(path.stem for path in HERE.glob("*.md"))


def lessons() -> list[int]:
    """Return the numbers of the lessons that have questions."""
    return sorted({int(name[:2]) for name in names()})


def of_lesson(number: int) -> tuple[Question, ...]:
    """Return the questions of one lesson, of all its parts, in order; none for an unknown lesson."""
    return tuple(question for name in names() if int(name[:2]) == number for question in _of_quiz(name))


def find(key: str | int) -> tuple[Question, ...]:
    """Return the questions of one quiz ("01", 1 or "09b") or the one with this key. Raises ValueError."""
    text = f"{key:02d}" if type(key) is int else str(key)
    if text in names():
        return _of_quiz(text)
    lesson = of_lesson(int(text[:2])) if text[:2].isdecimal() else ()
    found = tuple(question for question in lesson if question.key == text)
    if not found:
        raise ValueError(f"There is no quiz {key!r}. Lessons with questions: {', '.join(names())}.")
    return found


@cache
def _of_quiz(name: str) -> tuple[Question, ...]:
    try:
        return read((HERE / f"{name}.md").read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{name}.md: {error}") from None
