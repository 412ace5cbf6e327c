"""The exercises of lesson 03: the learner's own cache, a chunk's mask, three numbers."""

from kvlib.teach.exercises.contract import Exercise, by_part
from kvlib.teach.exercises.own_cache import CACHE
from kvlib.teach.exercises.reading import Bools, Counts
from kvlib.teach.exercises.watching import whole, why_not_whole


def _mask_source(body: str) -> str:
    return f"import torch\n\n\ndef chunk_mask(num_new, num_keys):\n    return {body}\n"


def _below(diagonal: str, more="", shape="num_new, num_keys") -> str:
    return _mask_source(f"torch.ones({shape}, dtype=torch.bool).tril({diagonal}){more}")


_SHAPE = "the shape must be ({num_new}, {num_keys}), not "
_SHAPES = {
    _SHAPE + "({num_keys}, {num_keys}): only the new tokens have queries; the old ones' are gone":
        _below("", shape="num_keys, num_keys"),
    _SHAPE + "({num_keys}, {num_new}): rows are queries and columns are keys, not the other way round":
        _below("num_keys - num_new", ".T"),
    _SHAPE + "({num_new}, {num_new}): the new queries see the keys of earlier chunks too":
        _below("", shape="num_new, num_new"),
}  # fmt: skip
_DTYPE = "return bools, True where a query may look; the dtype is {given.dtype}"


def _mask_rule(given, wanted, num_new, num_keys) -> str | None:
    if given.shape == wanted.shape:
        return _DTYPE if given.dtype != wanted.dtype else None
    shape, sizes = str(tuple(given.shape)), {"num_new": num_new, "num_keys": num_keys}
    meant = (words for words in _SHAPES if f"not {shape}:" in words.format(**sizes))
    return next(meant, f"{_SHAPE}{shape}: a row for each new query, a column for each key")


MASK = Exercise(
    key="03-chunk-mask",
    lesson=3,
    title="The mask of a chunk",
    minutes=7,
    difficulty=2,
    importance=3,
    name="chunk_mask",
    task="""
A chunk of `num_new` tokens has just been appended to a cache, which now holds `num_keys` rows. The
new tokens are its last ones.

Return who may see whom: a bool tensor of shape (num_new, num_keys), True where query i may look at
key j. A token sees itself and everything before it, and nothing after it.""",
    hints=(
        "If the chunk starts at position s, its query i is token s + i, and sees keys 0 to s + i. "
        "What is s, from num_new and num_keys?",
        "`torch.ones(rows, columns, dtype=torch.bool).tril(diagonal)` is True at and below a "
        "diagonal. 0 is the diagonal that starts in the top left corner.",
        "The diagonal must end in the bottom right corner: shift it by num_keys - num_new.",
    ),
    stub=_mask_source("..."),
    solution=_below("num_keys - num_new"),
    answer=Bools("rows"),
    cases=tuple(
        (new, keys, f"{new} new of {keys} keys")
        for new, keys in ((3, 8), (1, 6), (4, 4), (2, 3), (1, 1), (5, 20))
    ),
    right="query i of a chunk that starts at s sees keys 0 to s + i, whatever the chunk",
    otherwise="the last query sees all keys, the one before it one fewer, and so on",
    rule=_mask_rule,
    wrong=_SHAPES
    | {
        _DTYPE: _below("num_keys - num_new", ".float()"),
        "that is the opposite: True where a query may look, False at its future":
            _below("num_keys - num_new", ".logical_not()"),
        "each query sees the whole chunk: the first new one must not see those after it":
            _below("num_keys"),
        "that is aligned at the top left: the first new query is not token 0. Of {num_keys} tokens the last "
        "{num_new} are new: it is the first of these, and sees its own key and all before": _below("0"),
        "the diagonal is shifted by the new tokens; it is the old ones that shift it": _below("num_new"),
        "a query must see its own key as well": _below("num_keys - num_new - 1"),
        "a query sees one key of its future": _below("num_keys - num_new + 1"),
        "the keys of earlier chunks are hidden: a query sees everything from key 0 on":
            _below("num_keys - num_new", ".triu(num_keys - num_new)"),
        "that looks ahead and not back: `triu` where `tril` is needed":
            _below("num_keys", ".triu(num_keys - num_new)"),
    },
)  # fmt: skip


def _numbers_source(
    logical="max(prompt_lengths) + n - 1",
    stored="logical if window is None else min(logical, window)",
    positions="[p + n - 1 for p in prompt_lengths]",
) -> str:
    return (
        "def three_numbers(prompt_lengths, n, window):\n"
        f"    logical = {logical}\n"
        f"    stored = {stored}\n"
        f"    positions = {positions}\n"
        "    return logical, stored, positions\n"
    )


