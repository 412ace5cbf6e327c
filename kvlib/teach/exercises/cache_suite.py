"""Judge a learner's cache class: rows that can be read by eye, then every layer of a small model."""

import gc
import weakref

from kvlib.teach.exercises.contract import (
    NOT_ATTEMPTED,
    NotAttempted,
    Verdict,
    correct,
    not_yet,
    show,
    trying,
)

BATCH, HEADS, DIM = 3, 4, 8  # all different, and none a length below, so that a mix-up shows
STEPS = (1, 1, 5)  # rows of each update: two decode steps, then a chunk
SHARED = (
    "two caches share one store, so each layer would read the rows of all others: make it in __init__, on "
    "self, not in the class body"
)
AXES = ("the batch", "the KV heads", "the tokens", "the numbers of one row")


def judge_cache(candidate, most: int = 64) -> Verdict:
    """Say whether `candidate()` makes a cache that a model can run on, and if not, what is wrong.

    It is filled with `most` rows, for which it must have room.
    """
    checks = (_check_new, _check_rows, _check_apart, _check_dtype, _check_gradient, _check_model)
    for check in checks:
        if (verdict := check(candidate)) is not None:
            return verdict
    if (verdict := _check_many(candidate, most)) is not None:
        return verdict
    return correct(
        f"{sum(STEPS)} rows in updates of {', '.join(map(str, STEPS))}, two caches kept apart, no "
        "gradient; on a small model the logits of the full pass, in one pass, in chunks and one "
        "by one, and the text of a batch of unequal lengths"
    )


def _check_new(candidate) -> Verdict | None:
    """Judge a new cache: what it can do, and that it is empty."""
    import torch

    with trying("MyKVCache(), before any row"):
        cache = candidate()
        length = getattr(cache, "seq_len", None)
    if not hasattr(type(cache), "seq_len") and "seq_len" not in getattr(cache, "__dict__", {}):
        return not_yet(f"MyKVCache() made {show(cache)}, which has no seq_len")
    if not callable(getattr(cache, "update", None)):
        return not_yet(f"MyKVCache() made {show(cache)}, which has no method update")
    if length is ...:
        if _update(cache, _rows(torch, 1), 0) is ...:
            raise NotAttempted
        return Verdict(NOT_ATTEMPTED, "`update` is written, `seq_len` is still a `...`")
    if callable(length):
        return not_yet(
            "`seq_len` is a method: the model reads `cache.seq_len` without calling it. Put "
            "@property above it"
        )
    if any(isinstance(x, list | dict | torch.Tensor) and len(x) for x in vars(type(cache)).values()):
        return not_yet(SHARED)  # the class was filled by an earlier check
    if length != 0 or type(length) is not int:
        return not_yet(f"a new cache holds nothing: its seq_len must be 0, it is {show(length)}")
    return None


def _check_rows(candidate) -> Verdict | None:
    """Judge what each update returns, and the length after it."""
    import torch

    cache = candidate()
    wanted, returned = None, []
    for call, num_new in enumerate(STEPS, 1):
        new = _rows(torch, num_new, start=sum(STEPS[: call - 1]))
        wanted = new if wanted is None else [torch.cat(pair, 2) for pair in zip(wanted, new)]
        handed = [x.clone() for x in new]
        given = _update(cache, handed, wanted[0].shape[2] - num_new)
        if given is ...:
            return Verdict(NOT_ATTEMPTED, "`seq_len` is written, `update` still returns `...`")
        if isinstance(given, torch.Tensor) or not isinstance(given, tuple | list):
            return not_yet(f"update must return two tensors, (k, v); it returns {_about(given)}")
        if len(given) != 2:
            return not_yet(f"update must return two tensors, (k, v); it returns {len(given)} things")
        with trying(f"seq_len after {wanted[0].shape[2]} rows"):
            length = cache.seq_len
        wrong = _rows_mistake(torch, given, wanted, new, cache) or _length_mistake(
            length, call, wanted[0].shape[2]
        )
        if wrong:
            return not_yet(wrong)
        if not all(_equal(torch, x, y) for x, y in zip(handed, new)):
            return not_yet("update changes k_new or v_new, which it was given: leave them as they are")
        returned.append((given, wanted))
    for call, (given, then) in enumerate(returned, 1):
        if not all(_equal(torch, x, y) for x, y in zip(given, then)):
            return not_yet(
                f"a later update changes the rows that update {call} returned: append behind them, and "
                "hand out no buffer that is written over"
            )
    return None


def _update(cache, new, held: int):
    """Call update; a crash inside is told with what it was given."""
    with trying(f"update(k_new, v_new), each of shape {tuple(new[0].shape)}, after {held} rows"):
        return cache.update(*new)


