"""Faults of `jaxspec bench --quality` and `--against`: texts that pass for equal, and figures of something else."""

from tests.mutants.mutant import Mutant

_QUALITY, _PEERS = "tests/bench/test_quality.py", "tests/bench/test_peers.py"
_SIGNIFICANCE = "bench/quality.py"
_EXPORT = "tests/checkpoints/test_gguf_export.py::test_a_gguf_file_is_our_model"
_PART = f"{_QUALITY}::test_where_answers_diverge"

MUTANTS = (
    Mutant(
        "an answer that ended early is equal",
        "text/comparison.py",
        "if list(one) == list(other):",
        "if list(one[: len(other)]) == list(other):",
        (_PART,),
    ),
    Mutant(
        "a tie excuses any token",
        _SIGNIFICANCE,
        "scores.max() - min(scores[plain[place]], scores[other[place]])",
        "scores.max() - np.sort(scores)[-2]",
        (f"{_QUALITY}::test_both_sides_of_a_tie_are_near_the_best",),
    ),
    Mutant(
        "a drawn token is scored without its noise",
        _SIGNIFICANCE,
        "policy.log_probs(jnp.asarray(logits)[None, None]) + noise",
        "policy.log_probs(jnp.asarray(logits)[None, None]) + 0 * noise",
        (f"{_QUALITY}::test_plain_decoding_writes_what_scores_best[coupled]",),
        slow=True,
    ),
    Mutant(
        "a real difference passes for a near tie",
        "bench/quality.py",
        "one[3] is None or one[3] > NEAR",
        "one[3] is not None and one[3] > 1.0",
        (f"{_QUALITY}::test_agreement_is_counted",),
    ),
    Mutant(
        "BLEU rewards short texts",
        _SIGNIFICANCE,
        "matched, total, answers, references, smooth",
        "matched, total, answers, answers, smooth",
        (f"{_QUALITY}::test_bleu_by_hand",),
    ),
    Mutant(
        "noise is of unpaired questions",
        _SIGNIFICANCE,
        "error = float(stats.sem(differences))",
        "error = math.hypot(stats.sem(plain), stats.sem(other))",
        (f"{_QUALITY}::test_perplexities_differ_by_their_interval",),
    ),
    Mutant(
        "the bootstrap draws each side's questions apart",
        _SIGNIFICANCE,
        "figure([plain[i] for i in places])",
        "figure([plain[-i] for i in places])",
        (f"{_QUALITY}::test_corpora_are_drawn_in_pairs",),
    ),
    Mutant(
        "llama.cpp rotates halves",
        "families/llama.py",
        'return to_interleaved(x, config.num_kv_heads if match[1] == "k" else config.num_heads)',
        "return to_interleaved(x, 1)",
        (_EXPORT,),
    ),
    Mutant(
        "a stretched rotation is written unstretched",
        "checkpoints/gguf.py",
        "(plain / scaled)",
        "(plain / plain)",
        (_EXPORT,),
    ),
    Mutant(
        "jaxspec over a peer is the peer over jaxspec",
        "bench/timing.py",
        "cls.of(a / b for a, b in",
        "cls.of(b / a for a, b in",
        (f"{_PEERS}::test_jaxspec_over_the_peers",),
    ),
    Mutant(
        "a folder is given as the file that a peer reads",
        "bench/peers/panel.py",
        "if peer.reads and file.name.endswith(peer.reads)}",
        "if peer.reads}",
        (f"{_PEERS}::test_who_reads_the_file_answers_with_it_and_all_with_its_numbers",),
    ),
    Mutant(
        "peers with plain arrays are compared with packed weights",
        "bench/peers/panel.py",
        "if not readers and not (installed and packed_weights(loaded)):",
        "if not readers:",
        (f"{_PEERS}::test_packed_weights_stand_beside_no_others",),
    ),
    Mutant(
        "figures with other weights are added",
        "bench/records.py",
        'turn["temperature"], turn.get("weights", "")',
        'turn["temperature"], ""',
        (f"{_PEERS}::test_figures_with_other_weights_are_others",),
    ),
    Mutant(
        "what was measured with the file is taken for measured with its numbers",
        "bench/questions.py",
        "*([weights] if weights else [])",
        "*([weights] if not weights else [])",
        (f"{_PEERS}::test_figures_with_other_weights_are_others",),
    ),
    Mutant(
        "tokens that llama.cpp does not list are left out",
        "bench/peers/engines.py",
        'if len(ids) != reply["tokens_predicted"]:',
        'if len(ids) > reply["tokens_predicted"]:',
        (f"{_PEERS}::test_replies_without_every_token_are_refused",),
    ),
    Mutant(
        "sampled speculation must write the tokens of plain decoding",
        "bench/cases.py",
        "temperature == 0 or verifier.same_tokens",
        "temperature == 0 or verifier.lossless",
        (f"{_PEERS}::test_exact_cases",),
    ),
)