_CHOSEN = "the last of the n tokens has been chosen, but not run: it has no row yet, so p + n - 1, not p + n"
_WINDOW = "logical if window is None else "
_MISTAKES = {
    "logical": {
        "max(prompt_lengths) + n": _CHOSEN,
        "max(prompt_lengths)": "that is after the prefill; decoding appends rows too",
        "max(prompt_lengths) + n - 2":
            "that is one row too few: n tokens take n - 1 decode steps after the prefill",
        "sum(prompt_lengths) + n - 1":
            "the sequences of a batch are padded, not joined: each has as many rows as the longest",
        "prompt_lengths[0] + n - 1": "the longest prompt decides, wherever it stands in the batch",
        "min(prompt_lengths) + n - 1": "every prompt is padded to the longest one",
    },
    "stored": {
        "min(logical + 1, window or logical + 1)": _CHOSEN,
        "min(max(prompt_lengths), window or logical)":
            "that is after the prefill; decoding appends rows too, until the window is full",
        "logical": "a window keeps the newest rows only, and drops what is older",
        _WINDOW + "window": "the window is not full yet: no more rows are stored than were appended",
        _WINDOW + "window + n - 1":
            "the window holds in decoding too: each new row pushes the oldest one out",
    },
    "positions": {
        "[logical] * len(prompt_lengths)":
            "that counts the padding: a short prompt's first token is its position 0",
        "[p + n for p in prompt_lengths]":
            "that is one too far: positions count from 0, so the n-th new token stands at p + n - 1",
        "[p + n - 2 for p in prompt_lengths]":
            "that is the newest token in the cache; the question is the one fed next",
        "[stored] * len(prompt_lengths)": "dropped rows do not renumber a text: positions go on counting, "
            "each sequence's from its own start",
        "[min(stored, p + n - 1) for p in prompt_lengths]":
            "dropped rows do not renumber a text: positions go on counting",
        "[logical + max(prompt_lengths) - p for p in prompt_lengths]":
            "padding is taken off the position, not added",
        "list(prompt_lengths)": "that is the first new token's position; the one fed next is the n-th",
    },
}  # fmt: skip


class _Three(Counts):
    """The result (logical, stored, positions)."""

    def read(self, result) -> list | str:
        if not isinstance(result, tuple | list) or len(result) != 3:
            return "return three things, (logical, stored, positions)"
        logical, stored, positions = result
        positions = positions.tolist() if getattr(positions, "ndim", 0) == 1 else positions
        if not isinstance(positions, tuple | list):
            return "`positions` is a list, a position for each sequence"
        named = [(logical, "the logical length, one for the whole batch,"), (stored, "the stored length")]
        if stored is None:
            return "`stored` is None: where `window` is None the caches keep all rows, as many as `logical`"
        for value, what in named + [(position, "each position") for position in positions]:
            if whole(value) is None:
                return why_not_whole(value, what)
        return [whole(logical), whole(stored), [whole(position) for position in positions]]


def _numbers_rule(given, wanted, prompt_lengths, n, window) -> str | None:
    if given[0] == wanted[0] and given[1] != wanted[1] and window is None:
        return "`stored`: without a window every row is kept"
    if given[:2] == wanted[:2] and len(given[2]) != len(prompt_lengths):
        return "`positions` is a list, a position for each sequence"
    return None


NUMBERS = Exercise(
    key="03-three-numbers",
    lesson=3,
    title="Three numbers",
    minutes=8,
    difficulty=2,
    importance=3,
    name="three_numbers",
    task="""
A batch of prompts, padded on the left to the longest, has been given `n` new tokens for each
sequence, n at least 1. `prompt_lengths` lists the prompts' lengths without padding. `window` is how many rows
the caches keep, or None where they keep all.

Return `(logical, stored, positions)`:
- `logical`: the tokens appended to a layer's cache so far, padding counted
- `stored`: the rows it holds
- `positions`: a list, for each sequence the rotary position of the token that is fed next""",
    hints=(
        "Which token of each sequence has been chosen and not yet run? It is the one fed next.",
        "The prefill appends as many rows as the longest prompt has tokens, and each decode "
        "step one. n tokens take the prefill and n - 1 steps.",
        "A window changes only what is stored, padding only the positions: the n-th new token "
        "of a prompt of p stands at position p + n - 1 of its own text.",
    ),
    stub=_numbers_source("...", "...", "..."),
    solution=_numbers_source(),
    answer=_Three("logical", "stored", "positions"),
    cases=(
        ([9, 5, 2], 4, 6),
        ([9, 5, 2], 4, None),
        ([5, 8, 3], 6, 10),
        ([3], 1, None),
        ([2, 7], 3, 100),
        ([7, 2], 1, 3),
    ),
    right="the longest prompt sets the rows, a window the stored ones, and each sequence's own text its "
    "positions",
    otherwise=(
        "`logical`: the prefill appends the longest prompt, each decode step one row more",
        "`stored`: no more than the window, and no more than were appended",
        "`positions`: a token's position is its index in its own text, from 0, without the padding",
    ),
    rule=_numbers_rule,
    wrong=by_part(_numbers_source, _MISTAKES),
)

EXERCISES = (CACHE, MASK, NUMBERS)
