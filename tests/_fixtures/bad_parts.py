"""Wrong calls of what users construct: processors, grammars, and models of their own functions."""

import dataclasses
import functools
import types
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

import jaxspec
from jaxspec.grammar import Grammar, GrammarTable
from jaxspec.processors import AllowedTokens, BannedPhrases, FromCounts, LogitBias, MinNewTokens, Penalties
from tests._fixtures import maxtext, text_models, tiny
from tests._fixtures.bad_calls import COUNTS, HUGE, MODEL, NO_NUMBERS, PROMPT, BadCall, calls

VOCAB = 5
NO_SIZES = (*COUNTS, *HUGE)
# No array of token ids of a vocabulary of five.
NO_IDS = (None, "a", b"a", {}, {1}, object(), 1j, max, 5, 1.5, True, [[1], [2, 3]], ["a"], [2**70], [None], [1.5])
NO_IDS += ([True], [1j], [[[[1]]]], np.array(["a"]), np.array([1j]), np.array([True]), [-2], [VOCAB], jaxspec.Greedy)
NO_FLOATS = (*NO_NUMBERS, True, 2**70, ["a"], [None], [1j], np.array([1j]), [1.0] * 3)
# What functions of the right arguments return, and no logits.
RETURNS = {
    "None": lambda logits: None,
    "a text": lambda logits: "a",
    "a tuple": lambda logits: (logits, logits),
    "one number": lambda logits: logits.sum(),
    "fewer columns": lambda logits: logits[..., :-1],
    "one more axis": lambda logits: logits[None],
    "integers": lambda logits: logits.astype(int),
    "booleans": lambda logits: logits > 0,
    "complex numbers": lambda logits: jax.lax.complex(logits, logits),
}
# What `StatefulProcessor.advance` returns for a state of two integers, and no such state.
STATES = {
    "None": lambda state: None,
    "a text": lambda state: "a",
    "a tuple": lambda state: (state, state),
    "one number": lambda state: state[0],
    "one more axis": lambda state: state[None],
    "floats": lambda state: state / 2,
}
# Recipes of training, and numbers among their options.
RECIPES = {
    functools.partial(jaxspec.contrib.tandem.TandemRecipe, (0, 1)): ("width", "draft_vocabulary", "decay", "k"),
    jaxspec.heads.medusa.MedusaRecipe: ("num_heads", "places", "decay"),
    functools.partial(jaxspec.heads.eagle.EagleRecipe, (0, 1)): ("steps", "places", "decay", "k"),
    functools.partial(jaxspec.heads.dflash.DFlashRecipe, (0, 1)): ("block_size", "trust", "k"),
    functools.partial(jaxspec.heads.dflash.DSparkRecipe, (0, 1)): ("markov_rank", "markov_head"),
    functools.partial(jaxspec.heads.dflash.DFlash2Recipe, (0, 1)): ("selector_top_k", "conv_group_size"),
}
SIGNATURES = (None, 5, "a", {}, jaxspec.Greedy, lambda: 0, lambda a: 0, lambda a, b, c, d, e: 0, lambda *, a, b: 0)


def processors() -> Iterator[BadCall]:
    """Returns bad calls of processors."""

    def used(make, **options):
        make(**options).check(2, VOCAB)  # as every call that takes a policy

    yield from calls("AllowedTokens", functools.partial(used, AllowedTokens), tokens=(*NO_IDS, [], [-1], [-1, -1]))
    bias = functools.partial(used, lambda tokens=(1,), bias=(1.0,): LogitBias(tokens, bias))
    wrong = (*NO_FLOATS, None, 5, [[1.0]], [float("inf")], [float("nan")], [1e300], [10**400], ["1"], [True])
    yield from calls("LogitBias", bias, tokens=NO_IDS, bias=wrong)
    of = ({2**70: 1.0}, {VOCAB: 1.0}, {1: 1j}, {1: np.complex64(1)}, {1: 10**400}, {1: None}, {(1,): 1.0}, {True: 1.0})
    yield from calls(
        "LogitBias.of", lambda biases: used(lambda: LogitBias.of(biases)), biases=(*(x for x in NO_IDS if x != {}), *of)
    )
    phrases = (*NO_IDS, [1], [[1, -1]], [[VOCAB]], [[]], np.zeros((1, 0), int))
    yield from calls("BannedPhrases", functools.partial(used, BannedPhrases), phrases=phrases)
    of = ([["a"]], [[2**70]], [[-1]], [[1, -1]], [[1.5]], [[None]], [[[1]]], [[True]], [[]], [1], "a", None, 5, {1: 2})
    yield from calls("BannedPhrases.of", lambda phrases: used(lambda: BannedPhrases.of(phrases)), phrases=of)
    counts = (*NO_FLOATS, None, 1.5, -1, [1, 2, 3], *HUGE)
    yield from calls("MinNewTokens", functools.partial(used, MinNewTokens), count=counts)
    numbers = (*NO_FLOATS, 1e300, float("nan"))
    yield from calls(
        "Penalties", functools.partial(used, Penalties), repetition=(*numbers, 0), presence=numbers, frequency=numbers
    )
    yield from calls("FromCounts", functools.partial(used, FromCounts), function=SIGNATURES)
    place = jnp.zeros((1, 1, VOCAB)), jnp.zeros((1, VOCAB), jnp.int32), jnp.zeros((1, 1, 0), jnp.int32)
    for name, returns in RETURNS.items():
        run = functools.partial(FromCounts(lambda logits, counts, returns=returns: returns(logits)), *place)
        yield BadCall("FromCounts", "function", name, run)


