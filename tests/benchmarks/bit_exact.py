"""Counts what differs from plain decoding by a bit, and times what agreement costs.

    python -m tests.benchmarks.bit_exact logits --form "xla bfloat16" --tokens 10000
    python -m tests.benchmarks.bit_exact tokens --form "xla bfloat16" --new-tokens 160 --mesh 2x4
    python -m tests.benchmarks.bit_exact time --form "xla float32"

`logits` feeds source text in chains of 1 to 16 tokens and in trees of 8, 16 and 32 nodes, and compares each row of
logits with that of one token at a time. `tokens` continues 32 prompts of all kinds, plain and speculatively, at
temperature 0 and by coupled sampling at 0.8 with top-p 0.95, and scores the plain text; with `--as-it-is` it does so
without `bit_exact`. `time` compares plain steps and rounds of four drafts with those of the same model without it, in
turns.
"""

import argparse
import statistics
import time
from pathlib import Path

import jax
import numpy as np

import jaxspec
from jaxspec.bench.questions import read_questions
from tests._fixtures.same_bits import by_chains, by_trees, differing, passes
from tests.benchmarks.workload import disturbed, show_machine

MODEL = "smollm2-135m-instruct"
BATCH, PROMPTS = 8, 32
POLICIES = {"greedy": {}, "coupled": {"sampling": jaxspec.Sampling(temperature=0.8, top_p=0.95)}}
CHAINS, TREES = (16, 5, 3, 2, 9), ((8, 3), (16, 5), (32, 6))


def _loaded(model, **options):
    return jaxspec.load(model, weights="dequantized", **options)


FORMS = {
    "xla float32": _loaded,
    "xla bfloat16": lambda model: _loaded(model, dtype="bfloat16"),
    "xla float32, int8 cache": lambda model: jaxspec.quantize_cache(_loaded(model)),
    "xla bfloat16, int8 cache": lambda model: jaxspec.quantize_cache(_loaded(model, dtype="bfloat16")),
    "xla int8": lambda model: jaxspec.quantize_weights(_loaded(model)),
    "native float32": lambda model: jaxspec.native_kernels(_loaded(model), weights="float32"),
    "native bfloat16": lambda model: jaxspec.native_kernels(_loaded(model), weights="bfloat16"),
    "native Q8_0": lambda model: jaxspec.native_kernels(_loaded(model), weights="int8"),
    "native, int8 cache": lambda model: jaxspec.quantize_cache(jaxspec.load(model, weights="stored")),
    "stored": lambda model: jaxspec.load(model, weights="stored"),  # as the file has them
}


