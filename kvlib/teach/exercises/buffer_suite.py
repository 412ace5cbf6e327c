"""Judge a learner's preallocated cache: its buffer first, then all that any cache must do."""

from contextlib import contextmanager

from kvlib.teach.exercises.cache_suite import judge_cache
from kvlib.teach.exercises.contract import NOT_ATTEMPTED, Verdict, correct, not_yet, trying
from kvlib.teach.exercises.watching import show

ROOM = 8  # tokens of the buffer
SHAPE = 2, 3, 4  # sequences, KV heads, numbers of a head
STEPS = (3, 1, 2)  # rows of each update: 6 of the 8 slots


def judge_buffer(candidate) -> Verdict:
    """Say whether `candidate(max_seq_len)` makes a cache that keeps to its buffer, or what is wrong."""
    for check in (_check_rows, _check_full, _check_first):
        with _no_old_rows():
            verdict = check(candidate)
        if verdict is not None:
            return verdict
    if not (verdict := judge_cache(lambda: candidate(64))):
        return verdict
    return correct(
        "one buffer at one address, views of the used rows, a refusal that leaves the buffer as it "
        "was; and in a model the logits and the text of the full pass"
    )


@contextmanager
def _no_old_rows():
    """Let `empty` return NaN: memory just freed may still hold the rows of an earlier buffer."""
    import torch

    before = torch.are_deterministic_algorithms_enabled()
    strict = not torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=not strict)


def _check_rows(candidate) -> Verdict | None:
    """Judge what updates return, and where it lies."""
    import torch

    cache, wanted, address, calls = candidate(ROOM), None, None, 0
    for num_new in STEPS:
        held, calls = sum(STEPS[:calls]), calls + 1
        after = f"after {held} row{'s' * (held != 1)} and {num_new} more" if held else "in the first update"
        new = _rows(torch, num_new, held)
        wanted = new if wanted is None else [torch.cat(pair, 2) for pair in zip(wanted, new)]
        passed = [x.clone() for x in new]
        with trying(f"an update of {num_new} row{'s' * (num_new != 1)}, {held} held, max_seq_len={ROOM}"):
            given = cache.update(*passed)
        if given is ...:
            return Verdict(NOT_ATTEMPTED)
        if not isinstance(given, tuple | list) or len(given) != 2:
            return not_yet(f"update must return two tensors, (k, v); it returns {show(given)}")
        if not all(isinstance(x, torch.Tensor) for x in given):
            return not_yet(f"{after}, update must return tensors; it returns {show(given[0])}")
        mistake = (
            _kind_mistake(given, new, after)
            or _rows_mistake(torch, given, wanted, new, after)
            or _length_mistake(cache.seq_len, wanted[0].shape[2], calls, after)
        )
        if mistake is None:
            here = [x.data_ptr() for x in given]
            mistake = _place_mistake(given, address, here, after)
            address = here
        if mistake is None and not all(map(torch.equal, passed, new)):
            mistake = f"{after}, update changes the rows that were passed to it; it may only read them"
        if mistake:
            return not_yet(mistake)
    return None


def _kind_mistake(given, new, after: str) -> str | None:
    """Say where what is returned differs in dtype or device from the rows given, or None."""
    for name, x, y in zip("kv", given, new):
        for what in ("dtype", "device"):
            if (held := getattr(x, what)) != (wanted := getattr(y, what)):
                return (
                    f"make the buffers like k_new in dtype and device, whatever these are: {after}, the "
                    f"new rows have the {what} {wanted} and the {name} that update returns has {held}"
                )
    return None


