"""Traits of models: each is passed on by every wrapper in the package."""

import dataclasses
import importlib

import jax
import jax.numpy as jnp
import pytest

import jaxspec
from jaxspec.core import ModelTraits, WrappedModel, register_dataclass
from jaxspec.foreign.head_target import HeadTarget, _Sizes
from jaxspec.foreign.model import CachedModel
from jaxspec.sharding.placement import Placement
from jaxspec.sharding.rules import Rules
from jaxspec.testing.history_models import HistoryModel, TokenCache, history_model
from tests._fixtures import tiny
from tests._fixtures.sources import FILES, name

# None is the default, so that an omitted one is not right by chance.
TRAITS = ModelTraits(
    placement=Placement.on(jax.make_mesh((1,), ("model",)), Rules()),
    takes_trees=False,
    rewinds=False,
    prompt_chunk=7,
    pass_tokens=5,
    resumes=True,
    kernels="pallas",
    cache_type=TokenCache,
    hidden_sizes=(3, 4),
    tokenizer="a tokenizer",
    skips_padding=True,
)


@register_dataclass
@dataclasses.dataclass(frozen=True)
class Odd(CachedModel):
    """A model whose traits all differ from the defaults."""

    traits = TRAITS

    def init_cache(self, batch, capacity):
        return "a cache", batch, capacity

    def __call__(self, tokens, cache, **options):
        return jaxspec.core.ModelOutput(jnp.zeros((*tokens.shape, 6)), cache, tuple(options))


ODD = Odd(None, None, jnp.zeros(3), 6, 11, "shared", None, 4)
SIZES = _Sizes(tiny.config(), dataclasses.replace(ODD, params=None), jnp.float32)
# How a model is wrapped in each, and which traits of it are changed.
WRAPPERS = {
    "HeadTarget": (
        lambda: HeadTarget(SIZES, {"foreign": ODD.params}, tokenizer=TRAITS.tokenizer, placement=TRAITS.placement),
        {},
    ),
    "ResizedModel": (lambda: jaxspec.drafters.ResizedModel(ODD, 8), {"hidden_sizes": None}),
    "TrimmedModel": (lambda: jaxspec.drafters.TrimmedModel(ODD, jnp.arange(6)), {"hidden_sizes": None}),
}


def wrappers(kind=WrappedModel):
    """Returns all classes in the package that derive from `kind`."""
    for path in FILES:
        if "WrappedModel" in path.read_text() and path.name != "__init__.py":
            importlib.import_module("jaxspec." + name(path).removesuffix(".py").replace("/", "."))
    for each in kind.__subclasses__():
        if each.__module__.startswith("jaxspec."):
            yield each
        yield from wrappers(each)


def test_traits_are_static_and_checked():
    assert hash(TRAITS) == hash(dataclasses.replace(TRAITS)) and dataclasses.replace(TRAITS) == TRAITS
    unlike = {field.name for field in dataclasses.fields(ModelTraits) if getattr(TRAITS, field.name) != field.default}
    assert unlike == {field.name for field in dataclasses.fields(ModelTraits)}
    for wrong in ({"prompt_chunk": 0}, {"prompt_chunk": None}, {"prompt_chunk": 2.0}, {"pass_tokens": -1}):
        with pytest.raises(ValueError, match=f"{next(iter(wrong))} of a model must be a positive integer, got"):
            ModelTraits(**wrong)


@pytest.mark.parametrize("kind", sorted(set(wrappers()), key=lambda kind: kind.__name__))
def test_a_wrapper_forwards_all_that_it_does_not_change(kind):
    make, changed = WRAPPERS[kind.__name__]  # for a new wrapper, add how it wraps a model
    model = make()
    assert type(model) is kind and isinstance(model, jaxspec.Model)
    assert model.traits == dataclasses.replace(TRAITS, **changed)
    assert jax.tree.map(lambda x: x, model).traits == model.traits
    assert model.context_length == 11
    assert model.init_cache(2, 9) == ODD.init_cache(2, 9)


def test_a_wrapper_that_changes_nothing():
    class Plain(WrappedModel):
        model, vocab_size = ODD, 6

    assert Plain().traits is TRAITS
    assert Plain()(jnp.zeros((1, 2), jnp.int32), "a cache", capture=()).hidden == ("capture",)


@pytest.mark.parametrize("kind", ["ResizedModel", "TrimmedModel"])
def test_a_wrapper_passes_options_on_as_they_came(kind):
    """A model that is never asked to grow a tree need not know `pending`."""
    output = WRAPPERS[kind][0]()(jnp.zeros((1, 2), jnp.int32), None, mask=None, capture=())
    assert output.hidden == ("mask", "capture")


def test_models_of_the_package_say_what_they_can():
    """Traits of models as they are made by `load` and by adapters."""
    target = tiny.transformer(0, layers=2)
    assert target.traits.resumes and target.traits.takes_trees and target.traits.kernels == "xla"
    assert target.traits.hidden_sizes == (2, target.module.config.width)
    assert jaxspec.nn.pallas_kernels(target).traits.kernels == "pallas"
    assert dataclasses.replace(target, tokenizer="its own").traits.tokenizer == "its own"
    assert target.bit_exact(6).traits.pass_tokens == 6
    function = jaxspec.from_function(lambda params, tokens: params[tokens], jnp.eye(4), vocab_size=4)
    assert function.traits == ModelTraits(takes_trees=False)


@pytest.mark.parametrize(
    "ask",
    [
        lambda model: jaxspec.generate(model, None, [[1]], max_new_tokens=2),
        lambda model: jaxspec.generate(history_model(0), jaxspec.ModelDrafter(model), [[1]], max_new_tokens=2),
        lambda model: jaxspec.SpeculativeDecoder(model),
        lambda model: jaxspec.SpeculativeDecoder(history_model(0), model),
        lambda model: jaxspec.contrib.ParallelDrafter(model, num_drafts=2),
    ],
)
def test_a_model_without_traits_is_told_what_it_lacks(ask):
    class Silent(HistoryModel):
        @property
        def traits(self):
            raise AttributeError("traits")

    model = Silent(jnp.zeros((4, 4)), jnp.zeros((4, 4)))
    with pytest.raises(TypeError, match=r"got Silent without `traits` \(a custom model has .*ModelTraits\(\) there"):
        ask(model)
