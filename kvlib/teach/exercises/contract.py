"""What an exercise is, and how an answer to it is judged without ever raising."""

import ast
import linecache
import re
import textwrap
from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass, field

from kvlib.teach.exercises.watching import Watched
from kvlib.teach.exercises.watching import show as show

CORRECT, NOT_YET, NOT_ATTEMPTED = "correct", "not yet", "not attempted"
LEVELS = {1: "easy", 2: "medium", 3: "hard"}
IMPORTANCE = {1: "optional", 2: "useful", 3: "essential"}


class NotAttempted(NotImplementedError):
    """Raised by a check that meets the `...` of an untouched stub."""


@dataclass(frozen=True, repr=False)
class Verdict:
    """A judged answer; true when correct."""

    status: str
    message: str = ""

    def __bool__(self) -> bool:
        return self.status == CORRECT

    def __str__(self) -> str:
        return f"{self.status}: {self.message}" if self.message else self.status

    def __repr__(self) -> str:
        return textwrap.fill(str(self), 76, break_long_words=False, break_on_hyphens=False)


def correct(message: str) -> Verdict:
    """Return the verdict of a right answer."""
    return Verdict(CORRECT, message)


def not_yet(message: str) -> Verdict:
    """Return the verdict of a wrong answer; the message says what is wrong."""
    return Verdict(NOT_YET, message)


@dataclass(frozen=True)
class Exercise:
    """One exercise; `name` is what the learner's cell defines, and `judge` judges it.

    `stub`, `solution` and each source in `wrong` define `name`; each mistake in `wrong` has its own
    message. An answer is tried on `cases` by `kvlib.teach.exercises.judge`: a case holds the arguments of a
    call and, if these say too little, what it is about; cases that need PyTorch are made by a function.
    `answer` reads a result; `right` is said to a right one, and to a wrong one the key in `wrong`, what
    `rule(given, wanted, *arguments)` returns, or `otherwise`, of which there is one for each number where a
    result has several. In all these words "{name}" stands for an argument, "{given}" and "{wanted}" for the
    results.

    An exercise that is no function of such cases has a `judge` of its own, which may raise whatever the
    learner's code raises. A function may change only the arguments that `changes` names.
    """

    key: str
    lesson: int
    title: str
    minutes: int
    difficulty: int
    importance: int
    name: str
    task: str
    hints: tuple[str, str, str]
    stub: str
    solution: str
    judge: Callable[[object], Verdict] | None = None
    wrong: dict[str, str] = field(default_factory=dict)
    changes: tuple[str, ...] = ()
    cases: tuple[tuple, ...] | Callable[[], list] = ()
    answer: object = None
    right: str = ""
    otherwise: str | tuple[str, ...] = ""
    rule: Callable | None = None

    def __post_init__(self):
        if len(self.hints) != 3:
            raise ValueError(
                f"Exercise {self.key} needs exactly three hints, it has {len(self.hints)}."
            )
        if not self.key.startswith(f"{self.lesson:02d}-"):
            raise ValueError(f"The key {self.key} must begin with its lesson, {self.lesson:02d}-.")

    @property
    def arguments(self) -> tuple[str, ...] | None:
        """The names of a function's arguments; None for a class."""
        return _arguments(self.name, self.solution)

    def told(self, case: tuple) -> str:
        """Write the arguments of a call: "T=7, D=4"."""
        return ", ".join(f"{name}={show(value)}" for name, value in zip(self.arguments, case))

    def about(self) -> str:
        """Return difficulty, importance and minutes in words."""
        level, weight = LEVELS[self.difficulty], IMPORTANCE[self.importance]
        return f"Difficulty: {level}. Importance: {weight}. About {self.minutes} minutes."

    def check(self, candidate) -> Verdict:
        """Judge an answer. Never raises: an exception in the learner's code becomes a sentence."""
        if candidate is None or candidate is ...:
            return Verdict(NOT_ATTEMPTED)
        if not callable(candidate):
            return not_yet(f"pass `{self.name}` itself, without calling it: `.check({self.name})`")
        watched = None
        if self.arguments is not None:
            watched = Watched(candidate, self.arguments, self.changes, NotAttempted)
        try:
            verdict = self._judged(watched or candidate)
            trouble = watched.trouble() if watched and verdict else None
            return not_yet(trouble) if trouble else verdict
        except BaseException as error:
            try:
                return _explained(error, candidate, watched.open_call if watched else None)
            except Exception:  # an error that cannot even be printed
                return not_yet(f"your code raised {type(error).__name__}")

    def _judged(self, candidate) -> Verdict:
        if self.judge is not None:
            return self.judge(candidate)
        from kvlib.teach.exercises.judge import judge

        return judge(self, candidate)