def _rows_mistake(torch, given, wanted, new, after: str) -> str | None:
    """Say what is wrong with the rows that an update returned, or None."""
    if all(_equal(torch, x, y) for x, y in zip(given, wanted)):
        return None
    shape, total, num_new = tuple(given[0].shape), wanted[0].shape[2], new[0].shape[2]
    held = total - num_new
    if len(shape) == 4 and shape[2] == ROOM and total != ROOM:
        return (
            f"{after}, update returns all {ROOM} slots: return the {total} used ones. Unwritten slots hold "
            "whatever was in that memory before"
        )
    if _equal(torch, given[0], wanted[0][:, :, :held]):
        what = f"the {held} old rows" if held else "no rows"
        return (
            f"{after}, update returns {what}: the slice ends where the new rows begin, so the new token "
            "cannot attend to itself"
        )
    if held and _equal(torch, given[0], new[0]):
        return f"{after}, update returns only the new rows: a query needs all {total}, from slot 0 on"
    if shape != tuple(wanted[0].shape):
        return f"{after}, the shape must be {tuple(wanted[0].shape)}; it is {shape}"
    if _equal(torch, given[0], wanted[0]) and _equal(torch, given[1], wanted[0]):
        return f"{after}, v holds the keys: write v_new into the buffer of the values"
    if held and not _equal(torch, given[0][:, :, :held], wanted[0][:, :, :held]):
        if _equal(torch, given[0][:, :, held:], new[0]):
            return (
                f"{after}, the new rows are there and the earlier ones are not: make the buffer once, in "
                "the first update alone"
            )
        if _equal(torch, given[0][:, :, held - 1], new[0][:, :, 0]):
            return (
                f"{after}, the new rows begin in slot {held - 1}, over the last token's: seq_len is already "
                "the index of the next one"
            )
        return (
            f"{after}, earlier rows have changed: the new ones were written over them. They belong after "
            f"the {held} held"
        )
    which = "keys" if not _equal(torch, given[0], wanted[0]) else "values"
    return f"{after}, the {which} of the new rows are not where the caller reads them, from slot {held} on"


def _length_mistake(length, total: int, calls: int, after: str) -> str | None:
    if length is ...:
        return "`update` is right, `seq_len` is still a `...`"
    if type(length) is not int:
        return f"{after}, seq_len must be a plain Python int; it is {show(length)}"
    if length == total:
        return None
    meaning = "add the number of new rows"
    if length == ROOM:
        meaning = "that is max_seq_len; the length counts what is written"
    elif length == calls:
        meaning = "that counts the calls of update; count their rows"
    return f"{after}, seq_len is {length} and {total} tokens were appended: {meaning}"


