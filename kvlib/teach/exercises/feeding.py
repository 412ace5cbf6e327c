"""The exercise of the loop that feeds only what the cache has not seen, on a small real model."""

from kvlib.teach.exercises.contract import Exercise, NotAttempted, Verdict, correct, not_yet, show
from kvlib.teach.exercises.watching import whole

# prompt, rows of it that the cache holds already, new tokens
CASES = (
    ((9, 20, 4, 31, 6, 17, 8, 25), 5, 6),  # first: here each wrong slice shows
    ((7, 3, 11, 5, 2), 0, 6),
    ((7, 3, 11, 5, 2), 4, 1),
)
SEED = 376  # with it each text has no token twice, so that a wrong one is never right by chance


class Step:
    """`step(tokens, cache)`: feed tokens to a small real model, get the greedy next token.

    Weights are random and the same every time. `fed` records what each call was given.
    """

    def __init__(self):
        import torch

        from kvlib.model import Model, ModelConfig

        config = ModelConfig(
            num_layers=2, num_heads=4, num_kv_heads=2, head_dim=8, hidden_size=32,
            intermediate_size=64, vocab_size=61, tie_embeddings=False,
        )  # fmt: skip
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            self.model = Model(config)
        self.fed: list[list[int]] = []

    def new_cache(self) -> list:
        """Return an empty cache: one KVCache per layer."""
        from kvlib.caches import KVCache

        return self.model.make_caches(KVCache)

    def __call__(self, tokens, cache) -> int:
        import torch

        if tokens is ...:
            raise NotAttempted
        if not isinstance(tokens, list | tuple):
            raise TypeError(f"step() takes a list of tokens, also for one: it got {show(tokens)}")
        if not tokens:
            raise ValueError("step() was given an empty list: feed it what the cache has not seen")
        read = [whole(token) for token in tokens]
        if None in read:
            raise TypeError(f"step() takes a list of tokens, whole numbers: it got {show(tokens)}")
        self.fed.append(read)
        with torch.no_grad():
            logits = self.model(torch.tensor([self.fed[-1]]), cache)
        return int(logits[0, -1].argmax())


def _check_loop(candidate) -> Verdict:
    for prompt, held, count in CASES:
        step, tokens = Step(), list(prompt)
        for _ in range(count):  # the truth: recompute everything in each step
            tokens.append(step(tokens, None))
        wanted = tokens[len(prompt) :]
        cache = step.new_cache()
        if held:
            step(list(prompt[:held]), cache)  # the turn before
        step.fed = []
        given = candidate(step, cache, held, list(prompt), count)
        mistake = _feeding_mistake(step.fed, list(prompt), held, wanted) or _text_mistake(
            given, cache[0].seq_len, len(prompt), wanted
        )
        if mistake:
            return not_yet(f"{mistake}; {_told(step.fed, len(prompt), held, count)}")
    return correct(
        "no token is fed twice, in a first turn and in a later one, and the text is that of the full "
        "recompute"
    )


def _told(fed, size: int, held: int, count: int) -> str:
    sizes = ", ".join(str(len(tokens)) for tokens in fed) or "none"
    return f"prompt of {size} tokens, held={held}, max_new_tokens={count}: the calls fed {sizes} tokens"