def _check_dtype(candidate) -> Verdict | None:
    """Judge one sequence with one KV head, in 16 bits."""
    import torch

    cache = candidate()
    rows = [torch.arange(20.0).view(1, 1, 5, 4).bfloat16(), -torch.arange(20.0).view(1, 1, 5, 4).bfloat16()]
    for start, stop in ((0, 1), (1, 5)):
        given = _update(cache, [x[:, :, start:stop] for x in rows], start)
        for name, x, row in zip("kv", given, rows):
            told = f"one sequence, one KV head, {stop - start} rows after {start}, in bfloat16"
            if tuple(x.shape) != (1, 1, stop, 4):
                return not_yet(
                    f"{told}: {name} has the shape {tuple(x.shape)}, not {(1, 1, stop, 4)}. Keep all four "
                    "axes, also those of length 1"
                )
            if x.dtype != row.dtype:
                return not_yet(f"{told}: {name} comes back in {x.dtype}. Rows keep the dtype they came in")
    return None


def _check_many(candidate, most: int) -> Verdict | None:
    """Judge many rows: single ones, a long chunk, and single ones again."""
    import torch

    cache, singles = candidate(), most // 4 if most < 300 else 75
    k, v = (x[:1, :1] for x in _rows(torch, most))
    start = 0
    for size in (*[1] * singles, most - singles - 3, 1, 1, 1):
        start += size
        given = _update(cache, [x[:, :, start - size : start] for x in (k, v)], start - size)
        if all(_equal(torch, x, y[:, :, :start]) for x, y in zip(given, (k, v))):
            continue
        rows = given[0].shape[2]
        if rows < start and _equal(torch, given[0], k[:, :, start - rows : start]):
            return not_yet(
                f"after {start} rows only the newest {rows} come back: a query needs all of them, from the "
                "first token on"
            )
        return not_yet(f"few rows are right, but after {start} they are not those that were appended")
    if cache.seq_len != most:
        return not_yet(f"after {most} tokens seq_len is {show(cache.seq_len)}")
    return None


def _rows_mistake(torch, given, wanted, new, cache) -> str | None:
    """Say what is wrong with the rows that an update returned, or None."""
    num_new, total = new[0].shape[2], wanted[0].shape[2]
    held = total - num_new
    after = f"after {held} row{'s' * (held > 1)} and {num_new} more" if held else "in the first update"
    if any(x is None or _is_empty(x) for x in given):
        return (
            f"{after}, update returns {_about(given[0])}: append first and return then. A token "
            "attends to itself too, so its own row must be there"
        )
    if not all(isinstance(x, torch.Tensor) for x in given):
        return f"{after}, update must return tensors; it returns {_about(given[0])}"
    if all(_equal(torch, x, y) for x, y in zip(given, wanted)):
        return None
    shape = tuple(given[0].shape)
    if given[0].dim() == 5:
        return f"{after}, the shape is {shape}: `stack` makes a new axis, `cat` extends one"
    if shape != tuple(given[1].shape):
        return f"{after}, k has shape {shape} and v {tuple(given[1].shape)}: append to both"
    if shape != tuple(wanted[0].shape):
        return _shape_mistake(torch, shape, given, wanted, new, cache, after)
    if _equal(torch, given[0], wanted[0]) and _equal(torch, given[1], wanted[0]):
        return f"{after}, v holds the keys: store v_new for the values, not k_new"
    if _equal(torch, given[0], wanted[1]) and _equal(torch, given[1], wanted[0]):
        return f"{after}, k and v come back the wrong way round: return k first"
    if total > num_new and _equal(torch, given[0][:, :, :num_new], new[0]):
        return f"{after}, the new rows stand in front: they belong behind the old ones"
    which = "keys" if not _equal(torch, given[0], wanted[0]) else "values"
    return f"{after}, the shape is right and the {which} are not those that were appended"


def _shape_mistake(torch, shape, given, wanted, new, cache, after) -> str:
    num_new, total = new[0].shape[2], wanted[0].shape[2]
    held = total - num_new
    if held and shape == tuple(new[0].shape) and _equal(torch, given[0], new[0]):
        if cache.seq_len == total:
            return f"{after}, update returns only the new rows: a query needs all {total}"
        return f"{after}, the earlier rows are gone: append to what is held, do not replace it"
    if held and _equal(torch, given[0], wanted[0][:, :, :held]):
        return (
            f"{after}, update returns the {held} old ones: it returns before it appends, and the "
            "new token cannot attend to itself"
        )
    for axis, name in enumerate(AXES):
        if axis != 2 and held == num_new and shape == _grown(new[0].shape, axis):
            return (
                f"{after}, the shape is {shape}: that grew axis {axis}, {name}. Tokens are axis 2 of "
                "(B, KV, T, D)"
            )
    if shape == _grown(wanted[0].shape, 2, num_new):
        return f"{after}, update returns {shape[2]} rows: some were appended twice"
    return f"{after}, the shape must be {tuple(wanted[0].shape)}; it is {shape}"


