"""Counts what differs from plain decoding by a bit, and times what agreement costs.

    python -m tests.benchmarks.bit_exact logits --form "xla bfloat16" --tokens 10000
    python -m tests.benchmarks.bit_exact tokens --form "xla bfloat16" --new-tokens 160 --mesh 2x4
    python -m tests.benchmarks.bit_exact time --form "xla float32"

`logits` feeds source text in chains of 1 to 16 tokens and in trees of 8, 16 and 32 nodes, and compares each row of logits
with that of one token at a time. `tokens` continues 32 prompts of all kinds, plain and speculatively, at temperature 0
and by coupled sampling at 0.8 with top-p 0.95, and scores the plain text. `time` compares plain steps and rounds of
four drafts with those of the same model without `bit_exact`, in turns.
"""

import argparse
import statistics
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.bench.questions import read_questions
from tests._fixtures.same_bits import by_chains, by_trees, differing, passes
from tests.benchmarks.workload import disturbed, show_machine

MODEL = "smollm2-135m-instruct"
BATCH, PROMPTS, LONGEST = 8, 32, 320
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


def logits(model, tokens: int, rows: int) -> None:
    """Prints how many rows of logits differ by a bit."""
    files = sorted(Path(jaxspec.__file__).parent.rglob("*.py"))
    ids = model.tokenizer.encode("\n".join(path.read_text() for path in files[:60]))
    width = tokens // BATCH
    text = np.asarray(ids[: width * BATCH], np.int32).reshape(BATCH, width)
    exact, empty = model.bit_exact(rows), lambda: exact.init_cache(BATCH, width + 64)
    alone = by_chains(passes(exact), empty(), text, [1] * width)
    lists = {f"chains of {count}": [count] * (width // count) + [width % count] * bool(width % count) for count in CHAINS}
    for name, widths in lists.items():
        bad = differing(by_chains(passes(exact), empty(), text, widths), alone)
        print(f"{name}: {bad} of {BATCH * width} rows of logits differ", flush=True)
    for nodes, depth in TREES:
        if exact.rows is None or nodes < exact.rows:
            found = by_trees(passes(exact), empty(), text, nodes, depth)
            print(f"trees of {nodes} nodes: {differing(found, alone)} of {found[..., 0].size} differ", flush=True)


def drafters_for(model) -> dict[str, jaxspec.Drafter]:
    """Returns a drafter of each kind."""
    head = jaxspec.load_drafter("eagle", model, target_name=MODEL, k=4)
    ngram = jaxspec.NGramDrafter(k=4, min_ngram=1)
    tree = jaxspec.TreeDrafter(head.head, jaxspec.Tree.of_size(12))
    draft = jaxspec.ModelDrafter(disturbed(_loaded(MODEL, dtype=model.dtype), 0.05), k=4)
    return {"ngram": ngram, "model": draft, "eagle": head, "eagle tree": tree, "ngram+eagle": jaxspec.HybridDrafter(ngram, head)}


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


def tokens(model, new: int, rows: int, mesh: str | None) -> None:
    """Prints how many rows part from plain decoding, and how many log-probabilities differ by a bit."""
    prompt, lengths = prompts_for(model)
    options = {"prompt_length": lengths, "max_new_tokens": new, "key": jax.random.key(0)}
    stop = {"stop_tokens": model.tokenizer.eos_token_ids}
    drafters = drafters_for(model)
    exact = model.bit_exact(rows)
    if mesh is not None:
        sizes = tuple(map(int, mesh.split("x")))
        on = jax.make_mesh(sizes, ("data", "model"))
        options["mesh"] = on
    policies = {"greedy": {}, "coupled": {"sampling": jaxspec.Sampling(temperature=0.8, top_p=0.95)}}
    for name, policy in policies.items():
        verifier = {"verifier": jaxspec.CoupledVerifier()} if policy else {}
        plain = jaxspec.generate(exact, None, prompt, **options, **policy, **stop)
        for kind, drafter in drafters.items():
            start = time.perf_counter()
            other = jaxspec.generate(exact, drafter, prompt, **options, **policy, **verifier, **stop)
            parted = int((other.tokens != plain.tokens).any(axis=1).sum())
            bits = int((other.log_probs != plain.log_probs).sum() + (other.warped_log_probs != plain.warped_log_probs).sum())
            print(
                f"{name}, {kind}: {parted} of {len(prompt)} rows part, {bits} log-probabilities differ, of "
                f"{int(plain.length.sum())} tokens; {float(other.stats.mean_acceptance_length()):.2f} tokens a round "
                f"({time.perf_counter() - start:.0f} s)",
                flush=True,
            )
        score(exact, prompt, lengths, plain, policy, mesh)


def score(exact, prompt, lengths, plain, policy, mesh) -> None:
    """Prints how many log-probabilities of `jaxspec.score` differ from those of `generate`."""
    width = prompt.shape[1] + plain.tokens.shape[1]
    text, total = np.zeros((len(prompt), width), np.int32), lengths + np.asarray(plain.length)
    for row, (count, end) in enumerate(zip(lengths, total, strict=True)):
        text[row, :count], text[row, count:end] = prompt[row, :count], plain.tokens[row, : end - count]
    if mesh is not None:
        return
    found = jaxspec.score(exact, text, length=total, prompt_length=lengths, **policy)
    pairs = [
        (np.asarray(mine[row, count:end]), np.asarray(theirs[row, : end - count]))
        for mine, theirs in ((found.log_probs, plain.log_probs), (found.warped_log_probs, plain.warped_log_probs))
        for row, (count, end) in enumerate(zip(lengths, total, strict=True))
    ]
    print(f"score: {sum(int((mine != theirs).sum()) for mine, theirs in pairs)} of {2 * int(plain.length.sum())} differ")


def costs(model, rows: int, turns: int) -> None:
    """Prints what plain steps and rounds take with agreement, over what they take without."""
    prompt = np.asarray(prompts_for(model)[0][:1, :40])
    drafter = jaxspec.NGramDrafter(k=4, min_ngram=1)
    runs = {}
    for name, each in {"as it is": model, "bit exact": model.bit_exact(rows)}.items():
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
        print(f"{kind}: {ratio:.3f} of what they take without ({statistics.median(taken['as it is', kind]) * 1e3:.2f} ms)")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bit_exact", description=__doc__)
    parser.add_argument("what", choices=("logits", "tokens", "time"))
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--form", choices=FORMS, default="xla bfloat16")
    parser.add_argument("--tokens", type=int, default=10_000)
    parser.add_argument("--new-tokens", type=int, default=160)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--mesh", help="DATAxMODEL simulated devices")
    parser.add_argument("--turns", type=int, default=7)
    arguments = parser.parse_args()
    if arguments.mesh is not None:
        jax.config.update("jax_num_cpu_devices", 8)
    show_machine()
    print(f"{arguments.what}: {arguments.model}, {arguments.form}, rows={arguments.rows}, mesh {arguments.mesh}")
    model = FORMS[arguments.form](arguments.model)
    if arguments.what == "logits":
        logits(model, arguments.tokens, arguments.rows)
    elif arguments.what == "tokens":
        tokens(model, arguments.new_tokens, arguments.rows, arguments.mesh)
    else:
        costs(model, arguments.rows, arguments.turns)


if __name__ == "__main__":
    main()
