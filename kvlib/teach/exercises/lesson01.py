"""The exercises of lesson 01: counting projections, an edited prompt, a loop with a cache."""

from kvlib.teach.exercises.contract import Exercise, by_part, cell
from kvlib.teach.exercises.feeding import LOOP
from kvlib.teach.exercises.reading import Counts, Whole
from kvlib.teach.exercises.watching import number, whole, why_not_whole

_WITHOUT, _WITH = "n * p + n * (n - 1) // 2", "p + n - 1"


def _counts_source(without=_WITHOUT, with_cache=_WITH, redundant="without - with_cache") -> str:
    return (
        "def counts(p, n):\n"
        f"    without = {without}\n"
        f"    with_cache = {with_cache}\n"
        f"    redundant = {redundant}\n"
        "    return without, with_cache, redundant\n"
    )


_NUMBERS = ("without", "with_cache", "redundant")
_MISTAKES = {
    "without": {
        "n * (p + n - 1)":
            "that counts every step as if the text had its final length; it grows by one token a step",
        "n * (p + n)": "that counts every step as if the text had its final length, with the last new token, "
            "which no step runs; it grows by one token a step",
        "n * p + n * (n + 1) // 2":
            "that is one position too many in each step: the first runs the prompt alone, p positions",
        "n * p": "the text grows: each step runs one position more than the one before",
        "(p + n - 1) * (p + n) // 2":
            "the prompt goes in at once, not token by token: the first step already runs p positions",
        "(p + n) * (p + n + 1) // 2": "the prompt goes in at once, not token by token: the first step "
            "already runs p positions, and none runs the last new token",
        "n * (n + 1) // 2": "every step runs the prompt again as well, p positions",
        "n * (n - 1) // 2": "every step runs the prompt again as well, p positions, also the first",
        "p + n - 1": "that is the count with a cache: without one, each step runs all positions",
        f"2 * ({_WITHOUT})": "a K/V projection of a position counts once, K and V together",
    },
    "with_cache": {
        _WITHOUT: "with a cache, a step projects only positions that no step has projected before",
        "p + n": "the last new token is chosen, but no step runs it: it has no key yet",
        "n": "the first step projects the whole prompt, p positions",
        "n - 1": "the first step projects the whole prompt, p positions; those after it project one each",
        "p": "the steps after the first project a position each",
        "1": "that is one step; count all n of them",
        "p + n - 2": "that is one too few: n steps are the prompt's, and n - 1 with one position each",
        f"2 * ({_WITH})": "a K/V projection of a position counts once, K and V together",
    },
    "redundant": {
        "without": "the first projection of a position is not redundant: take those away",
        "without + with_cache": "that should be what the cache saves: a difference, not a sum",
        "without - n": "take away the first projection of every position, those of the prompt too",
        "without - p": "take away the first projection of every position, those of new tokens too",
        "without - p - n": "that subtracts one too many: no step projects the last new token",
        "without // with_cache": "that is a ratio: count the projections themselves",
        "2 * (without - with_cache)": "a K/V projection of a position counts once, K and V together",
    },
}  # fmt: skip


def _fraction(given, wanted, p, n) -> str | None:
    """Say that the first wrong number is a ratio, or has a fraction."""
    name, first = next((name, a) for name, a, b in zip(_NUMBERS, given, wanted) if a != b)
    pairs = [(a / b, scale) for a in wanted for b in wanted if a != b and b for scale in (1, 100)]
    if any(ratio and abs(number(first) / ratio - scale) < 1e-3 for ratio, scale in pairs):
        return f"`{name}`: that is a ratio: count the projections themselves"
    return why_not_whole(first, f"`{name}`") if isinstance(first, float) else None


class _Three(Counts):
    """Three numbers, of which a fraction is read too: `_fraction` says what it is."""

    def read(self, result) -> list[int | float] | str:
        if not isinstance(result, tuple | list) or len(result) != 3:
            return f"return three numbers, ({', '.join(self.names)})"
        numbers = [number(part) if whole(part) is None else whole(part) for part in result]
        return numbers if all(n is not None and n - n == 0 for n in numbers) else super().read(result)


COUNTS = Exercise(
    key="01-count-projections",
    lesson=1,
    title="Count the projections of an answer",
    minutes=8,
    difficulty=1,
    importance=3,
    name="counts",
    task="""
A prompt of `p` tokens is given to the model, which writes `n` new ones; both are at least 1. A step
makes one new token. The first step runs the prompt, and the text is then one token longer in each
step. Without a cache, a step projects every position of the text so far. With one, it projects only
those that no step has projected before.

Count the position-level K/V projections in one layer over all n steps (K and V of one position count
as one):
- `without` a cache
- `with_cache`
- `redundant`: those of `without` that had been made before""",
    hints=(
        "Do p = 3 and n = 3 by hand: without a cache the steps project 3, then 4, then 5 positions. "
        "Which of these are new?",
        "Without a cache: n steps of p positions each, and 0 + 1 + ... + (n - 1) more. Pair the first "
        "with the last, the second with the last but one.",
        "0 + 1 + ... + (n - 1) = n(n - 1)/2. With a cache, each position that is run is projected once, "
        "and the last new token is not run. What is redundant is the difference.",
    ),
    stub=_counts_source("...", "...", "..."),
    solution=_counts_source(),
    answer=_Three(*_NUMBERS),
    cases=((5, 7), (1, 1), (3, 1), (1, 6), (38, 65), (40, 3), (1, 2000)),
    right="n p + n(n - 1)/2 without a cache, p + n - 1 with one, and the difference is redundant",
    otherwise=tuple(
        f"`{name}`: write out p = 3 and n = 3 by hand, step by step, and count the positions of each step"
        for name in _NUMBERS
    ),
    rule=_fraction,
    wrong=by_part(_counts_source, _MISTAKES),
)


