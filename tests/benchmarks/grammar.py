"""Answers under JSON schemas that others have published, and what controls cost a token.

    pip install openai
    python -m tests.benchmarks.grammar --out grammar.json

The schemas are those of the models in `openai.types`, of growing size.
"""

import argparse
import decimal
import functools
import importlib
import json
import pathlib
import pkgutil
import statistics
import time

import jax
import jsonschema
import numpy as np
import pydantic

import jaxspec
from jaxspec.grammar import Grammar, TableTooLargeError

ASK = "Write a short example of a {name} as JSON."
# What `--bounded` adds where a schema leaves a length open, and what it puts where anything may stand.
NUMBER = {"minimum": -1e6, "maximum": 1e6, "multipleOf": 0.01}
BOUNDS = {"string": {"maxLength": 40}, "array": {"maxItems": 3}, "number": NUMBER}
TEXT = {"type": "string", "maxLength": 40}
OBJECT = {"type": "object", "additionalProperties": TEXT, "maxProperties": 3}
ANYTHING = {"anyOf": [TEXT, {"type": "number", **NUMBER}, {"type": "boolean"}, {"type": "null"}, OBJECT]}
# Controls that change no token, so that times are of the same text.
NEUTRAL = {
    "penalties and bias": {
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "logit_bias": {5: 0.0},
    },
    "a table": {"regex": r"[\s\S]*"},
    "the host": {"grammar": r"start: /(.|\n)*/"},
}


def published(count, largest):
    """The schemas of some of the models that `openai` publishes, by size, evenly from the smallest to the largest."""
    package, found = importlib.import_module("openai.types"), {}
    for module in pkgutil.walk_packages(package.__path__, "openai.types."):
        try:
            names = vars(importlib.import_module(module.name))
        except ImportError:
            continue
        for name, kind in names.items():
            if isinstance(kind, type) and issubclass(kind, pydantic.BaseModel) and kind.__module__ == module.name:
                schema = kind.model_json_schema()
                if schema.get("properties") and len(json.dumps(schema)) <= largest:
                    found[name] = _closed(schema)
    by_size = sorted(found.items(), key=lambda pair: (len(json.dumps(pair[1])), pair[0]))
    places = np.linspace(0, len(by_size) - 1, count).round().astype(int)
    return [by_size[place] for place in dict.fromkeys(places.tolist())]


def _closed(schema):
    """The same schema without other properties, which these models allow everywhere."""
    if isinstance(schema, dict):
        closed = {key: _closed(value) for key, value in schema.items() if key != "additionalProperties"}
        return {**closed, "additionalProperties": False} if "properties" in schema else closed
    return [_closed(one) for one in schema] if isinstance(schema, list) else schema


def bounded(schema):
    """The same schema, with a bound where a text, number, list or object has none: small models repeat themselves."""
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    for name in {"properties", "$defs"} & set(found):
        found[name] = {key: bounded(value) for key, value in found[name].items()}
    for name in {"anyOf", "oneOf", "allOf", "prefixItems"} & set(found):
        found[name] = [bounded(one) for one in found[name]]
    for name in {"items", "additionalProperties"} & set(found):
        found[name] = bounded(found[name])
    if not set(found) - {"title", "description", "default"}:
        return found | ANYTHING
    if (
        found.get("type") == "object"
        and not found.get("properties")
        and found.get("additionalProperties", True) is True
    ):
        return found | OBJECT
    return (BOUNDS.get(found.get("type"), {}) if not {"enum", "const", "format"} & set(found) else {}) | found


def answers(decoders, schemas, tokens):
    """One line for each schema, temperature and decoder."""
    lines = []
    for place, (name, schema) in enumerate(schemas):
        if place % 8 == 7:  # programs of many sizes take more pieces of memory than a process may have
            jax.clear_caches()
        size, ask = len(json.dumps(schema)), [{"role": "user", "content": ASK.format(name=name)}]
        target = decoders["plain"].target
        try:
            states = Grammar.json_schema(schema).table(target.tokenizer, target.vocab_size).allowed.shape[0]
        except TableTooLargeError:
            states = None
        for temperature in (0, 1):
            for drafter, decoder in decoders.items():
                options = {"temperature": temperature, "top_p": None, "seed": 1, "max_new_tokens": tokens}
                result = decoder.chat(ask, schema=schema, **options)
                free = decoder.chat(ask, **options | {"max_new_tokens": 64})
                ended = result.stop_reason == "stop token"
                line = {"schema": name, "bytes": size, "states": states, "temperature": temperature, "drafter": drafter}
                line |= {
                    "ended": ended,
                    "valid": _valid(result.text, schema) if ended else _begins(result, schema, target),
                }
                line |= {"tokens": len(result.token_ids), "a round": result.mean_acceptance_length}
                lines.append(line | {"a round, free": free.mean_acceptance_length, "text": result.text})
                print(json.dumps({key: value for key, value in lines[-1].items() if key != "text"}), flush=True)
    return lines