def define(name: str, source: str, filename: str = "<cell>"):
    """Execute a cell's source and return what it defines under `name`."""
    namespace: dict = {}
    linecache.cache[filename] = (len(source), None, source.splitlines(keepends=True), filename)
    exec(compile(source, filename, "exec"), namespace)
    return namespace[name]


def cell(head: str, *lines: str) -> str:
    """Write a cell: what opens it, down to the line that ends in a colon, and the lines indented below."""
    return "\n    ".join([head, *lines]) + "\n"


def by_part(make: Callable[..., str], mistakes: dict[str, dict[str, str]]) -> dict[str, str]:
    """Return a `wrong` from {part of the answer: {source: words}}; `make(part=source)` writes a cell."""
    return {
        f"`{part}`: {words}": make(**{part: source})
        for part, sources in mistakes.items()
        for source, words in sources.items()
    }


@contextmanager
def trying(call: str):
    """Name, in the message of a crash inside, the call that crashed. For judges of classes."""
    try:
        yield
    except BaseException as error:
        error.add_note(_Call(call))
        raise


class Advice(str):
    """What to do about an exception, as a note on it; it ends the sentence of the crash."""


class _Call(str):
    """The call that an exception left, as a note on it."""


def _arguments(name: str, source: str) -> tuple[str, ...] | None:
    """Return the names of a function's arguments; None for a class."""
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef) and node.name == name:
            return tuple(argument.arg for argument in node.args.args)
    return None


def _explained(error: BaseException, candidate, call: str | None) -> Verdict:
    number, text = _learner_line(error, candidate)
    if isinstance(error, NotAttempted):
        return Verdict(NOT_ATTEMPTED)
    if isinstance(error, TypeError) and "ellipsis" in str(error):
        return Verdict(NOT_ATTEMPTED, f"there is still a `...` in your cell{_where(number, text)}")
    if isinstance(error, NotImplementedError) and ("NotImplementedError" in text or not str(error)):
        return Verdict(NOT_ATTEMPTED)
    said = " ".join(str(error).split())
    said = f" ({show_text(said)})" if said else ""
    where = f" in your cell{_where(number, text)}" if number else ""
    noted = (note for note in getattr(error, "__notes__", ()) if isinstance(note, _Call))
    call = next(noted, call)
    tried = f"; this was with {call}" if call else ""
    advice = next((f". {note}" for note in getattr(error, "__notes__", ()) if isinstance(note, Advice)), "")
    if isinstance(error, KeyboardInterrupt):
        return not_yet(f"you stopped it{where}{tried}. Does a loop there ever end?")
    if number is None:
        return not_yet(f"the check could not use your answer: {type(error).__name__}{said}{tried}")
    return not_yet(f"your code raised {type(error).__name__}{said}{where}{advice}{tried}")


def _where(number: int | None, text: str) -> str:
    code = text.split("  #")[0].strip()  # a comment may hold a backtick
    return f", line {number}" + (f": `{code}`" if code else "") if number else ""


def show_text(text: str, limit: int = 160) -> str:
    """Shorten an error's text, with no memory address in it."""
    text = re.sub(r" at 0x[0-9a-fA-F]+", "", text)
    return text if len(text) <= limit else text[: limit - 3] + "..."


def _learner_line(error: BaseException, candidate) -> tuple[int | None, str]:
    """Return number and text of the deepest line of the traceback in the learner's own cell."""
    files = {made.co_filename for made in _codes(candidate)}
    found, text = None, ""
    step = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code.co_filename in files:
            found = step.tb_lineno
            text = linecache.getline(step.tb_frame.f_code.co_filename, found).strip()
        step = step.tb_next
    return found, text


def _codes(candidate):
    parts = [candidate, *(vars(candidate).values() if isinstance(candidate, type) else ())]
    for part in parts:
        part = getattr(part, "__func__", getattr(part, "fget", part))
        made = getattr(part, "__code__", None)
        if made is not None:
            yield made