def grammars() -> Iterator[BadCall]:
    """Returns bad calls of grammars, tables and scores."""
    tokenizer, yes = text_models.byte_level(), Grammar.choices(["yes", "no"])
    table = lambda tokenizer=tokenizer, vocab_size=310, **options: yes.table(tokenizer, vocab_size, **options)  # noqa: E731
    yield from calls(
        "Grammar.table",
        table,
        tokenizer=(None, 5, "a", object(), max, type(tokenizer)),
        vocab_size=NO_SIZES,
        max_bytes=NO_SIZES,
    )
    yield from calls(
        "Grammar", lambda kind: Grammar(kind, "a"), kind=(None, 5, "a", "", object(), "json", ["regex"], b"regex")
    )
    sources = (None, 5, b"a", object(), "a\ud800", ["a"], {"type": "string"}, max)
    for kind, more in {
        "regex": (),
        "lark": (),
        "choices": ("", "[", "5", "{}", "[]", "[1]", '[""]', '["\\ud800"]'),
        "json_schema": ("", "{", "5", "[]", '{"type": 5}', '{"type": "strange"}'),
    }.items():
        yield from calls(f"Grammar {kind}", lambda source, kind=kind: Grammar(kind, source), source=(*sources, *more))
    texts = (["\ud800"], "abc", ["a", ""], [b"a"], {"a": 1}, [], [5], None, 5, {1})
    yield from calls("Grammar.choices", Grammar.choices, choices=texts)
    yield from calls("Grammar.regex", lambda regex: Grammar.regex(regex), regex=(None, 5, b"a", "", "\ud800", ["a"]))
    yield from calls("Grammar.lark", Grammar.lark, grammar=(None, 5, b"a", "\ud800", ["a"]))
    yield from calls("of_rows", GrammarTable.of_rows, tables=(None, 5, "a", [], [None], [5], {1}))
    score = lambda tokens=PROMPT, **options: jaxspec.score(MODEL, tokens, **options)  # noqa: E731
    lengths = (*(x for x in NO_SIZES if not isinstance(x, list)), [1, 9], [1, 2, 3], 4, [["a"]], ["a"], np.array(["a"]))
    yield from calls("score", score, prompt_length=(*lengths, None), length=[x for x in lengths if x is not None])


