"""The exercises of lesson 01: counting projections, an edited prompt, a loop with a cache."""

from kvlib.teach.exercises.contract import Exercise, Verdict, correct, not_yet, show
from kvlib.teach.exercises.feeding import LOOP


def projection_counts(T: int) -> tuple[int, int, int]:
    """Return position-level K/V projections without a cache, with one, and the redundant ones."""
    return T * (T + 1) // 2, T, T * (T - 1) // 2


def _check_counts(candidate) -> Verdict:
    for T in (7, 1, 2, 37, 2000, 0):
        given = candidate(T)
        if not isinstance(given, tuple | list) or len(given) != 3:
            return not_yet(
                f"return three numbers, (without, with_cache, redundant); for T={T} it gives "
                f"{show(given)}"
            )
        for name, number, wanted in zip(
            ("without", "with_cache", "redundant"), given, projection_counts(T), strict=True
        ):
            if number == wanted and not isinstance(number, float | bool):
                continue
            return not_yet(
                f"{_count_mistake(name, number, T)}; for T={T} `{name}` is {show(number)}"
            )
    return correct("T(T+1)/2 without a cache, T with one, and T(T-1)/2 of them redundant")


def _count_mistake(name: str, number, T: int) -> str:
    without, with_cache, redundant = projection_counts(T)
    wanted = {"without": without, "with_cache": with_cache, "redundant": redundant}[name]
    if number == wanted:  # and a float, or a bool
        return "counts are whole numbers: divide with `//`, as one factor of two neighbours is even"
    mistakes = {
        "without": [
            (
                T * T,
                "T x T counts every step as if it had the full length; step t has only t positions",
            ),
            (
                T * (T - 1) // 2,
                "one position per step is missing: step t projects the new position too",
            ),
            (T * (T + 1), "a K/V projection of a position counts once, K and V together"),
            (
                T,
                "that is the count with a cache: without one, step t projects all t positions",
            ),
        ],
        "with_cache": [
            (without, "with a cache, only the new position is projected in each step"),
            (2 * T, "a K/V projection of a position counts once, K and V together"),
            (T - 1, "the last position is projected as well: its step needs its own key"),
            (T + 1, "one step, one new position: T steps make no more than T"),
            (1, "that is one step; count all T of them"),
        ],
        "redundant": [
            (without, "the first time a position is projected is not redundant: take those T away"),
            (without + T, "redundant is what the cache saves: a difference, not a sum"),
            (T * T - T, "the difference is half of that: step t repeats t - 1 positions"),
            (T * T, "step t repeats the t - 1 positions before it, not T of them"),
        ],
    }
    for wrong, meaning in mistakes[name]:
        if number == wrong:
            return meaning
    return "write out T = 3 by hand, step by step, and count the positions that each step projects"


def _counts_source(without="T * (T + 1) // 2", with_cache="T", redundant="T * (T - 1) // 2") -> str:
    return (
        "def counts(T):\n"
        f"    without = {without}\n"
        f"    with_cache = {with_cache}\n"
        f"    redundant = {redundant}\n"
        "    return without, with_cache, redundant\n"
    )


COUNTS = Exercise(
    key="01-count-projections",
    lesson=1,
    title="Count the projections",
    minutes=8,
    difficulty=1,
    importance=3,
    name="counts",
    task="""
A sequence grows one position at a time, from 1 to T. Without a cache, step t projects all its t
positions to keys and values. With one, it projects the new position alone.

Count the position-level K/V projections over all T steps (K and V of one position in one layer
count as one):
- `without` a cache
- `with_cache`
- `redundant`: those of `without` that had been made before""",
    hints=(
        "Do T = 3 by hand: without a cache the steps project 1, then 2, then 3 positions.",
        "The sum 1 + 2 + ... + T: pair the first with the last, the second with the last but one.",
        "1 + 2 + ... + T = T(T + 1)/2. What is redundant is what a cache saves: the difference.",
    ),
    stub=_counts_source("...", "...", "..."),
    solution=_counts_source(),
    judge=_check_counts,
    wrong={
        "every step at full length": _counts_source(without="T ** 2"),
        "off by one": _counts_source(without="T * (T - 1) // 2"),
        "K and V counted apart": _counts_source(without="T * (T + 1)"),
        "floats": _counts_source(without="T * (T + 1) / 2"),
        "one step only": _counts_source(with_cache="1"),
        "first projections called redundant": _counts_source(redundant="without"),
        "T squared minus T": _counts_source(redundant="T * T - T"),
    },
)


