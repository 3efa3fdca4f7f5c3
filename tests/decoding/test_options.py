"""An option is a field, a check and a line of a docstring: every call takes it, and passes it to the loop."""

import dataclasses
import inspect
import pathlib
import re
import shutil
import subprocess
import sys
import typing

import pytest

import jaxspec
from jaxspec.decoding import hints
from jaxspec.decoding.options import InitKeywords, Keywords, Options, SharedKeywords, SharedOptions
from jaxspec.text.request import TextKeywords, TextOptions
from tests._fixtures.sources import ROOT

# The edits that add an option to every call, by file: old and new text.
DUMMY = {
    "decoding/options.py": (
        ("    max_drafts: PerRow | None\n", "    max_drafts: PerRow | None\n    dummy: int\n"),
        (
            "    max_drafts: PerRow | None = None\n",
            "    max_drafts: PerRow | None = None\n    dummy: int = dataclasses.field(default=0, metadata=_STATIC)\n",
        ),
        (
            '        validate.counts("generate", answers=options.answers)\n',
            '        validate.counts("generate", answers=options.answers)\n'
            "        if options.dummy < 0:\n"
            '            raise ValueError(f"dummy must be at least 0, got {options.dummy}")\n',
        ),
    ),
    "decoding/generate.py": (
        ("    max_drafts: PerRow | None = None,\n", "    max_drafts: PerRow | None = None,\n    dummy: int = 0,\n"),
        ("      prediction: ", "      dummy: changes nothing.\n      prediction: "),
    ),
}
CALLS = """
import jaxspec
from jaxspec.decoding import generate, rounds
from jaxspec.testing.history_models import history_model
from jaxspec.text import stream
from tests._fixtures import text_models, tiny

reached = []

class Reached(Exception):
    pass

def reach(arguments, *rest):
    reached.append(getattr(arguments, "arguments", arguments).options.dummy)
    raise Reached

generate.run = generate.start = reach
rounds.Rounds.__init__ = lambda self, arguments, host=None: reach(arguments)
stream.TextStream.__init__ = lambda self, request: reach(request)
model = history_model(0, vocab=text_models.VOCAB)
text = jaxspec.SpeculativeDecoder(model, "ngram", tokenizer=text_models.byte_level())
turn = [{"role": "user", "content": "hello"}]
calls = [lambda call=call, **o: call(model, None, [[1]], max_new_tokens=4, **o) for call in (
    jaxspec.generate, jaxspec.init, jaxspec.stream)]
calls += [lambda call=call, **o: call("hello", **o) for call in (text.generate, text.stream)]
calls += [lambda call=call, **o: call(turn, **o) for call in (text.chat, text.stream_chat)]
for call in calls:
    try:
        list(call(dummy=3))
    except Reached:
        pass
    try:
        list(call(dummy=-1))
    except ValueError as error:
        assert str(error) == "dummy must be at least 0, got -1", error
assert reached == [3] * len(calls), reached
"""


@pytest.fixture
def package(tmp_path):
    """A copy of the package, by links, in which an option is added."""
    own = tmp_path / "jaxspec"
    shutil.copytree(ROOT, own, copy_function=lambda source, to: pathlib.Path(to).symlink_to(source))
    for name, edits in DUMMY.items():
        text = (own / name).read_text()
        for old, new in edits:
            assert text.count(old) == 1, (name, old)
            text = text.replace(old, new)
        (own / name).unlink()
        (own / name).write_text(text)
    (tmp_path / "tests").symlink_to(ROOT.parent / "tests")
    return tmp_path


def test_a_new_option_is_written_in_two_files(package):
    """Every call takes it, checks it, and hands it to the loop."""
    environment = {"PYTHONPATH": str(package), "JAX_PLATFORMS": "cpu", "PATH": ""}
    ran = subprocess.run([sys.executable, "-c", CALLS], cwd=package, env=environment, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert len(DUMMY) <= 3


def test_the_signature_of_generate_is_that_of_the_options():
    parameters = inspect.signature(jaxspec.generate).parameters
    named = {name: one for name, one in parameters.items() if one.kind is inspect.Parameter.KEYWORD_ONLY}
    fields = {field.name: field for field in dataclasses.fields(Options)}
    assert named.keys() == fields.keys() == typing.get_type_hints(Keywords).keys()
    for name, one in named.items():
        empty = fields[name].default is dataclasses.MISSING
        assert (one.default is inspect.Parameter.empty) if empty else one.default == fields[name].default, name
        assert f"\n      {name}: " in (jaxspec.generate.__doc__ or ""), name


@pytest.mark.parametrize(
    ("options", "keywords"), [(SharedOptions, SharedKeywords), (Options, Keywords), (TextOptions, TextKeywords)]
)
def test_keywords_have_the_types_of_their_fields(options, keywords):
    fields, own = typing.get_type_hints(options), typing.get_type_hints(keywords)
    assert own == {name: hint for name, hint in fields.items() if options is not TextOptions or name != "answers"}


def test_what_is_no_option_is_refused_with_the_nearest_one():
    with pytest.raises(TypeError, match=r"unexpected keyword argument 'stop_token'; did you mean stop_tokens\?"):
        Options.of({"stop_token": 1, "max_new_tokens": 4})
    with pytest.raises(TypeError, match="missing .*'max_new_tokens'"):
        Options.of({"capacity": 9})
    with pytest.raises(TypeError, match="unexpected keyword argument 'mesh'"):
        Options.of({"mesh": None, "max_new_tokens": 4}, typing.get_type_hints(InitKeywords))


@pytest.mark.parametrize(("options", "table"), [(Options, hints.TOKENS), (TextOptions, hints.TEXT)])
def test_hints_name_options(options, table):
    """Names that other libraries use are not options here, and each hint names one that is."""
    fields = {field.name for field in dataclasses.fields(options)}
    assert not table.keys() & fields
    for name, hint in table.items():
        assert set(re.findall(r"(?<![(.])\b(\w+)=", hint)) <= fields, name
    for name in ("eos_token_id", "do_sample", "num_return_sequences", "num_beams", "max_tokens", "max_length", "n"):
        with pytest.raises(TypeError, match=f"unexpected keyword argument '{name}'; {re.escape(table[name])}"):
            options.of({name: 1})


def test_generate_hints_too():
    with pytest.raises(TypeError, match=r"'eos_token_id'; pass stop_tokens=\.\.\., or leave it out"):
        jaxspec.generate(None, None, [[1]], max_new_tokens=1, eos_token_id=2)
    with pytest.raises(TypeError, match=r"'max_new_token'; did you mean max_new_tokens\?"):
        jaxspec.generate(None, None, [[1]], max_new_token=1)
