"""Engines that workers of a Ray cluster create, some of which die, and the program of a driver.

python -m tests._fixtures.ray_engines ADDRESS FOLDER     completes FOLDER/prompts into FOLDER/answers
"""

import functools
import os
import pathlib
import signal
import sys

import jaxspec
from tests._fixtures import text_models
from tests._fixtures.taken import took

SLOTS, CAPACITY, WORKERS = 2, 64, 2
OPTIONS = {"temperature": 0.9, "max_new_tokens": 8, "stop_tokens": ()}
BATCH, ROWS_PER_FILE = 8, 16
# Requests that a worker takes before it dies.
REQUESTS = 20


def engine() -> jaxspec.Engine:
    return jaxspec.Engine(text_models.history_models()[0], "ngram", k=2, slots=SLOTS, capacity=CAPACITY)


def of_mesh(folder: str) -> jaxspec.Engine:
    """An engine over two devices of its process."""
    import jax

    mesh = jax.make_mesh((2,), ("model",))
    return jaxspec.Engine(jaxspec.load(folder, mesh=mesh), "ngram", k=2, slots=SLOTS, capacity=CAPACITY)


def alone(prompt: str, seed: int, **options) -> list[int]:
    """The tokens of a lone call."""
    verifier = jaxspec.CoupledVerifier()
    decoder = jaxspec.SpeculativeDecoder(text_models.history_models()[0], "ngram", k=2, verifier=verifier)
    return list(decoder.generate(prompt, seed=seed, **{**OPTIONS, **options}).token_ids)


class DyingEngine(jaxspec.Engine):
    """Kills its process in the middle of a batch, while there are files `die` in a folder."""

    folder = pathlib.Path()
    taken = 0

    def submit(self, *args, **given):
        self.taken += 1
        if self.taken == REQUESTS and took(self.folder, "die"):
            os.kill(os.getpid(), signal.SIGKILL)
        return super().submit(*args, **given)


def dying(folder: str) -> jaxspec.Engine:
    model = text_models.history_models()[0]
    engine = DyingEngine(model, "ngram", k=2, slots=SLOTS, capacity=CAPACITY, prompt_share=1.0)
    engine.folder = pathlib.Path(folder)
    return engine


def main(address: str, folder: str) -> None:
    import ray
    from ray.data.checkpoint.checkpoint_writer import CheckpointWriter

    from jaxspec.serving.ray import complete_files
    from tests._fixtures.ray_commits import DyingWriter

    # Workers import it by its name; one that is defined here would be of `__main__`.
    module = sys.modules["tests._fixtures.ray_engines"]
    CheckpointWriter.create = functools.partial(DyingWriter, pathlib.Path(folder))
    ray.init(address=address, log_to_driver=False)
    (prompts,) = pathlib.Path(folder).glob("prompts*")
    complete_files(
        functools.partial(module.dying, folder),
        str(prompts),
        f"{folder}/answers",
        workers=WORKERS,
        batch_size=BATCH,
        rows_per_file=ROWS_PER_FILE,
        answers_format="jsonl",
        actor_options={"num_cpus": 1},
        **OPTIONS,
    )


if __name__ == "__main__":
    import tests._fixtures.ray_engines  # noqa: F401 (by its name, for workers)

    main(*sys.argv[1:])
