"""`jaxspec generate`: its options."""

import enum
from typing import Annotated, Any

import typer

from jaxspec.cli.errors import reported
from jaxspec.cli.prompts import read_prompts

_SAMPLING = ("top_p", "top_k", "min_p", "seed")


class VerifierName(enum.StrEnum):
    """The rules by which drafted tokens are kept."""

    TOKEN = "token"
    BLOCK = "block"
    COUPLED = "coupled"
    MULTI_DRAFT = "multi-draft"
    TRAVERSAL = "traversal"
    TREE = "tree"


class DtypeName(enum.StrEnum):
    """The dtypes of weights and activations."""

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class Int8Part(enum.StrEnum):
    """What of the target may be held in int8."""

    WEIGHTS = "weights"
    CACHE = "cache"


class KernelsName(enum.StrEnum):
    """How the target's weights are multiplied."""

    AUTO = "auto"
    XLA = "xla"
    NATIVE = "native"
    NATIVE_FLOAT32 = "native-float32"
    NATIVE_BFLOAT16 = "native-bfloat16"


@reported
def generate(
    prompts: Annotated[
        list[str] | None, typer.Argument(metavar="PROMPT...", help="Texts to continue; '-' is standard input.")
    ] = None,
    file: Annotated[
        list[str] | None, typer.Option("--file", "-f", metavar="PATH", help="A file with one more prompt; repeatable.")
    ] = None,
    model: Annotated[
        str, typer.Option("--model", "-m", help="A name of `jaxspec models`, a path, or a hub id.")
    ] = "smollm2-135m-instruct",
    draft: Annotated[
        str,
        typer.Option(
            "--draft",
            "-d",
            help="'ngram', 'suffix', 'early-exit' (or 'early-exit:LAYERS'), "
            "'sparse-cache', 'none', a drafter that ships with the model, such as 'eagle', a folder, or a model as for "
            "--model, with the same tokenizer or another. 'auto' is what the model's manifest names, else 'ngram'.",
        ),
    ] = "auto",
    k: Annotated[
        str | None,
        typer.Option(
            "-k",
            metavar="NUMBER|adaptive[:MOST]|fixed",
            help="Drafted tokens a round. 'adaptive' drafts as many as pay, at most 8; 'fixed' as many as suit the "
            "draft.  [default: adaptive]",
            show_default=False,
        ),
    ] = None,
    num_drafts: Annotated[
        int, typer.Option("--num-drafts", help="With a draft model: drafts that compete in each round.")
    ] = 1,
    verifier: Annotated[
        VerifierName | None,
        typer.Option(
            help="'coupled': a seed gives the same text with any draft, and without one.  "
            "[default: block, or what suits the draft]",
            show_default=False,
        ),
    ] = None,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", help="The most tokens to add.")] = 128,
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy decoding.")] = 0.0,
    top_p: Annotated[
        float | None, typer.Option(help="Keep the most likely tokens of this mass.  [default: 0.9]")
    ] = None,
    top_k: Annotated[int | None, typer.Option(help="Keep so many of the most likely tokens.")] = None,
    min_p: Annotated[
        float | None, typer.Option(help="Keep tokens of this share of the likeliest one's chance.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Repeats a sampled text.  [default: chosen and reported]")] = None,
    stop: Annotated[list[str] | None, typer.Option(help="End the text before this string; repeatable.")] = None,
    chat: Annotated[bool, typer.Option("--chat", help="Each prompt is a user's message to an assistant.")] = False,
    system: Annotated[str | None, typer.Option(help="With --chat: the system message.")] = None,
    dtype: Annotated[
        DtypeName | None, typer.Option(help="Of weights and activations.  [default: float32 on a CPU, else bfloat16]")
    ] = None,
    int8: Annotated[
        list[Int8Part] | None,
        typer.Option(help="Hold these of the target in int8; repeatable. What is exact is exact relative to that."),
    ] = None,
    products: Annotated[
        KernelsName,
        typer.Option(
            help="On a CPU: 'native' is compiled for it (needs a C++ compiler) and reads weights once for several "
            "tokens, in bfloat16 where that holds them exactly; 'native-float32' never in that, 'native-bfloat16' "
            "always, rounded; 'auto' is native where it can be had, else xla."
        ),
    ] = KernelsName.AUTO,
    mesh: Annotated[
        str | None,
        typer.Option(
            metavar="AXES",
            help="Split the models over all devices, and prompts with them: 'data=2,model=4'.  "
            "[default: one device; with several processes, model=ALL]",
            show_default=False,
        ),
    ] = None,
    coordinator: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Of the first of several processes that run this command.")
    ] = None,
    num_processes: Annotated[int | None, typer.Option(help="With --coordinator: how many there are.")] = None,
    process_id: Annotated[
        int | None, typer.Option(help="With --coordinator: which this is, from 0. Only the first prints.")
    ] = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="The same where JAX finds the processes: TPU, Slurm, Open MPI.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a prompt.")] = False,
    compare: Annotated[
        bool, typer.Option("--compare", help="Decode without speculation too, and compare speeds and tokens.")
    ] = False,
) -> None:
    """Continues a prompt, or several as one batch."""
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "temperature": temperature, "stop": tuple(stop or ())}
    given = {"top_p": top_p, "top_k": top_k, "min_p": min_p, "seed": seed}
    options |= {name: value for name, value in given.items() if value is not None}
    if temperature == 0 and (idle := [name for name in _SAMPLING if name in options]):
        flags = ", ".join("--" + name.replace("_", "-") for name in idle)
        raise ValueError(f"{flags} would change nothing at temperature 0; pass --temperature too, such as 0.7")
    if system is not None and not chat:
        raise ValueError("--system is a message of a conversation; pass --chat too")
    if compare and draft == "none":
        raise ValueError("--compare needs a draft to compare with plain decoding; leave out --draft none")
    texts = read_prompts(prompts or [], file or [])

    from jaxspec.cli.processes import Processes
    from jaxspec.cli.run import Job, run

    processes = Processes.parse(mesh, coordinator, num_processes, process_id, distributed)
    kind = draft.partition(":")[0]
    if num_drafts != 1 and kind in ("ngram", "suffix", "early-exit", "sparse-cache", "none"):
        raise ValueError(f"--num-drafts {num_drafts} needs a draft model; pass --draft too")
    name, parts = verifier and verifier.value, tuple(dict.fromkeys(part.value for part in int8 or ()))
    job = Job(
        texts, options, model, draft, k, num_drafts, name, dtype and dtype.value, chat, system, parts, products.value
    )
    run(job, processes, as_json=as_json, compare=compare)