def _place_mistake(given, address, here, after: str) -> str | None:
    """Say what is wrong with where the returned rows lie, or None."""
    k = given[0]
    slot = k.shape[0] * k.shape[1] * k.shape[3] * k.element_size()
    if k.untyped_storage().nbytes() == k.shape[2] * slot and k.shape[2] != ROOM:
        return (
            f"{after}, the rows are right, and they are a copy of just {k.shape[2]} slots in memory of "
            f"their own. Return a view of a buffer of {ROOM}: copy only the new rows, into their slots"
        )
    buffers = {x.untyped_storage().data_ptr(): x.untyped_storage().nbytes() for x in given}
    if (slots := sum(buffers.values()) // (2 * slot)) > ROOM:
        return f"{after}, the buffers have {slots} slots: make them of max_seq_len, {ROOM}"
    if address is not None and here != address:
        return (
            f"{after}, the rows are right and lie at another address than before: the buffer was made "
            "anew. Make it once and write into it"
        )
    return None


def _check_full(candidate) -> Verdict | None:
    """Judge a buffer that fills to its last slot, and what is refused then."""
    import torch

    cache = candidate(ROOM)
    held = sum(STEPS)
    with trying(f"an update of {held} rows, 0 held, max_seq_len={ROOM}"):
        k, v = cache.update(*_rows(torch, held))
    before = [_whole_buffer(torch, x) for x in (k, v)]
    if mistake := _refusal_mistake(torch, cache, ROOM - held + 1, held, (k, v), before):
        return not_yet(mistake)
    try:
        with trying(f"an update of {ROOM - held} rows, {held} held, max_seq_len={ROOM}"):
            cache.update(*_rows(torch, ROOM - held, held))
    except ValueError as error:
        return not_yet(
            f"{held} rows and {ROOM - held} more fit a buffer of {ROOM} exactly, and update refused "
            f"them ({show(str(error))}). Only more than max_seq_len is too much"
        )
    before = [_whole_buffer(torch, x) for x in (k, v)]
    if mistake := _refusal_mistake(torch, cache, 1, ROOM, (k, v), before):
        return not_yet(mistake)
    return None


def _refusal_mistake(torch, cache, num_new: int, held: int, views, before) -> str | None:
    """Append what does not fit; say what is wrong with the refusal, or None."""
    what = f"{held} rows held, {num_new} more, room for {ROOM}"
    try:
        cache.update(*_rows(torch, num_new, 50))
    except ValueError as error:
        if not str(error).strip():
            return f"{what}: ValueError, but without a sentence. Say what does not fit"
    except Exception as error:
        return (
            f"{what}: {type(error).__name__}. Compare the lengths yourself, first of all, and raise a "
            "ValueError that says what did not fit"
        )
    else:
        if num_new == 1:
            return (
                f"{what}: no error, and the token is lost. PyTorch writes one row past the end without "
                "a word, so update has to raise"
            )
        return f"{what}: no error. Those rows do not fit: update has to raise a ValueError"
    if cache.seq_len != held:
        return f"{what}: refused, but seq_len is {show(cache.seq_len)} now. Raise before anything changes"
    if any(not torch.equal(_whole_buffer(torch, x), y) for x, y in zip(views, before)):
        return (
            f"{what}: refused, but the buffer has changed. Raise before anything is written; the buffer "
            "must be as it was"
        )
    return None


def _check_first(candidate) -> Verdict | None:
    """Judge a first update that is too long already, and a later one, with other rows, that fits."""
    import torch

    cache = candidate(2)
    for _ in range(2):
        try:
            with trying("a first update of 3 rows, max_seq_len=2"):
                cache.update(*_rows(torch, 3))
        except ValueError:
            continue
        return not_yet("a first update of 3 rows into a buffer of 2 goes through: check it as well")
    new = [x[:1].float() for x in _rows(torch, 2)]  # of other sizes: no buffer may have been made yet
    what = f"rows of shape {tuple(new[0].shape)} in {new[0].dtype}"
    if not _takes(torch, candidate(2), new):
        return not_yet(f"{what} go wrong in a cache of 2: any B, KV, t, D and dtype must work")
    if not _takes(torch, cache, new):
        return not_yet(
            "a first update is refused, but it made the buffers before: the next one, which fits and has "
            f"{what}, goes wrong. Raise first of all"
        )
    return None


def _takes(torch, cache, new) -> bool:
    """Say whether an empty cache appends these rows and returns them as they are."""
    try:
        given = cache.update(*(x.clone() for x in new))
        right = all(_equal(torch, x, y.double()) and x.dtype == y.dtype for x, y in zip(given, new))
    except Exception:
        return False
    return right and cache.seq_len == new[0].shape[2]


def _rows(torch, num_new: int, start: int = 0) -> list:
    """Return k and v, (2, 3, num_new, 4): no number twice in a cache, values negative."""
    batch_size, heads, dim = SHAPE
    slots = torch.arange(start, start + num_new, dtype=torch.float64)[None, None, :, None]
    heads = torch.arange(batch_size * heads).view(batch_size, heads, 1, 1)
    k = 1 + 1000 * slots + 10 * heads + torch.arange(dim)
    return [k, -k]


def _whole_buffer(torch, view):
    """Return a copy of all that lies in the memory of a view."""
    return torch.empty(0, dtype=view.dtype).set_(view.untyped_storage()).nan_to_num().clone()


def _equal(torch, a, b) -> bool:
    return a.shape == b.shape and torch.equal(a.detach().double(), b.detach())
