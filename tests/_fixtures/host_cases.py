"""Cases in which one process and several must agree: each yields a generation of four rows.

Each of `MISMATCHES` makes a different call on each process, which is an error.
"""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import NamedSharding, PartitionSpec

import jaxspec
from jaxspec.sharding.multihost import by_first
from jaxspec.testing.random_models import wide_transformer
from jaxspec.training.checkpoints import Checkpoints
from jaxspec.training.state import TrainingOptions, TrainState, laid_out
from tests._fixtures import disk_faults, text_models, token_maps
from tests.benchmarks.workload import disturbed

LENGTHS = np.array([6, 3, 5, 1])
PROMPT = np.random.default_rng(0).integers(0, 64, (4, 6))
POLICY = jaxspec.Sampling(jnp.array([0.7, 1.0, 0.0, 1.3]), top_k=50, top_p=0.95)
OPTIONS = {"prompt_length": LENGTHS, "max_new_tokens": 8}
SAMPLED = OPTIONS | {"sampling": POLICY}


def key():
    return jax.random.key(5)


def drafter(target, mesh):
    """Returns a drafter whose model is sharded like the target."""
    draft = disturbed(target, 0.2)
    return jaxspec.ModelDrafter(draft if mesh is None else jaxspec.shard(draft, mesh), k=2)


def plain(folder, mesh):
    """The parameters are read straight into their shards."""
    target = jaxspec.load(folder / "model", mesh=mesh)
    return jaxspec.generate(target, None, PROMPT, key=key(), **SAMPLED)


def drafted(folder, mesh):
    """The models lie on each process's own device until they are moved."""
    target = jaxspec.load(folder / "model")
    return jaxspec.generate(target, drafter(target, None), PROMPT, key=key(), mesh=mesh, **SAMPLED)


def greedy(folder, mesh):
    target = jaxspec.load(folder / "model", mesh=mesh)
    return jaxspec.generate(target, drafter(target, mesh), PROMPT, **OPTIONS)


def inside_jit(folder, mesh):
    target = wide_transformer(0)  # arrays loaded to one device stay there inside jit
    call = lambda target, drafter, prompt, key: jaxspec.generate(target, drafter, prompt, key=key, mesh=mesh, **SAMPLED)
    return jax.jit(call)(target, drafter(target, None), PROMPT, key())


def streamed(folder, mesh):
    target = jaxspec.load(folder / "model", mesh=mesh)
    rounds = jaxspec.stream(target, drafter(target, mesh), PROMPT, key=key(), **SAMPLED)
    pieces = [[], [], [], []]
    while True:
        try:
            for row, tokens in zip(pieces, next(rounds), strict=True):
                row.extend(tokens.tolist())
        except StopIteration as end:
            assert pieces == [ids[:n].tolist() for ids, n in zip(end.value.tokens, end.value.length, strict=True)]
            return end.value


def by_steps(folder, mesh):
    target = jaxspec.load(folder / "model", mesh=mesh)
    models = (target, drafter(target, mesh))
    state = jaxspec.init(*models, PROMPT, key=key(), **SAMPLED)
    step = jaxspec.jit_step()
    while not state.done.all():
        state, info = step(*models, jaxspec.BlockVerifier(), state)
        assert np.asarray(info.count).shape == (4,)
    return jaxspec.finish(state)


def a_split_prompt(folder, mesh):
    """No process has the whole prompt."""
    target = jaxspec.load(folder / "model", mesh=mesh)
    prompt = jnp.asarray(PROMPT)
    if mesh is not None:
        rows = NamedSharding(mesh, PartitionSpec("data"))
        prompt = jax.make_array_from_callback(PROMPT.shape, rows, lambda index: PROMPT[index])
    return jaxspec.generate(target, drafter(target, mesh), prompt, key=key(), **SAMPLED)


def split_by_hand(folder, mesh):
    """The models are on the mesh already, but not by `shard`."""
    target = jaxspec.load(folder / "model", mesh=mesh)
    target = jaxspec.LanguageModel(target.module, target.params)
    return jaxspec.generate(target, drafter(target, None), PROMPT, key=key(), mesh=mesh, **SAMPLED)


def saved(folder, mesh):
    """All processes write one folder, and read it again."""
    model = jaxspec.load(folder / "model", mesh=mesh)
    path = folder / ("alone" if mesh is None else "together")
    jaxspec.save(model, path)
    assert not list(folder.glob(".*partial"))
    with pytest.raises(FileExistsError):
        jaxspec.save(model, path)
    if mesh is not None:
        with pytest.raises(ValueError, match="takes a model sharded over all of them"):
            jaxspec.save(jaxspec.load(folder / "model"), folder / "mine")
    return jaxspec.generate(jaxspec.load(path, mesh=mesh), None, PROMPT, key=key(), **SAMPLED)