def _length_mistake(length, call: int, total: int) -> str | None:
    """Say what is wrong with seq_len after `call` updates and `total` rows, or None."""
    if length is ...:
        return "`update` is right, `seq_len` is still a `...`"
    if type(length) is not int:
        return f"seq_len must be a plain Python int; it is {_about(length)}"
    if length == total:
        return None
    counts = {
        BATCH: "that counts the sequences of the batch",
        HEADS: "that counts the KV heads",
        DIM: "that is the head dimension",
        total - 1: "that is the index of the last token; the length is one more",
        total + 1: "that is one too many: the next token is not there yet",
    }
    if call == len(STEPS):
        counts[call] = "that counts the calls of update; count their rows"
        counts[STEPS[-1]] = "that counts the newest rows alone"
    meaning = counts.get(length, "count the rows along axis 2, the tokens")
    return f"after {total} token{'s' * (total > 1)} seq_len is {length}: {meaning}"


def _check_apart(candidate) -> Verdict | None:
    """Judge whether two caches, of two layers, know nothing of each other."""
    import torch

    first, second = candidate(), candidate()
    new, other = _rows(torch, 2), [-x for x in _rows(torch, 3)]
    _update(first, new, 0)
    if second.seq_len == 0:
        given = _update(second, other, 0)
        if all(_equal(torch, x, y) for x, y in zip(given, other)) and first.seq_len == 2:
            return None
    return not_yet(SHARED)


def _check_gradient(candidate) -> Verdict | None:
    import torch

    cache, sources = candidate(), []
    for held in range(2):
        source = [x.requires_grad_() for x in _rows(torch, 1)]
        given = _update(cache, [2 * x for x in source], held)
        sources += [weakref.ref(x) for x in source]
    if any(x.requires_grad for x in given):
        return not_yet(
            "the rows carry a gradient, so each step would keep the graph of all earlier ones "
            "alive: store k_new.detach() and v_new.detach()"
        )
    del given, source
    gc.collect()
    if any(source() is not None for source in sources):  # only a graph still holds them
        return not_yet(
            "the rows that come back carry no gradient, but those kept inside do, and with them the graph "
            "of every step: store k_new.detach(), not k_new"
        )
    return None


def _check_model(candidate) -> Verdict | None:
    """Judge the class where it will stand: in every layer of a model, against no cache at all."""
    import torch

    from kvlib.generation import generate

    model = small_model()
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(2)
        tokens = torch.randint(model.config.vocab_size, (2, 9))
        whole = model(tokens)  # (2, 9, V), the truth
        for split, name in [((9,), "one pass"), ((4, 3, 2), "chunks"), ((1,) * 9, "one by one")]:
            caches = model.make_caches(candidate)
            with trying(f"a model of {model.config.num_layers} layers, 9 tokens, {name}"):
                parts = [model(part, caches) for part in tokens.split(split, dim=1)]
            if not torch.allclose(torch.cat(parts, dim=1), whole, rtol=1e-9, atol=1e-9):
                return not_yet(
                    f"single updates are right, but in a model of {model.config.num_layers} layers, "
                    f"{name}, the logits differ from the full pass. Does a later update change rows "
                    "that were returned before, or does a cache remember another one?"
                )
        prompts = [[7, 3, 11, 5, 2], [4, 9]]
        with trying("a batch of two prompts, of 5 and 2 tokens, and 6 new ones"):
            written = generate(model, prompts, 6, cache=candidate)
        if written != generate(model, prompts, 6, cache=None):
            return not_yet("a batch of unequal lengths gets another text than without a cache")
    return None


def small_model():
    """Return a model of two layers in float64, with the same random weights every time."""
    import torch

    from kvlib.model import Model, ModelConfig

    config = ModelConfig(
        num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, hidden_size=32,
        intermediate_size=64, vocab_size=61, tie_embeddings=False,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        return Model(config, dtype=torch.float64)


def _rows(torch, num_new: int, start: int = 0) -> list:
    """Return k and v of shape (BATCH, HEADS, num_new, DIM): no number twice, values negative."""
    count = BATCH * HEADS * num_new * DIM
    k = torch.arange(count, dtype=torch.float64).view(BATCH, HEADS, num_new, DIM) + 1000.0 * start
    return [k + 1, -k - 1]


def _grown(shape, axis: int, by: int | None = None) -> tuple[int, ...]:
    return tuple(n + (n if by is None else by) * (i == axis) for i, n in enumerate(shape))


def _equal(torch, a, b) -> bool:
    return a.shape == b.shape and torch.equal(a.detach().double(), b.detach())


def _is_empty(value) -> bool:
    return getattr(value, "numel", lambda: 1)() == 0


def _about(value) -> str:
    shape = getattr(value, "shape", None)
    return f"a tensor of shape {tuple(shape)}" if shape is not None else show(value)
