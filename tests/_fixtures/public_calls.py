"""Wrong calls of every public function: junk for each argument, among right ones."""

import dataclasses
import inspect
import pathlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
from flax import nnx

import jaxspec
from jaxspec import testing
from tests._fixtures import text_models, tiny
from tests._fixtures.public import PUBLIC

JUNK = (None, -1, 2**70, float("nan"), "\ud800", b"a", [], [[1], [2, 3]], {"a": 1}, object(), max, 1j, int)
JUNK += (np.zeros((2, 2)), np.array(["a"]), jnp.zeros(3))
# Of these no value is right where something is expected.
NEVER, SILENT = (object,), "is silent"
# Functions that need files, another package or another process; their tests make wrong calls.
ELSEWHERE = {f"foreign.from_{name}" for name in ("bonsai", "easydel", "gemma", "keras_hub", "tunix")}
ELSEWHERE |= {"complete", "serving.complete_file", "serving.build_app"}
ELSEWHERE |= {"serving.Completer", "serving.complete_files", "serving.build_serve"}
ELSEWHERE |= {"adopt", "foreign.for_heads", "generate", "heads.eagle.write_eagle", "init", "load", "load_drafter"}
ELSEWHERE |= {"load_head", "nn.from_qwix", "save", "sharding.join", "step", "stream", "training.train"}
ELSEWHERE |= {"use_program_cache"}
# Any value is right, or the argument is a function that only the call of the result would try.
ANYTHING = {("sharding.to_host", "tree"), ("sharding.check_devices", "models"), ("sharding.shard_models", "models")}
_ROOT = str(pathlib.Path(jaxspec.__file__).parent)


def right() -> dict[str, dict[str, Any]]:
    """Returns right arguments of each function; those that share a name are in `SHARED`."""
    table, probs = testing.make_table(2, 2, lambda: [1, 1]), np.array([0.5, 0.5])
    drafter = testing.drawn((-1,), table)
    rule = lambda drafts: [[testing.Leaf((), (), probs)] for _ in drafts.tokens]  # noqa: E731
    log_probs = jnp.log(jnp.full((2, 3, 5), 0.2))
    walk = jaxspec.verifiers.WalkResult(
        jnp.zeros(2, jnp.int32), jnp.zeros((2, 2), jnp.int32), log_probs[:, 0], jnp.zeros((2, 2)), jnp.ones((2, 2)) > 1
    )
    mesh = jax.make_mesh((1,), ("model",))
    whole = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec())
    model = dataclasses.replace(tiny.transformer(0, vocab=310), tokenizer=text_models.byte_level())
    key = jax.random.key(0)
    slots = jaxspec.serving.slots(model, jaxspec.NGramDrafter(k=2), 2, capacity=16)
    fed = {"prompt": jnp.ones((1, 2), jnp.int32), "capacity": 16, "max_new_tokens": 1}
    row = jaxspec.serving.feed(model, jaxspec.NGramDrafter(k=2), **fed)
    feeding = jaxspec.serving.begin_feeding(model, jaxspec.NGramDrafter(k=2), **fed)
    held = {"cache": row.cache, "drafter_state": row.drafter_state}
    return {
        "": {"target": model, "model": model, "models": model, "rng": key, "key": key, "mesh": mesh, "count": 2}
        | {"placement": jaxspec.sharding.Placement.on(mesh, jaxspec.sharding.TENSOR_PARALLEL), "parents": (-1, 0)}
        | {"proposal": jaxspec.core.Proposal(jnp.ones((2, 2), jnp.int32), jnp.ones((2, 2)) > 0, log_probs[:, :2])}
        | {"target_log_probs": log_probs, "params": model.params, "drafter": jaxspec.NGramDrafter(k=2), "k": 2},
        "bench.expected_acceptance": {"texts": [[1, 2, 3]]},
        "contrib.exit_head.early_exit_drafter": {"head": jaxspec.contrib.exit_head.init(model, key, layers=1)},
        "contrib.nearest_neighbors": {"codebook": np.random.default_rng(0).random((6, 3))},
        "core.best_tree": {"accuracies": [[0.5, 0.2], [0.3]], "nodes": 3},
        "core.count_leading": {"flags": jnp.ones((2, 3)) > 0},
        "core.first_true": {"flags": jnp.ones((2, 3)) > 0},
        "core.one_hot_log": {"tokens": jnp.ones(2, jnp.int32), "vocab_size": 5},
        "core.register_dataclass": {"cls": dataclasses.make_dataclass("Record", ["a"])},
        "core.row_axes": {"make": lambda batch: jnp.zeros((batch, 3))},
        "core.row_keys": {"batch": 2},
        "core.take_row": {"values": jnp.ones((2, 3)), "index": jnp.ones(2, jnp.int32)},
        "families.find_family": {"config": {"model_type": "llama"}},
        "finish": {"state": jaxspec.init(model, None, jnp.ones((1, 2), jnp.int32), max_new_tokens=1)},
        "from_cached": {"call": lambda params, tokens, cache, fed: (params[tokens], cache), "cache_index": "shared"}
        | {"init_cache": lambda batch, size: {"a": jnp.zeros((batch, size))}, "params": jnp.eye(5), "vocab_size": 5}
        | {"check": False},
        "from_nnx": {"module": nnx.Embed(5, 5, rngs=nnx.Rngs(0)), "vocab_size": 5},
        "from_function": {"function": lambda params, tokens: params[tokens], "params": jnp.eye(5), "vocab_size": 5},
        "nn.pack_weights": {"pack": lambda x: x},
        "score": {"tokens": jnp.asarray([[1, 2, 3]])},
        "serving.advance": {"verifier": jaxspec.TokenVerifier(), "slots": slots, "rounds": 1},
        "serving.begin_feeding": fed,
        "serving.feed": fed,
        "serving.feed_some": {"feeding": feeding, "chunks": 1},
        "serving.held_tokens": held,
        "serving.insert": {"slots": slots, "row": row, "slot": 0},
        "serving.ready": {"feeding": jaxspec.serving.feed_some(model, jaxspec.NGramDrafter(k=2), feeding, 1)},
        "serving.reuse": {"feeding": feeding, "chunks": 1, **held},
        "serving.release": {"slots": slots, "which": jnp.ones(2) > 0},
        "serving.slots": {"capacity": 16},
        "serving.take": {"slots": slots, "slot": 0},
        "sharding.parameter_axes": {"path": ("a",), "rank": 2},
        "sharding.put": {"x": jnp.zeros(2), "sharding": whole},
        "sharding.to_host": {"tree": jnp.zeros(2)},
        "testing.chain_rule": {"log_thresholds": max, "next_log_probs": max, "compared": testing.first_failure},
        "testing.chains": {"drafts": 2},
        "testing.check_verifier": {"verify": lambda target_probs, draft_probs, tokens, randomness: 0},
        "testing.chi_square": {"counts": np.array([3, 4]), "probs": probs},
        "testing.drawn_after_top": {"draft": table},
        "testing.deviation": {"round_": testing.enumerate_round(table, drafter, rule), "target": table, "length": 2},
        "testing.drawn": {"draft": table},
        "testing.drawn_without_replacement": {"draft": table},
        "testing.emitted_probs": {"round_": testing.enumerate_round(table, drafter, rule)},
        "testing.enumerate_drafts": {"target": table, "drafter": drafter},
        "testing.enumerate_round": {"target": table, "drafter": drafter, "rule": rule},
        "testing.first_failure": {"thresholds": [0.5], "accepted": 0, "submitted": 1},
        "testing.guessed": {"guess": lambda place: 0, "vocab": 2},
        "testing.history_probs": {"model": testing.history_model(0), "text": (0, 1)},
        "testing.independence": {"table": np.array([[3, 4], [5, 6]])},
        "testing.key_names": {"verifier": jaxspec.TokenVerifier(), "row_key": key, "length": 2, "drafts": 2},
        "testing.last_success": {"thresholds": [0.5], "accepted": 0, "submitted": 1},
        "testing.make_table": {"vocab": 2, "depth": 2, "row": lambda: probs},
        "testing.mean_accepted": {"round_": testing.enumerate_round(table, drafter, rule)},
        "testing.same_distribution": {"probs": probs, "counts": np.array([50, 50])},
        "testing.several_rounds": {"target": table, "drafter": drafter, "rule": rule, "length": 1}
        | {"names": lambda length: testing.key_names(jaxspec.TokenVerifier(), key, length, 1)},
        "testing.total_variation": {"found": {(0,): 1.0}, "expected": {(0,): 1.0}},
        "testing.walk_rule": {"descend": max},
        "training.evaluate": {"prompts": jaxspec.training.Prompts(((1, 2),), max_new_tokens=2)},
        "verifiers.draw_verdict": {"result": walk}
        | {"rng": jaxspec.core.RoundKeys(jax.random.split(key, 2), jnp.ones(2, jnp.int32))},
        "verifiers.log_residual": {"target": log_probs[:, 0], "draft": log_probs[:, 0]},
        "verifiers.next_log_probs": {"accepted": jnp.ones(2, jnp.int32)},
    }