def _valid(text, schema):
    exact = functools.partial(json.loads, parse_float=decimal.Decimal)  # for `multipleOf`
    try:
        jsonschema.validate(exact(text), exact(json.dumps(schema)))
    except (ValueError, jsonschema.ValidationError) as error:
        return f"no: {error!s:.100}"
    return True


def _begins(result, schema, target):
    """Whether an answer that was cut is the beginning of one that is valid, by `llguidance`'s own matcher."""
    guidance = importlib.import_module("llguidance")
    from jaxspec.grammar.host import _ll_tokenizer

    stops = target.tokenizer.eos_token_ids
    texts, _ = _ll_tokenizer(target.tokenizer, target.vocab_size, tuple(stops))
    matcher = guidance.LLMatcher(texts, Grammar.json_schema(schema).matcher_source(), log_level=0)
    return matcher.validate_tokens(list(result.token_ids)) == len(result.token_ids)


def costs(decoder, repeats, tokens):
    """The time of a text with controls that change none of its tokens, over that without, in turns."""
    ask = "Once upon a time"
    options = {"temperature": 0, "max_new_tokens": tokens, "stop_tokens": None}
    found = {}
    for name, controls in NEUTRAL.items():
        ratios = []
        for turn in range(repeats + 1):
            seconds = []
            for more in ({}, controls):
                start = time.perf_counter()
                result = decoder.generate(ask, **options, **more)
                seconds.append((time.perf_counter() - start) / len(result.token_ids))
            if turn:
                ratios.append(seconds[1] / seconds[0])
        found[name] = statistics.median(ratios)
        print(f"{name}: {found[name]:.3f} of the time a token", flush=True)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--first", type=int, default=0, help="number of the smallest to leave out")
    parser.add_argument("--only", nargs="+", help="names of those to keep")
    parser.add_argument("--largest", type=int, default=6000, help="bytes of a schema")
    parser.add_argument("--tokens", type=int, default=600)
    parser.add_argument(
        "--bounded", action="store_true", help="texts of 40 characters, lists and objects of 3, at most"
    )
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--drafters", nargs="+", default=["auto", "ngram"])
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    decoders = {name: jaxspec.SpeculativeDecoder(args.model, name) for name in args.drafters}
    first = next(iter(decoders.values()))
    decoders["plain"] = jaxspec.SpeculativeDecoder(first.target, None)
    found = {name: costs(decoder, args.repeats, 200) for name, decoder in decoders.items() if args.repeats}
    schemas = published(args.count, args.largest)[args.first :]
    schemas = [(name, bounded(schema)) for name, schema in schemas] if args.bounded else schemas
    schemas = [(name, schema) for name, schema in schemas if not args.only or name in args.only]
    lines = answers(decoders, schemas, args.tokens)
    if args.out is not None:
        args.out.write_text(json.dumps({"costs": found, "answers": lines}, indent=1))
    if not lines:
        return
    ended = [line for line in lines if line["ended"]]
    print(f"{len(ended)} of {len(lines)} answers ended; valid: {sum(line['valid'] is True for line in ended)}")
    cut = [line for line in lines if not line["ended"]]
    print(f"{len(cut)} were cut; beginnings of valid ones: {sum(line['valid'] is True for line in cut)}")
    for drafter in args.drafters:
        own = [line for line in lines if line["drafter"] == drafter]
        ratio = statistics.median(line["a round"] / line["a round, free"] for line in own)
        mean = statistics.mean(line["a round"] for line in own), statistics.mean(line["a round, free"] for line in own)
        print(
            f"{drafter}: {mean[0]:.2f} tokens a round under a schema, {mean[1]:.2f} free, the median ratio {ratio:.2f}"
        )


if __name__ == "__main__":
    main()