def logits(model, tokens: int, pass_tokens: int) -> None:
    """Prints how many rows of logits differ by a bit."""
    files = sorted(Path(jaxspec.__file__).parent.rglob("*.py"))
    ids = model.tokenizer.encode("\n".join(path.read_text() for path in files[:60]))
    width = tokens // BATCH
    text = np.asarray(ids[: width * BATCH], np.int32).reshape(BATCH, width)
    exact, empty = model.bit_exact(pass_tokens), lambda: exact.init_cache(BATCH, width + 64)
    alone = by_chains(passes(exact), empty(), text, [1] * width)
    lists = {
        f"chains of {count}": [count] * (width // count) + [width % count] * bool(width % count) for count in CHAINS
    }
    for name, widths in lists.items():
        bad = differing(by_chains(passes(exact), empty(), text, widths), alone)
        print(f"{name}: {bad} of {BATCH * width} rows of logits differ", flush=True)
    for nodes, depth in TREES:
        if exact.pass_tokens is None or nodes < exact.pass_tokens:
            found = by_trees(passes(exact), empty(), text, nodes, depth)
            print(f"trees of {nodes} nodes: {differing(found, alone)} of {found[..., 0].size} differ", flush=True)


def drafters_for(model) -> dict[str, jaxspec.Drafter]:
    """Returns a drafter of each kind."""
    head = jaxspec.load_drafter("eagle", model, target_name=MODEL, k=4)
    ngram = jaxspec.NGramDrafter(k=4, min_ngram=1)
    tree = jaxspec.TreeDrafter(head.head, jaxspec.Tree.of_size(12))
    draft = jaxspec.ModelDrafter(disturbed(_loaded(MODEL, dtype=model.dtype), 0.05), k=4)
    return {
        "ngram": ngram,
        "model": draft,
        "eagle": head,
        "eagle tree": tree,
        "ngram+eagle": jaxspec.HybridDrafter(ngram, head),
    }


def prompts_for(model) -> tuple[np.ndarray, np.ndarray]:
    """Returns the first turns of questions of all kinds, padded, and their lengths."""
    turns = [conversation.turns[0] for name in ("built-in", "code") for conversation in read_questions(name)]
    rows = [model.tokenizer.apply_chat_template([{"role": "user", "content": text}]) for text in turns]
    rows = sorted(rows, key=len)[:PROMPTS]
    lengths = np.asarray([len(row) for row in rows], np.int32)
    tokens = np.zeros((len(rows), lengths.max()), np.int32)
    for row, ids in enumerate(rows):
        tokens[row, : len(ids)] = ids
    return tokens, lengths


def tokens(model, exact, new: int, mesh: str | None, names: list[str] | None, policies: list[str], seed: int) -> None:
    """Prints how many rows part from plain decoding, and how many log-probabilities differ by a bit."""
    prompts, drafters = prompts_for(model), drafters_for(model)
    drafters = {name: drafter for name, drafter in drafters.items() if names is None or name in names}
    on = {} if mesh is None else {"mesh": jax.make_mesh(tuple(map(int, mesh.split("x"))), ("data", "model"))}
    for name in policies:
        policy = POLICIES[name]
        verifier = {"verifier": jaxspec.CoupledVerifier()} if policy else {}
        options = {"max_new_tokens": new, "key": jax.random.key(seed), **policy, **on}
        batches = [
            (prompts[0][at : at + BATCH], prompts[1][at : at + BATCH]) for at in range(0, len(prompts[0]), BATCH)
        ]
        run = lambda drafter, options=options, batches=batches, **more: [  # noqa: E731
            jax.device_get(jaxspec.generate(exact, drafter, text, prompt_length=lengths, **options, **more))
            for text, lengths in batches
        ]
        plain = run(None)
        for kind, drafter in drafters.items():
            found = run(drafter, **verifier)
            pairs = list(zip(found, plain, strict=True))
            print(
                f"{name}, {kind}: {sum(int((a.tokens != b.tokens).any(axis=1).sum()) for a, b in pairs)} of "
                f"{len(prompts[0])} rows part, {sum(_differ(a, b) for a, b in pairs)} log-probabilities differ, of "
                f"{sum(int(each.length.sum()) for each in plain)} tokens; "
                f"{np.mean([each.stats.mean_acceptance_length for each in found]):.2f} tokens a round",
                flush=True,
            )
        if mesh is None and exact.pass_tokens is not None:
            pairs = zip(
                (scored(exact, *batch, each, policy) for batch, each in zip(batches, plain, strict=True)), plain
            )
            print(f"score: {sum(_differ(a, b) for a, b in pairs)} log-probabilities differ", flush=True)


def _differ(mine, theirs) -> int:
    """Counts the log-probabilities, before and after warping, that differ."""
    names = ("log_probs", "warped_log_probs")
    return sum(int((np.asarray(getattr(mine, name)) != np.asarray(getattr(theirs, name))).sum()) for name in names)


def scored(exact, prompt, lengths, plain, policy) -> jaxspec.core.Scores:
    """Returns the scores of generated tokens, where `plain` has them."""
    ends = lengths + np.asarray(plain.length)
    text = np.zeros((len(prompt), prompt.shape[1] + plain.tokens.shape[1]), np.int32)
    for row, (count, end) in enumerate(zip(lengths, ends, strict=True)):
        text[row, :count], text[row, count:end] = prompt[row, :count], plain.tokens[row, : end - count]
    found = jax.device_get(jaxspec.score(exact, text, length=ends, prompt_length=lengths, **policy))
    at = lengths[:, None] + np.arange(plain.tokens.shape[1])
    return jax.tree.map(lambda x: np.take_along_axis(x, at, axis=1), found)


def costs(model, pass_tokens: int, turns: int) -> None:
    """Prints what plain steps and rounds take with agreement, over what they take without."""
    prompt = np.asarray(prompts_for(model)[0][:1, :40])
    drafter = jaxspec.NGramDrafter(k=4, min_ngram=1)
    runs = {}
    for name, each in {"as it is": model, "bit exact": model.bit_exact(pass_tokens)}.items():
        for kind, own in {"plain steps": None, "rounds of 4 drafts": drafter}.items():
            run = jax.jit(lambda model, own=own: jaxspec.generate(model, own, prompt, max_new_tokens=48))
            runs[name, kind] = lambda each=each, run=run: jax.block_until_ready(run(each))
    rounds = {key: int(run().stats.rounds.sum()) for key, run in runs.items()}
    taken = {key: [] for key in runs}
    for _ in range(turns):
        for key, run in runs.items():
            start = time.perf_counter()
            run()
            taken[key].append((time.perf_counter() - start) / rounds[key])
    for kind in ("plain steps", "rounds of 4 drafts"):
        pairs = zip(taken["bit exact", kind], taken["as it is", kind], strict=True)
        ratio = statistics.median(mine / before for mine, before in pairs)
        print(
            f"{kind}: {ratio:.3f} of what they take without ({statistics.median(taken['as it is', kind]) * 1e3:.2f} ms)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bit_exact", description=__doc__)
    parser.add_argument("what", choices=("logits", "tokens", "time"))
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--form", choices=FORMS, default="xla bfloat16")
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--pass-tokens", type=int, default=16)
    parser.add_argument("--drafters", nargs="*", help="those of `tokens`, these alone")
    parser.add_argument("--policies", nargs="+", choices=POLICIES, default=list(POLICIES), help="of `tokens`")
    parser.add_argument("--seed", type=int, default=0, help="of `tokens`, for other coupled text")
    parser.add_argument("--as-it-is", action="store_true", help="without bit_exact")
    parser.add_argument("--mesh", help="DATAxMODEL simulated devices")
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.mesh is not None:
        jax.config.update("jax_num_cpu_devices", 8)
    show_machine()
    passes = f"pass_tokens={arguments.pass_tokens}"
    print(f"{arguments.what}: {arguments.model}, {arguments.form}, {passes}, mesh {arguments.mesh}")
    model = FORMS[arguments.form](arguments.model)
    if arguments.what == "logits":
        logits(model, arguments.tokens, arguments.pass_tokens)
    elif arguments.what == "tokens":
        exact = model if arguments.as_it_is else model.bit_exact(arguments.pass_tokens)
        given = (arguments.new_tokens, arguments.mesh, arguments.drafters, arguments.policies, arguments.seed)
        tokens(model, exact, *given)
    else:
        costs(model, arguments.pass_tokens, arguments.turns)


if __name__ == "__main__":
    main()