def faults() -> Iterator[str]:
    """Makes the calls; yields those that another library, an assertion or a missing attribute ends, or nothing at all.

    A value may be right by chance; an `object()`, an array of texts and a class are not, unless anything is.
    """
    given = right()
    for name, function in sorted(PUBLIC.items()):
        if isinstance(function, type) or name in ELSEWHERE:
            continue
        parameters = inspect.signature(function).parameters
        base = {key: value for key, value in given[""].items() if key in parameters} | given.get(name, {})
        named = [one for one in parameters.values() if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
        needed = {one.name for one in named if one.default is one.empty}
        assert needed <= set(base), f"no right argument for {sorted(needed - set(base))} of {name}"
        for one in named:
            for value in JUNK:
                if callable(value) and (callable(base.get(one.name)) or "Callable" in str(one.annotation)):
                    continue  # only a call would tell
                fault = _fault(function, base | {one.name: value})
                if fault and not (fault == SILENT and (type(value) not in NEVER or (name, one.name) in ANYTHING)):
                    yield f"{name}({one.name}={value!r:.40}) {fault}"


def _fault(function: Callable[..., Any], arguments: dict[str, Any]) -> str:
    try:
        function(**arguments)
    except jaxtyping.TypeCheckError:  # where the tests check annotations, before the call does
        return ""
    except Exception as error:  # noqa: BLE001 (judged by where it comes from)
        last, text = traceback.extract_tb(error.__traceback__)[-1], str(error)
        said = last.filename.startswith(_ROOT) and (last.line or "").startswith("raise") and "\n" not in text
        return "" if said else f"ends in {type(error).__name__}: {text!r:.120}"
    return SILENT