def checkpointed(folder, mesh):
    """All processes write checkpoints of training, and read the one that the first of them finds whole."""
    model = jaxspec.load(folder / "model", mesh=mesh)
    path = folder / ("steps-alone" if mesh is None else "steps-together")
    first = TrainState.initial(model.params, TrainingOptions(steps=4))
    first = laid_out(first, model.traits.placement)
    checkpoints = Checkpoints(path, 2)
    for step in (1, 2):
        one = dataclasses.replace(first, step=first.step + step)
        checkpoints.save(one, {"tokens": step})
    by_first(lambda: disk_faults.flip(path / "2" / "state" / "_METADATA", 9))
    state, counts = Checkpoints(path, 2).restore(first)
    assert (int(state.step), counts) == (1, {"tokens": 1})
    assert sorted(one.name for one in path.iterdir()) == ["1", "2"]
    return jaxspec.generate(dataclasses.replace(model, params=state.params), None, PROMPT, key=key(), **SAMPLED)


def another_vocabulary(folder, mesh):
    """The map between the vocabularies is whole on each process's own device."""
    target = jaxspec.load(folder / "model", mesh=mesh)
    draft = wide_transformer(1, vocab=40)
    token_map = token_maps.made([[token % 40] for token in range(64)], {token: token for token in range(40)}, [3], 40)
    unlike = jaxspec.CrossVocabularyDrafter(draft if mesh is None else jaxspec.shard(draft, mesh), token_map, k=2)
    return jaxspec.generate(target, unlike, PROMPT, key=key(), **SAMPLED)


CASES = {
    case.__name__: case
    for case in (
        another_vocabulary,
        plain,
        drafted,
        greedy,
        inside_jit,
        streamed,
        by_steps,
        a_split_prompt,
        split_by_hand,
        saved,
        checkpointed,
    )
}


def other_key(target, process, mesh):
    return jaxspec.generate(target, None, PROMPT, key=jax.random.key(process), **SAMPLED)


def other_number_of_drafts(target, process, mesh):
    return jaxspec.generate(target, jaxspec.NGramDrafter(k=2 + process), PROMPT, **OPTIONS)


def other_kind_of_drafter(target, process, mesh):
    drafters = (jaxspec.NGramDrafter(k=2), drafter(target, mesh))
    return jaxspec.generate(target, drafters[process], PROMPT, verifier=jaxspec.CoupledVerifier(), **OPTIONS)


def other_sampling_of_drafts(target, process, mesh):
    """A number in a drafter, not only what is static."""
    own = dataclasses.replace(drafter(target, mesh), sampling=jaxspec.Sampling(0.5 + process))
    return jaxspec.generate(target, own, PROMPT, key=key(), **SAMPLED)


def other_verifier(target, process, mesh):
    verifiers = (jaxspec.TokenVerifier(), jaxspec.CoupledVerifier())
    return jaxspec.generate(target, jaxspec.NGramDrafter(k=2), PROMPT, verifier=verifiers[process], **OPTIONS)


def other_mesh(target, process, mesh):
    meshes = (mesh, jax.make_mesh((1, mesh.size), ("data", "model")))
    return jaxspec.generate(wide_transformer(0), None, PROMPT, mesh=meshes[process], **OPTIONS)


def no_seed(target, process, mesh):
    """A seed on one process only."""
    tokenizer = text_models.byte_level()
    model = jaxspec.shard(wide_transformer(0, vocab=tokenizer.vocab_size), mesh)
    return jaxspec.SpeculativeDecoder(model, None, tokenizer=tokenizer).generate("hello", seed=1 if process else None)


def no_temperature(target, process, mesh):
    """Greedy decoding needs no seed, and takes part in choosing one."""
    tokenizer = text_models.byte_level()
    model = jaxspec.shard(wide_transformer(0, vocab=tokenizer.vocab_size), mesh)
    return jaxspec.SpeculativeDecoder(model, None, tokenizer=tokenizer).generate("hello", temperature=0.5 * process)


MISMATCHES = {
    other_key: "prompts, .* keys",
    other_number_of_drafts: "drafter,",
    other_kind_of_drafter: "drafter,",
    other_sampling_of_drafts: "drafter,",
    other_verifier: "verifier and lossy,",
    other_mesh: "target,",
    no_seed: "seed,",
    no_temperature: "prompts, .* sampling parameters",
}
