"""Chooses the request that begins next, and the prompt that is fed next.

A request of a kind whose programs are being compiled lets others pass, and so does a long prompt a short one.
"""

from collections.abc import Hashable, Sequence

from jaxspec.serving.groups import Groups
from jaxspec.serving.job import Job
from jaxspec.serving.prompt import Prompt
from jaxspec.serving.waiting import Waiting


def due_prompt(prompts: Sequence[Prompt[Job]], groups: Groups[Job]) -> Prompt[Job] | None:
    """Returns the prompt whose turn it is: one that is fed and has a slot, or the newest, which was let pass."""
    fed = (one for one in prompts if one.left == 0 and has_slot(one, groups))
    return next(fed, None) or next((one for one in reversed(prompts) if one.left > 0), None)


def has_slot(prompt: Prompt[Job], groups: Groups[Job]) -> bool:
    """Returns whether a prompt that was fed can be decoded."""
    return groups.width_for(prompt.job.signature, prompt.arguments, 1) is not None


def next_job(waiting: Waiting[Job], prompts: Sequence[Prompt[Job]], groups: Groups[Job]) -> Job | None:
    """Removes the request that is to begin from those that wait; `None` if none can."""
    blocked: set[Hashable] = set()
    fed = [prompt for prompt in prompts if prompt.left > 0]
    for job in waiting:
        ids = job.request.prompts[0]
        passes = all(job.priority <= one.job.priority and one.lets_pass(ids) for one in fed)
        if not passes or job.signature in blocked:
            continue
        if _can_begin(job, waiting, prompts, groups):
            waiting.remove(job)
            for one in fed:
                one.let_pass(ids)
            return job
        blocked.add(job.signature)
    return None


def _can_begin(job: Job, waiting: Waiting[Job], prompts: Sequence[Prompt[Job]], groups: Groups[Job]) -> bool:
    """Returns whether the programs of a request are compiled, with a free slot; otherwise asks for them."""
    if job.request.grammars:  # decoded without the others
        return True
    kind = job.signature
    if not groups.can_score(kind, job.request.arguments, job.prompt_alternatives):
        return False
    alike = sum(one.job.signature == kind for one in prompts)
    further = sum(one.signature == kind for one in waiting) - 1
    return groups.width_for(kind, job.request.arguments, 1 + alike, further) is not None