# Made one by one, so that equal tokens are not one object.
_LARGE = [[int(token) for token in ["70001", "70002", "70003"]] for _ in range(2)]
EDIT_CASES = tuple((a, b, f"{about}, {a} -> {b}") for a, b, about in (
    ([5, 6, 7, 8, 4, 3], [5, 6, 9, 8, 4, 3], "an edit in the middle"),
    ([5, 6, 7, 8], [9, 6, 7, 8], "an edit at the start"),
    ([5, 6, 7], [5, 6, 9], "an edit at the end"),
    ([5, 6, 7, 8], [5, 9, 7, 3], "two edits"),
    ([5, 5, 5, 7], [5, 5, 9, 7], "an edit of a token that occurs three times"),
    ([5, 6, 7, 8], [5, 5, 6, 7, 8], "a token inserted"),
    ([5, 6, 7, 8], [5, 7, 8], "a token left out"),
    ([5, 6], [5, 6, 7, 8], "an old prompt that the new one continues"),
    ([5, 6, 7, 8], [5, 6], "a new prompt that stops early"),
    ([5, 6, 7], [5, 6, 7], "equal prompts"),
    ([], [5, 6], "an empty old prompt"),
    ([5, 6], [], "an empty new prompt"),
    ([], [], "two empty prompts"),
    (*_LARGE, "equal prompts of large token numbers"),
))  # fmt: skip
_WALK = ("for position, (a, b) in enumerate(zip(tokens_a, tokens_b)):", "    if a != b:")
_SHORTER = "return min(len(tokens_a), len(tokens_b))"


def _edit(*lines: str) -> str:
    return cell("def first_changed_position(tokens_a, tokens_b):", *lines)


def _walked(found="return position", end=_SHORTER) -> str:
    return _edit(*_WALK, f"        {found}", end)


EDIT = Exercise(
    key="01-first-changed-position",
    lesson=1,
    title="After an edit, what can be kept?",
    minutes=10,
    difficulty=2,
    importance=3,
    name="first_changed_position",
    task="""
A cache was filled with the prompt `tokens_a`. The prompt is edited to `tokens_b`. Under a
causal mask a position depends on the tokens up to itself, and on no later one.

Return the first position, counted from 0, whose K may differ after the edit. It is also the
number of rows of the cache that can be kept. Where one prompt is the beginning of the other, or
both are equal, that is the length of the shorter one.""",
    hints=(
        "Which positions saw the edited token? All from there on, even where their own token "
        "is the same.",
        "Walk through both lists together and stop at the first pair that differs.",
        "If no pair differs, the loop ends: return the length of the shorter list after it.",
    ),
    stub=_edit("return ..."),
    solution=_walked(),
    answer=Whole("the position"),
    cases=EDIT_CASES,
    right="the common prefix: every row before it can be kept, none after it",
    otherwise="walk both lists from the start and stop at the first position that differs",
    wrong={
        "it returns nothing where no token differs: the common part ends there": _walked(end=""),
        "that is one too far: positions count from 0, and the edited one has changed":
            _walked("return position + 1", f"{_SHORTER} + 1"),
        "that is one too early: the position before the edit is untouched":
            _walked("return position - 1", f"{_SHORTER} - 1"),
        "equal tokens after the edit do not help: they saw the edited one, so K differs":
            _edit("return sum(a == b for a, b in zip(tokens_a, tokens_b))"),
        "that is the last difference; the first one already changes all that follow": _edit(
            "changed = [i for i, (a, b) in enumerate(zip(tokens_a, tokens_b)) if a != b]",
            "if changed: return changed[-1]", _SHORTER,
        ),
        "rows exist for the shorter prompt only; nothing is shared past its end":
            _walked(end="return max(len(tokens_a), len(tokens_b))"),
        "nothing differs in the part they share: all of it can be kept": _walked(end="return 0"),
        "nothing differs in the part they share, so all of it can be kept: -1 is no position":
            _walked(end="return -1"),
        "compare tokens with `!=`, not with `is not`: equal numbers may be two objects":
            _walked().replace("!=", "is not"),
        "`index` finds where a token comes first, and it may come again: walk both lists from the start and "
        "stop at the first position that differs":
            _walked("return tokens_a.index(a)"),
    },
)  # fmt: skip

EXERCISES = (COUNTS, EDIT, LOOP)
