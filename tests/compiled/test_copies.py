"""Which whole arrays a compiled round moves, and why."""

import dataclasses

from jaxspec.compiled.copies import Copies, copies
from jaxspec.compiled.hlo import Program

# A round with a weight of a million numbers, which an inner loop uses, and a cache of as many, which a round changes.
_FAR, _NEAR = "bf16[1024,1024]{1,0}", "bf16[1024,1024]{1,0:S(1)}"
_MILLION = 2 * 1024 * 1024
TEXT = """HloModule jit_f

%inner (p: (s32[], bf16[1024,1024])) -> (s32[], bf16[1024,1024]) {
  %p = (s32[], FAR) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %weight = FAR get-tuple-element(%p), index=1
  %fetch = (NEAR, FAR, u32[]) copy-start(%weight)
  %fetched = NEAR copy-done(%fetch)
  ROOT %out = (s32[], FAR) tuple(%i, %weight)
}

%condition (p: (s32[], bf16[1024,1024])) -> pred[] {
  ROOT %true = pred[] constant(true)
}

%retiled (input: bf16[1024,1024]) -> bf16[1024,1024] {
  %input = FAR parameter(0)
  ROOT %copy.9 = NEAR copy(%input)
}

%round (state: (s32[], bf16[1024,1024], bf16[1024,1024])) -> (s32[], bf16[1024,1024], bf16[1024,1024]) {
  %state = (s32[], FAR, FAR) parameter(0)
  %n = s32[] get-tuple-element(%state), index=0
  %held = FAR get-tuple-element(%state), index=1
  %cache = FAR get-tuple-element(%state), index=2
  %given = (s32[], FAR) tuple(%n, %held)
  %loop = (s32[], FAR) while(%given), condition=%condition, body=%inner, x={"known_trip_count":{"n":"3"}}
  %kept = FAR get-tuple-element(%loop), index=1
  %piece = ((FAR), bf16[512,1024]{1,0:S(1)}, u32[]) slice-start(%kept), slice={[0:512], [0:1024]}
  %bring = (NEAR, FAR, u32[]) copy-start(%cache)
  %brought = NEAR copy-done(%bring)
  %anew = NEAR fusion(%brought), kind=kLoop, calls=%retiled
  %written = NEAR dynamic-update-slice(%anew, %anew, %n)
  %return = (FAR, NEAR, u32[]) copy-start(%written)
  %returned = FAR copy-done(%return)
  %again = FAR copy(%returned)
  %little = bf16[8]{0} copy(%n)
  ROOT %next = (s32[], FAR, FAR) tuple(%n, %kept, %again)
}

ENTRY %main (s: (s32[], bf16[1024,1024], bf16[1024,1024])) -> (s32[], bf16[1024,1024], bf16[1024,1024]) {
  %s = (s32[], FAR, FAR) parameter(0)
  ROOT %w = (s32[], FAR, FAR) while(%s), condition=%condition, body=%round, metadata={op_name="rounds/while"}
}
""".replace("FAR", _FAR).replace("NEAR", _NEAR)


def _copies(text):
    program = Program(text)
    return copies(program, "round", program.steps("round", lambda loop: 1))


def test_what_is_fetched_is_told_from_what_is_copied():
    assert _copies(TEXT) == Copies(
        main=2 * _MILLION,  # `again`, read and written
        chip=_MILLION,  # `anew`
        carried=2 * _MILLION,  # to the chip and back
        fetched=3 * _MILLION + _MILLION // 2,  # three trips, and half of it by `piece`
    )


def test_a_weight_that_a_round_changes_is_none():
    changed = TEXT.replace("tuple(%n, %kept, %again)", "tuple(%n, %again, %kept)")
    found, kept = _copies(changed), _copies(TEXT)
    assert found == dataclasses.replace(kept, carried=kept.carried + 3 * _MILLION, fetched=0)