EDIT_CASES = (
    ([5, 6, 7, 8, 4, 3], [5, 6, 9, 8, 4, 3], "an edit in the middle"),
    ([5, 6, 7, 8], [9, 6, 7, 8], "an edit at the start"),
    ([5, 6, 7], [5, 6, 9], "an edit at the end"),
    ([5, 6, 7, 8], [5, 9, 7, 3], "two edits"),
    ([5, 6, 7, 8], [5, 5, 6, 7, 8], "a token inserted"),
    ([5, 6], [5, 6, 7, 8], "an old prompt that the new one continues"),
    ([5, 6, 7, 8], [5, 6], "a new prompt that stops early"),
    ([5, 6, 7], [5, 6, 7], "equal prompts"),
    ([], [5, 6], "an empty old prompt"),
    ([5, 6], [], "an empty new prompt"),
    ([], [], "two empty prompts"),
)


def first_changed_position(tokens_a, tokens_b) -> int:
    """Return the first position (from 0) whose cached row is of no use after the edit."""
    position = 0
    while position < min(len(tokens_a), len(tokens_b)) and tokens_a[position] == tokens_b[position]:
        position += 1
    return position


def _check_edit(candidate) -> Verdict:
    for a, b, about in EDIT_CASES:
        given = candidate(list(a), list(b))
        wanted = first_changed_position(a, b)
        case = f"for {about}, {a} -> {b}, it gives {show(given)}"
        if given is None:
            return not_yet(
                f"it returns nothing where no token differs: the common part ends there; {case}"
            )
        if isinstance(given, bool) or not hasattr(given, "__index__"):
            return not_yet(f"return a position, a whole number; {case}")
        if given == wanted:
            continue
        shared = min(len(a), len(b))
        differing = [i for i in range(shared) if a[i] != b[i]]
        if given == wanted + 1:
            return not_yet(
                "that is one too far: positions count from 0, and the edited one has changed; "
                f"{case}"
            )
        if given == wanted - 1:
            return not_yet(
                f"that is one too early: the position before the edit is untouched; {case}"
            )
        if given == shared - len(differing):
            return not_yet(
                "equal tokens after the edit do not help: they saw the edited one, so K "
                f"differs; {case}"
            )
        if differing and given == differing[-1]:
            return not_yet(
                "that is the last difference; the first one already changes all that follow; "
                f"{case}"
            )
        if not differing and given == max(len(a), len(b)):
            return not_yet(
                f"rows exist for the shorter prompt only; nothing is shared past its end; {case}"
            )
        if not differing and given in (0, -1):
            return not_yet(f"nothing differs in the part they share: all of it can be kept; {case}")
        return not_yet(
            f"walk both lists from the start and stop at the first position that differs; {case}"
        )
    return correct("the common prefix: every row before it can be kept, none after it")


def _edit_source(*lines: str) -> str:
    return "\n".join(
        ["def first_changed_position(tokens_a, tokens_b):", *(f"    {line}" for line in lines), ""]
    )


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
    stub=_edit_source("return ..."),
    solution=_edit_source(
        "for position, (a, b) in enumerate(zip(tokens_a, tokens_b)):",
        "    if a != b:",
        "        return position",
        "return min(len(tokens_a), len(tokens_b))",
    ),
    judge=_check_edit,
    wrong={
        "no answer where nothing differs": _edit_source(
            "for position, (a, b) in enumerate(zip(tokens_a, tokens_b)):",
            "    if a != b:",
            "        return position",
        ),
        "off by one": _edit_source(
            "for position, (a, b) in enumerate(zip(tokens_a, tokens_b), 1):",
            "    if a != b:",
            "        return position",
            "return min(len(tokens_a), len(tokens_b))",
        ),
        "counts equal tokens anywhere": _edit_source(
            "return sum(a == b for a, b in zip(tokens_a, tokens_b))"
        ),
        "the last difference": _edit_source(
            "changed = [i for i, (a, b) in enumerate(zip(tokens_a, tokens_b)) if a != b]",
            "return changed[-1] if changed else min(len(tokens_a), len(tokens_b))",
        ),
        "the longer length": _edit_source(
            "for position, (a, b) in enumerate(zip(tokens_a, tokens_b)):",
            "    if a != b:",
            "        return position",
            "return max(len(tokens_a), len(tokens_b))",
        ),
        "runs past the end": _edit_source(
            "position = 0",
            "while tokens_a[position] == tokens_b[position]:",
            "    position += 1",
            "return position",
        ),
    },
)

EXERCISES = (COUNTS, EDIT, LOOP)
