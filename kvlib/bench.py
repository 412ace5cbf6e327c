"""Measure what the library promises, against what no one here wrote: `python -m kvlib.bench`.

Two tables, made in one run. First the decode step of SmolLM2-135M in float32, batch 1, and that of
transformers' LlamaForCausalLM on the same weights with its DynamicCache and its StaticCache, ours both
operation by operation and by the C step; all take turns, so that a busy moment meets them all.
Then one layer's decode attention as a share of its floor, the larger of bytes over measured bandwidth
and operations over measured FLOP rate. Times are medians; quote the ratios.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from kvlib import model_file, native
from kvlib.attention import grouped_attention
from kvlib.caches import StaticKVCache
from kvlib.decoding import decoder, why_not
from kvlib.devices import best_device, device_name, synchronize
from kvlib.model import Model
from kvlib.timing import flop_rate, read_bandwidth
from kvlib.weights import load_smollm2

STEP_CONTEXTS = 64, 1024, 8000
ATTENTION_CONTEXTS = 4096, 32768
STEP_TARGETS = {"DynamicCache": 1.6, "StaticCache": 2.0}
NUM_HEADS, HEAD_DIM = 32, 128  # of the attention table: Llama 3.1 8B's
KINDS = {"MHA": 32, "GQA": 8, "MQA": 1}


def in_turn(calls: dict[str, Callable[[], object]], rounds: int, device) -> dict[str, float]:
    """Call each in turn, `rounds` times in runs of four; return the median seconds of each.

    A run's first call is not timed: it finds the processor's cache full of the others' weights,
    which a real text, step after step, does not.
    """
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    while len(next(iter(seconds.values()))) < rounds:
        for name, call in calls.items():
            call()
            for _ in range(3):
                synchronize(device)
                began = time.perf_counter()
                call()
                synchronize(device)
                seconds[name].append(time.perf_counter() - began)
    return {name: statistics.median(taken) for name, taken in seconds.items()}


def load_transformers(device):
    """Load the same file through transformers, which reads GGUF by itself."""
    try:
        import accelerate  # noqa: F401  (transformers reads GGUF with its help)
        import transformers
    except ImportError as error:
        raise SystemExit(
            f"The comparison needs the test tools ({error.name} is missing): install them by "
            "`pip install -r tests/requirements.txt`, or run with `--only attention`."
        ) from None
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    path = model_file.model_path()
    model = transformers.AutoModelForCausalLM.from_pretrained(
        str(path.parent), gguf_file=path.name, dtype=torch.float32
    )
    return model.eval().to(device)


@torch.no_grad()
def decode_steps(model: Model, theirs, seq_len: int, rounds: int) -> dict[str, float]:
    """Time one decode step after `seq_len` random rows, ours in every way and theirs; check they agree."""
    from transformers import DynamicCache, StaticCache

    room = seq_len + 4 * (rounds // 3 + 1)  # of every four steps three are timed
    dynamic = DynamicCache(config=theirs.config)
    static = StaticCache(config=theirs.config, max_cache_len=room)
    ways = [how for how in ("eager", "native") if why_not(model, how) is None]
    ours = {how: model.make_caches(lambda: StaticKVCache(max_seq_len=room)) for how in ways}
    config = model.config
    generator = torch.Generator().manual_seed(seq_len)
    shape = 1, config.num_kv_heads, seq_len, config.head_dim
    for i in range(config.num_layers):
        k, v = (torch.randn(shape, generator=generator).to(model.device) for _ in range(2))
        dynamic.update(k, v, i)
        static.update(k, v, i)
        for caches in ours.values():
            caches[i].update(k, v)
    token = torch.tensor([[5]], device=model.device)
    last: dict[str, Tensor] = {}

    def step(name: str, forward: Callable[[], Tensor]) -> Callable[[], None]:
        return lambda: last.__setitem__(name, forward())

    medians = in_turn(
        {
            "DynamicCache": step("dynamic", lambda: theirs(token, cache=dynamic).logits),
            "StaticCache": step("static", lambda: theirs(token, cache=static).logits),
            **{how: step(how, partial(decoder(model, ours[how], how), token)) for how in ways},
        },
        rounds,
        model.device,
    )
    for name in ("dynamic", "static"):
        for how in ways:
            torch.testing.assert_close(last[how], last[name][:, -1], rtol=1e-3, atol=1e-2)
    return medians


@torch.no_grad()
def attention_share(
    num_kv_heads: int, seq_len: int, device, rounds: int
) -> tuple[dict[str, float], float, str]:
    """Return (seconds of each way, the floor, what bounds it) of one layer's decode attention.

    Several layers' caches take turns, so that none stays in the processor's cache.
    """
    layer_bytes = 2 * num_kv_heads * seq_len * HEAD_DIM * 4
    layers = max(1, min(64, int(1e9 / layer_bytes)))
    q = torch.randn(1, NUM_HEADS, 1, HEAD_DIM, device=device)
    kv = []
    for _ in range(layers):
        rows = torch.randn(2, 1, num_kv_heads, seq_len, HEAD_DIM, device=device)
        kv.append(StaticKVCache(max_seq_len=seq_len).update(*rows))
    del rows

    def every_layer(attend: Callable[..., Tensor]) -> None:
        for k, v in kv:
            attend(q, k, v)

    ways = {"eager": grouped_attention}
    if torch.device(device).type == "cpu" and native.why_not() is None:
        ways["native"] = native.native_attention
    calls = {how: partial(every_layer, attend) for how, attend in ways.items()}
    seconds = {how: taken / layers for how, taken in in_turn(calls, rounds, device).items()}
    by_bytes = layer_bytes / read_bandwidth(device)
    flops = 4 * NUM_HEADS * seq_len * HEAD_DIM  # two products, a multiply and an add each
    by_flops = flops / flop_rate(device, torch.float32)
    bound_by = "bytes" if by_bytes >= by_flops else "arithmetic"
    return seconds, max(by_bytes, by_flops), bound_by


def print_steps(device, rounds: int) -> None:
    """Print the table of decode steps: ours, then each of theirs with its ratio to our fastest."""
    model, _ = load_smollm2(device=device)
    theirs = load_transformers(device)
    print("\nDecode step of SmolLM2-135M, float32, batch 1, median ms")
    print(f"{'context':>8}{'eager':>8}{'native':>8}" + "".join(f"{name:>20}" for name in STEP_TARGETS))
    for seq_len in STEP_CONTEXTS:
        seconds = decode_steps(model, theirs, seq_len, rounds)
        ours = [seconds[how] for how in ("eager", "native") if how in seconds]
        line = f"{seq_len:>8,}" + "".join(f"{taken * 1e3:>8.1f}" for taken in ours)
        line += "       -" * (2 - len(ours))
        for name, goal in STEP_TARGETS.items():
            ratio = seconds[name] / min(ours)
            missed = " " if ratio >= goal else "<"
            line += f"{seconds[name] * 1e3:>9.1f} = {ratio:>5.2f} x{missed}"
        print(line, flush=True)
    goals = ", ".join(f"{goal} x {name}" for name, goal in STEP_TARGETS.items())
    print(f"The goal is {goals}, by the faster of ours; '<' marks what misses it.")
    if reason := why_not(model, "native"):
        print(f"No native step: {reason}")


def print_attention(device, rounds: int) -> None:
    """Print the table of decode attention as a share of its floor."""
    print(f"\nDecode attention of one layer, {NUM_HEADS} query heads of {HEAD_DIM}, float32, median ms")
    print(f"{'':>4}{'KV heads':>10}{'context':>9}{'floor':>8}{'eager':>8}{'':>7}{'native':>8}  bound by")
    for kind, num_kv_heads in KINDS.items():
        for seq_len in ATTENTION_CONTEXTS:
            seconds, floor, bound_by = attention_share(num_kv_heads, seq_len, device, rounds)
            line = f"{kind:>4}{num_kv_heads:>10}{seq_len:>9,}{floor * 1e3:>8.2f}"
            line += "".join(f"{taken * 1e3:>8.2f} = {floor / taken:>4.0%}" for taken in seconds.values())
            print(f"{line}  {bound_by}", flush=True)
    print("The goal is 70% of the floor at 32,768 tokens, by the faster of ours.")


def main(arguments: list[str] | None = None) -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(prog="python -m kvlib.bench")
    parser.add_argument("--rounds", type=int, default=15, help="timed calls of each (default 15)")
    parser.add_argument("--only", choices=["step", "attention"], help="one table alone")
    options = parser.parse_args(arguments)
    device = best_device()
    print(
        f"{device_name(device)}, torch {torch.__version__}; reads "
        f"{read_bandwidth(device, fresh=True) / 1e9:.1f} GB/s, multiplies "
        f"{flop_rate(device, torch.float32, fresh=True) / 1e9:.0f} GFLOP/s in float32 (measured)"
    )
    if options.only != "attention":
        print_steps(device, options.rounds)
    if options.only != "step":
        print_attention(device, options.rounds)


if __name__ == "__main__":
    main()
