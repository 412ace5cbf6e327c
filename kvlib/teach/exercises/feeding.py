"""The exercise of the loop that feeds only the newest token, on a small real model."""

from kvlib.teach.exercises.contract import Exercise, NotAttempted, Verdict, correct, not_yet, show

PROMPT, NEW_TOKENS = (7, 3, 11, 5, 2), 6


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
            torch.manual_seed(1)
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
            raise ValueError("step() needs at least one token: the newest has not been fed yet")
        self.fed.append([int(token) for token in tokens])
        with torch.no_grad():
            logits = self.model(torch.tensor([self.fed[-1]]), cache)
        return int(logits[0, -1].argmax())


def _check_loop(candidate) -> Verdict:
    step = Step()
    tokens = list(PROMPT)
    for _ in range(NEW_TOKENS):  # the truth: recompute everything in each step
        tokens.append(step(tokens, None))
    wanted = tokens[len(PROMPT) :]
    step.fed = []
    cache = step.new_cache()
    given = candidate(step, cache, list(PROMPT), NEW_TOKENS)
    if not step.fed:
        return not_yet("`step` was never called")
    first, *later = step.fed
    sizes = f"the calls fed {', '.join(str(len(fed)) for fed in step.fed)} tokens"
    if first != list(PROMPT):
        return not_yet(
            f"the first call must feed the whole prompt, once: it is the prefill; {sizes}"
        )
    for number, fed in enumerate(later):
        newest = wanted[number : number + 1]
        if not newest:
            return not_yet(f"{NEW_TOKENS} new tokens take {NEW_TOKENS} calls; {sizes}")
        if len(fed) == 1 and fed == newest:
            continue
        if len(fed) == len(PROMPT) + number + 1:
            return not_yet(
                f"that feeds everything again: the cache holds the earlier tokens already; {sizes}"
            )
        if fed == list(PROMPT):
            return not_yet(
                "that feeds the prompt again: the cache holds it, and the new token is "
                f"missing; {sizes}"
            )
        if len(fed) > 1 and fed[-1:] == newest:
            return not_yet(
                f"only the newest token is not in the cache yet; the others come twice; {sizes}"
            )
        if len(fed) == 1:
            return not_yet(
                f"one token, but not the newest: call {number + 2} fed {fed[0]}, not the "
                f"{newest[0]} that call {number + 1} returned"
            )
        return not_yet(f"each later call needs the one token that the cache has not seen; {sizes}")
    rows = len(PROMPT) + NEW_TOKENS - 1
    if cache[0].seq_len != rows:
        return not_yet(
            f"the cache holds {cache[0].seq_len} rows; {rows} are needed for {NEW_TOKENS} new "
            "tokens"
        )
    if not isinstance(given, list | tuple) or [int(token) for token in given] != wanted:
        return not_yet(f"return the {NEW_TOKENS} new tokens, {wanted}; it returns {show(given)}")
    return correct(
        f"{sizes}, the text is that of the full recompute, and the cache holds {rows} rows"
    )


def _loop_source(feed: str) -> str:
    return (
        "def generate_with_cache(step, cache, prompt, max_new_tokens):\n"
        "    tokens = list(prompt)\n"
        "    feed = tokens                      # prefill: the whole prompt, once\n"
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
    minutes=7,
    difficulty=2,
    importance=3,
    name="generate_with_cache",
    task="""
`step(tokens, cache)` runs a small real model: it appends the K and V of `tokens` to the cache
and returns the next token. `tokens` is a list.

The loop below feeds the whole prompt first. Fill in the one line that says what every later
step must feed. The text must be that of a full recompute, and no token may be fed twice.""",
    hints=(
        "After a step, which tokens does the cache hold, and which one does it not hold yet?",
        "The token that `step` just returned has not been through the model.",
        "`step` takes a list. A list of one token is written with square brackets.",
    ),
    stub=_loop_source("..."),
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
    },
)