def models() -> Iterator[BadCall]:
    """Returns bad calls of models of users' own functions, modules and weights."""
    eye, tokens, vocab = jnp.eye(VOCAB), jnp.zeros((1, 2), jnp.int32), (*NO_SIZES, VOCAB + 1)
    params = (None, "a", object(), max, ["a"], {"a": "b"}, np.array(["a"]))

    def run(model):
        jax.eval_shape(lambda: model(tokens, model.init_cache(1, 8)))

    def of_function(function=lambda table, tokens: table[tokens], params=eye, vocab_size=VOCAB, **options):
        run(jaxspec.from_function(function, params, vocab_size=vocab_size, **options))

    contexts = tuple(size for size in NO_SIZES if size is not None)
    yield from calls(
        "from_function", of_function, function=SIGNATURES, params=params, vocab_size=vocab, context_length=contexts
    )

    def call(params, tokens, cache, fed):
        return params[tokens], cache

    def empty(batch, capacity):
        return {"values": jnp.zeros((batch, capacity, VOCAB))}

    def cached(call=call, init_cache=empty, params=eye, **options):
        options = {"vocab_size": VOCAB, "cache_index": "shared", "check": False} | options
        run(jaxspec.from_cached(call, init_cache, params, **options))

    yield from calls(
        "from_cached",
        cached,
        call=(*SIGNATURES, lambda params, tokens, cache, fed: None, lambda params, tokens, cache: (params, cache)),
        init_cache=(*SIGNATURES, lambda batch, size: None, lambda batch, size: "a", lambda batch, size: {"a": max}),
        params=params,
        vocab_size=vocab,
        context_length=contexts,
        scratch=NO_SIZES,
        cache_index=(None, 5, "a", [], {}, object()),
        parts=(5, "a", object(), {}),
    )
    for name, returns in RETURNS.items():
        yield BadCall(
            "from_function", "function", name, lambda r=returns: of_function(lambda table, tokens: r(table[tokens]))
        )
        yield BadCall(
            "from_cached",
            "call",
            name,
            lambda r=returns: cached(lambda params, tokens, cache, fed: (r(eye[tokens]), cache)),
        )
    module = nnx.Embed(VOCAB, VOCAB, rngs=nnx.Rngs(0))
    nnx_model = lambda module=module, vocab_size=VOCAB, **o: run(jaxspec.from_nnx(module, vocab_size=vocab_size, **o))  # noqa: E731
    yield from calls(
        "from_nnx",
        nnx_model,
        module=(None, 5, "a", object(), nnx.Embed, max, {}, NeedsCache(), NeedsNamedCache(), NotCallable()),
        vocab_size=[size for size in vocab if size is not None],
        context_length=contexts,
    )
    wrong = ("int3", 5, "float64", object(), max, "", [], "bf16", 1.5, bool, jnp.float16, {"a": 1}, b"int8")
    small = tiny.transformer(0)
    yield from calls("native_kernels", lambda weights: jaxspec.native_kernels(small, weights=weights), weights=wrong)
    short = jaxspec.from_function(lambda table, tokens: table[tokens], eye, vocab_size=VOCAB, context_length=12)
    predict = functools.partial(jaxspec.generate, short, jaxspec.NGramDrafter(k=2), PROMPT, max_new_tokens=4)
    yield from calls("generate", predict, prediction=([1] * 13, [[1] * 13, [1] + [-1] * 12]))


def configurations() -> Iterator[BadCall]:
    """Returns adopted configurations with a field that is missing, or of another type."""
    for name in ("llama2", "qwen3", "gemma3"):
        config = maxtext.CONFIGS[name]
        for field, value in config.items():
            wrong = (object(), [], -7, 1.5j) if isinstance(value, str) else ("a", -7, {}, float("nan"))
            for one in wrong:
                adopt = functools.partial(jaxspec.adopt, {"decoder": {}}, config=config | {field: one})
                yield BadCall(f"MaxText's {name}", field, one, adopt)
        needed = ("vocab_size", "emb_dim", "mlp_dim", "num_query_heads", "num_kv_heads", "head_dim")
        for field in (*needed, "num_decoder_layers"):
            left = {key: value for key, value in config.items() if key != field}
            yield BadCall(
                f"MaxText's {name}", field, None, functools.partial(jaxspec.adopt, {"decoder": {}}, config=left)
            )
    fields = {"num_layers": 1, "embed_dim": 8, "hidden_dim": 8, "num_heads": 2, "num_kv_heads": 1, "head_dim": 4}
    fields |= {"vocab_size": VOCAB, "norm_eps": 1e-5, "rope_theta": 1e4, "use_tied_embedding": True}
    for field in fields:
        for one in (None, "a", -7, {}, [1], 1j):
            model = Foreign(types.SimpleNamespace(**(fields | {field: one})))
            yield BadCall("tunix's qwen2", field, one, functools.partial(jaxspec.adopt, model))
    yield BadCall("tunix's qwen2", "configuration", None, functools.partial(jaxspec.adopt, Foreign(None)))