def _feeding_mistake(fed, prompt, held: int, wanted) -> str | None:
    """Say which call was fed something wrong, and what, or None."""
    if not fed:
        return "`step` was never called"
    first, *later = fed
    if first != prompt[held:]:
        if first == prompt:
            return f"the first call feeds the whole prompt, but the cache holds its first {held} tokens"
        if held and first == prompt[:held]:
            return "the first call feeds what the cache holds; what it has not seen comes after that"
        if held and first == prompt[held + 1 :]:
            return (
                f"the first call leaves out the token at position {held}: the cache holds positions 0 to "
                f"{held - 1}, so feed from `held` on"
            )
        if not held:
            return "with an empty cache the first call must feed the whole prompt, once: it is the prefill"
        return (
            "the first call must feed the tokens of the prompt that the cache does not hold, from "
            "`held` on"
        )
    for number, tokens in enumerate(later):
        newest, so_far = wanted[number : number + 1], prompt + wanted[: number + 1]
        if number + 1 == len(wanted):
            return f"{len(wanted)} new tokens take {len(wanted)} calls"
        if tokens == newest:
            continue
        if held and tokens == so_far[held:]:
            return (
                "`held` is what the cache held before the first call: by now it holds all but the newest "
                "token"
            )
        if tokens == so_far:
            return "that feeds everything again: the cache holds the earlier tokens already"
        if tokens in (prompt, prompt[held:]):
            return "that feeds the prompt again: the cache holds it, and the new token is missing"
        if len(tokens) > 1 and tokens[-1:] == newest:
            return "only the newest token is not in the cache yet; the others come twice"
        if len(tokens) == 1:
            return (
                f"one token, but not the newest: call {number + 2} fed {tokens[0]}, not the "
                f"{newest[0]} that call {number + 1} returned"
            )
        return "each later call needs the one token that the cache has not seen"
    return None


def _text_mistake(given, rows: int, size: int, wanted) -> str | None:
    """Say what is wrong with the rows held at the end, or with the text returned, or None."""
    if rows != size + len(wanted) - 1:
        return f"the cache holds {rows} rows; {size + len(wanted) - 1} are needed for the text"
    if not isinstance(given, list | tuple) or [whole(token) for token in given] != wanted:
        return f"return the {len(wanted)} new tokens, {wanted}; it returns {show(given)}"
    return None


def _loop_source(feed: str, first: str = "tokens[held:]") -> str:
    return (
        "def generate_with_cache(step, cache, held, prompt, max_new_tokens):\n"
        "    tokens = list(prompt)\n"
        f"    feed = {first}\n"
        "    for _ in range(max_new_tokens):\n"
        "        next_token = step(feed, cache)  # appends their K and V, returns the next token\n"
        "        tokens.append(next_token)\n"
        f"        feed = {feed}\n"
        "    return tokens[len(prompt):]\n"
    )


LOOP = Exercise(
    key="01-feed-one-token",
    lesson=1,
    title="Feed only what is new",
    minutes=8,
    difficulty=2,
    importance=3,
    name="generate_with_cache",
    task="""
`step(tokens, cache)` runs a small real model: it appends the K and V of `tokens` to the cache
and returns the next token. `tokens` is a list.

This is a later turn of a chat. The cache was kept, and holds the first `held` tokens of `prompt`: in
the first turn none of them, and never all. Fill in what the first call must feed, and what each later
call must. The text must be that of a full recompute, and no token may be fed twice.""",
    hints=(
        "Before each call, which tokens does the cache hold, and which does it not hold yet?",
        "Before the first call it holds `held` tokens of the prompt. After a call it holds everything "
        "but the token that `step` just returned, which has not been through the model.",
        "`tokens[n:]` is everything from position n on. `step` takes a list: a list of one token is "
        "written with square brackets.",
    ),
    stub=_loop_source("...", "..."),
    solution=_loop_source("[next_token]"),
    judge=_check_loop,
    changes=("step", "cache"),
    wrong={
        "feeds everything again": _loop_source("tokens"),
        "feeds the prompt again": _loop_source("list(prompt)"),
        "feeds the last two": _loop_source("tokens[-2:]"),
        "feeds the token before": _loop_source("[tokens[-2]]"),
        "feeds a number, not a list": _loop_source("next_token"),
        "feeds nothing": _loop_source("[]"),
        "returns the prompt too": _loop_source("[next_token]").replace("tokens[len(prompt):]", "tokens"),
        "feeds the whole prompt in a later turn": _loop_source("[next_token]", "tokens"),
        "feeds what is held": _loop_source("[next_token]", "tokens[:held] or tokens"),
        "feeds the last token of the prompt alone": _loop_source(
            "[next_token]", "tokens[-1:] if held else tokens"
        ),
        "feeds the first new token for ever": _loop_source("[tokens[len(prompt)]]"),
    },
)
