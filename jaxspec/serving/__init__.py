"""Decodes requests that come and go; `jaxspec.decoding.slots` describes the rows, `feeding` their prompts."""

from etils import epy as _epy

with _epy.lazy_api_imports(globals()):
    from jaxspec.decoding.feeding import (
        Feeding as Feeding,
        begin_feeding as begin_feeding,
        feed_some as feed_some,
        ready as ready,
    )
    from jaxspec.decoding.prompt_scores import PromptScores as PromptScores
    from jaxspec.decoding.reuse import held_tokens as held_tokens, reuse as reuse
    from jaxspec.decoding.slots import (
        Advance as Advance,
        Slots as Slots,
        advance as advance,
        feed as feed,
        insert as insert,
        release as release,
        slots as slots,
        take as take,
    )
    from jaxspec.serving.app import build_app as build_app
    from jaxspec.serving.completion import complete as complete, complete_file as complete_file
    from jaxspec.serving.engine import Engine as Engine
    from jaxspec.serving.handle import (
        CancelledError as CancelledError,
        Handle as Handle,
        Piece as Piece,
        QueueFullError as QueueFullError,
    )
    from jaxspec.serving.ray import (
        Completer as Completer,
        build_serve as build_serve,
        complete_files as complete_files,
    )