def others() -> Iterator[BadCall]:
    """Returns bad calls of tokenizers, configurations and what else users construct."""
    own, small = text_models.byte_level(), tiny.transformer(0)
    no_texts = (None, 5, b"a", object(), max, ["a"], 1.5)
    no_flags = (None, 0, 1, "a", [], object(), np.zeros((2, 2)))
    ids = (None, 5, "a", ["a"], [None], [1.5], [-1], max, np.array([1.5]))
    made = lambda backend=own._backend, **options: jaxspec.Tokenizer(backend, **options)  # noqa: E731
    yield from calls(
        "Tokenizer",
        made,
        backend=(None, 5, "a", own, jaxspec.Tokenizer),
        special_tokens=(5, "a", [1], {"eos_token": 5}),
        eos_token_ids=ids,
        chat_template=no_texts[1:],
    )
    encode = lambda text="a", **options: own.encode(text, **options)  # noqa: E731
    yield from calls("Tokenizer.encode", encode, text=(*no_texts, "\ud800"), add_special_tokens=no_flags)
    decode = lambda ids=(1,), **options: own.decode(ids, **options)  # noqa: E731
    yield from calls("Tokenizer.decode", decode, ids=ids, skip_special_tokens=no_flags)
    for name in ("token_bytes", "is_special", "is_byte_token"):
        method = getattr(own, name)
        yield from calls(f"Tokenizer.{name}", lambda index, method=method: method(index), index=(*ids[2:], None))
    yield from calls("Tokenizer.has_tokens_of", own.has_tokens_of, other=(None, 5, "a", own._backend))
    yield from calls("Tokenizer.save", own.save, folder=(*no_texts, "a\ud800"))
    yield from calls("Tokenizer.from_folder", jaxspec.Tokenizer.from_folder, path=(*no_texts, "a\ud800", ""))
    chat = functools.partial(own.apply_chat_template, [{"role": "user", "content": "a"}])
    yield from calls("apply_chat_template", chat, add_generation_prompt=no_flags)
    paths = (*no_texts, "a\ud800", "a\0", "")
    yield from calls("save", lambda path: jaxspec.save(small, path), path=paths)
    choices = (5, "strange", b"xla", [], np.zeros(2), jnp.zeros(2))
    load = functools.partial(jaxspec.load, "no such file.gguf")
    yield from calls("load", load, weights=choices, kernels=choices, dtype=choices, mesh=choices)
    rows = functools.partial(jaxspec.core.row_keys, jax.random.key(0))
    yield from calls("row_keys", rows, batch=(*NO_SIZES, 2**30 * 2**20))
    yield from calls("jit_step", lambda donate: jaxspec.jit_step(donate=donate), donate=no_flags)
    trimmed = functools.partial(jaxspec.drafters.TrimmedModel.of, small)
    yield from calls("TrimmedModel.of", trimmed, draft_vocabulary=(*NO_IDS[:8], *NO_IDS[9:22], [], [1, 1]))
    yield from calls("find_family", jaxspec.families.find_family, config=no_texts)
    yield from calls("finish", jaxspec.finish, state=no_texts)
    yield from calls("quantize_weights", lambda bits: jaxspec.quantize_weights(small, bits=bits), bits=no_flags)
    config = functools.partial(dataclasses.replace, small.module.config)
    sizes = dict.fromkeys(("vocab_size", "width", "num_heads", "num_kv_heads", "head_dim", "mlp_width"), NO_SIZES)
    yield from calls("TransformerConfig", config, **sizes, ropes=no_texts, windows=no_texts, tied_head=no_flags)
    store = jaxspec.drafters.TextStore.empty(3, 4)
    first, two = jnp.ones((1, 2), jnp.int32), jnp.full(1, 2)
    add = lambda tokens=first, length=two: store.add(tokens, length)  # noqa: E731
    yield from calls("TextStore.add", add, tokens=(*NO_IDS[:12], [1.5]), length=(*NO_IDS[:12], [1, 2]))
    yield from calls("best_tree", lambda accuracies: jaxspec.core.best_tree(accuracies, 2), accuracies=(*no_texts, [2]))
    stop = lambda threshold: jaxspec.draft_length.ConfidenceStop(4, threshold).check()  # noqa: E731
    yield from calls("ConfidenceStop", stop, threshold=(*NO_NUMBERS, True, None, 2, [0.5]))
    yield from calls("Prompts", lambda rows: jaxspec.training.Prompts(rows), rows=(*no_texts, [], [[]], [["a"]]))
    wrong = (*NO_NUMBERS, True, -1)
    for recipe, names in RECIPES.items():
        yield from calls(str(recipe), recipe, **dict.fromkeys(names, wrong))
    for head in (jaxspec.heads.eagle, jaxspec.heads.medusa, jaxspec.heads.dflash, jaxspec.contrib.tandem):
        init = lambda target=small, rng=jax.random.key(0), head=head, **options: head.init(target, rng, **options)  # noqa: E731
        name, keys = f"{head.__name__}.init", (None, 5, "a", np.zeros(3))
        yield from calls(name, init, target=(None, 5, "a", small.module), rng=keys, dtype=(5, "strange", [], np.int8))
    texts = (b"a", "a", [1], [[1.5]], [[[1]]], 5)
    accepted = functools.partial(jaxspec.bench.expected_acceptance, MODEL, jaxspec.NGramDrafter(k=2))
    yield from calls("expected_acceptance", accepted, texts=texts)
    wrong = (
        *(one for one in texts if one != [1]),
        None,
        object(),
        np.zeros((2, 2), int),
        jax.ShapeDtypeStruct((3,), jnp.int32),
    )
    measured = lambda prompt=(1, 2), answer=(): accepted(texts=[jaxspec.bench.Text(prompt, answer)])  # noqa: E731
    yield from calls("bench.Text", measured, prompt=wrong, answer=wrong)
    strange = (jax.random.key(0), np.zeros((2, 2)), 10**400, np.array(["a"]), None, True)
    for rule in (jaxspec.verifiers.Cactus, jaxspec.verifiers.StaticEnsemble, jaxspec.verifiers.Typical):
        verifier = lambda rule=rule, **number: jaxspec.verifiers.RelaxedVerifier(rule(**number))  # noqa: E731
        yield from calls(rule.__name__, verifier, **{dataclasses.fields(rule)[0].name: strange})
    yield from calls("Rules", jaxspec.sharding.Rules, batch=(5, np.zeros((2, 2)), jax.random.key(0), [1]))
    yield from calls("use_program_cache", jaxspec.use_program_cache, folder=(5, np.zeros((2, 2)), jax.random.key(0)))
    resized = functools.partial(jaxspec.drafters.ResizedModel, MODEL)
    yield from calls("ResizedModel", resized, vocab_size=(*NO_SIZES, np.zeros((2, 2)), jax.random.key(0)))
    early = lambda head: jaxspec.EarlyExitDrafter(1, head=head).check(small)  # noqa: E731
    yield from calls("EarlyExitDrafter", early, head=no_texts[1:])
    cross = lambda token_map: jaxspec.CrossVocabularyDrafter(small, token_map).check(small)  # noqa: E731
    yield from calls("CrossVocabularyDrafter", cross, token_map=no_texts)
    place = jnp.zeros((1, 1, VOCAB)), jnp.zeros((1, 2), jnp.int32), jnp.zeros((1, 1, 1), jnp.int32)
    for name, advance in STATES.items():
        yield BadCall("StatefulProcessor", "advance", name, functools.partial(Advances(advance), *place))
    half = functools.partial(Advances(lambda state: 0.5), place[0], jnp.zeros(1, jnp.int32), place[2])
    yield BadCall("StatefulProcessor", "advance", "a Python float, of an integer", half)
    distinct = lambda distinct: jaxspec.ModelDrafter(MODEL, distinct=distinct)  # noqa: E731
    yield from calls("ModelDrafter", distinct, distinct=no_flags)


@jaxspec.core.register_dataclass
@dataclasses.dataclass(frozen=True)
class Advances(jaxspec.processors.StatefulProcessor):
    """A processor whose state advances by a function."""

    function: Any = dataclasses.field(metadata={"static": True})

    def start(self, prompt, length):
        return prompt[:2]

    def advance(self, state, token):
        return self.function(state)

    def process(self, logits, state):
        return logits


def _block(x):
    return x


class Foreign(nnx.Module):
    """A model of tunix with a configuration, and without weights."""

    def __init__(self, config):
        self.config = config
        self.layers = nnx.data([types.SimpleNamespace(attn=Attention())])


class Attention:
    block = _block


Foreign.__module__ = "tunix.models.qwen2.model"


class NeedsCache(nnx.Module):
    def __call__(self, tokens, cache):
        return tokens


class NeedsNamedCache(nnx.Module):
    def __call__(self, tokens, *, cache):
        return tokens


class NotCallable(nnx.Module):
    pass


KINDS = (processors, grammars, models, configurations, others)
