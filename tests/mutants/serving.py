"""Faults of requests that come and go."""

from tests.mutants.mutant import Mutant

_SLOTS, _FEEDING, _REUSE, _PREFIXES, _ENGINE, _FILES = (
    "tests/decoding/test_slots.py",
    "tests/decoding/test_feeding.py",
    "tests/decoding/test_reuse.py",
    "tests/serving/test_prefixes.py",
    "tests/serving/test_engine.py",
    "tests/serving/test_completion.py",
)
_APP = "tests/serving/test_app.py"
_GROUPS = "tests/serving/test_groups.py"
_FEED = "decoding/feeding.py"
_WHOLE = "tests/decoding/test_slots.py::test_a_row_brings_all_that_it_has"
_PUT = "state=slots.axes.insert(slots.state, row, slot)"


def _put(change: str) -> str:
    return f"state=(lambda x, old: {change})(slots.axes.insert(slots.state, row, slot), slots.state)"


MUTANTS = (
    Mutant(
        "rows that moved are looked for in their old slots",
        "serving/group.py",
        "self.live = dict(enumerate(self.live.values()))",
        "self.live = dict(self.live)",
        (f"{_ENGINE}::test_rows_move_to_half_the_width_and_back",),
    ),
    Mutant(
        "a request with a seed is drawn as others are",
        "serving/engine.py",
        "verifier = seeded_verifier() if coupled else None",
        "verifier = None",
        (f"{_ENGINE}::test_texts_of_all_kinds_are_those_of_lone_calls",),
        slow=True,
    ),
    Mutant(
        "a new kind of request compiles where it is called",
        "serving/groups.py",
        "        if not done and not any(map(self._programs.asked, moves)):",
        "        if not done:\n            return best\n        if not any(map(self._programs.asked, moves)):",
        (f"{_GROUPS}::test_others_are_decoded_while_a_kind_compiles",),
    ),
    Mutant(
        "a request waits for the programs of kinds that nobody has asked for",
        "serving/compiler.py",
        "if key in self._asked and (later or key not in self._later):",
        "if key in self._asked:",
        ("tests/serving/test_compiler.py::test_what_a_request_waits_for_comes_before_what_is_for_later",),
    ),
    Mutant(
        "an engine is ready before its kinds are compiled",
        "serving/engine.py",
        "return self.open and self._first()",
        "return self.open",
        (f"{_GROUPS}::test_an_engine_is_ready_when_its_kinds_are_compiled",),
    ),
    Mutant(
        "short prompts pass a long one for ever",
        "serving/prompt.py",
        "self.grace -= self._chunks(ids)",
        "pass",
        (f"{_ENGINE}::test_short_prompts_pass_a_long_one_but_not_for_ever",),
        slow=True,
    ),
    Mutant(
        "an absent penalty of a program that has all is not neutral",
        "text/alike.py",
        '"presence": 0.0, "frequency": 0.0}',
        '"presence": 0.0, "frequency": 0.5}',
        ("tests/text/test_alike.py::test_absent_processors_change_no_logit",),
        slow=True,
    ),
    Mutant(
        "a batch's failed request counts as answered",
        "serving/batch.py",
        'return answer["response"]["status_code"] != 200',
        'return answer["error"] is not None',
        (f"{_FILES}::test_requests_of_a_batch_have_answers_in_its_form",),
        slow=True,
    ),
    Mutant(
        "an answer that was cut off is kept",
        "serving/completion.py",
        'whole = raw[: raw.rfind(b"\\n") + 1]',
        'whole = raw + b"\\n"',
        (f"{_FILES}::test_an_interrupted_run_goes_on",),
    ),
    Mutant(
        "a cancelled row goes on",
        "decoding/slots.py",
        "state = slots.state if cancel is None else slots.state.with_done(slots.state.done | cancel)",
        "state = slots.state",
        (f"{_SLOTS}::test_a_row_that_was_cancelled_emits_nothing_more",),
    ),
    Mutant(
        "a released slot keeps its length",
        "decoding/slots.py",
        "length = jnp.where(which, 1, context.length)",
        "length = context.length",
        (f"{_SLOTS}::test_a_released_slot_is_free",),
    ),
    Mutant(
        "a chunk that is fed later begins the prompt again",
        _FEED,
        "fori_loop(feeding.fed, stop, feed, carry)",
        "fori_loop(0 * feeding.fed, stop - feeding.fed, feed, carry)",
        (f"{_FEEDING}::test_caches_are_those_of_a_prompt_that_is_fed_at_once[model | default | sampled]",),
    ),
    Mutant(
        "a drafter that cannot continue has read one token of its prompt",
        _FEED,
        "    if feeding.by_chunk:\n        return feeding.row",
        "    if True:\n        return feeding.row",
        (f"{_FEEDING}::test_a_drafter_that_cannot_continue_reads_the_prompt_at_the_end",),
    ),
    Mutant(
        "rows wait for the end of a long prompt",
        "serving/engine.py",
        "self._share.fed(_work_time() - began)",
        "pass",
        (f"{_ENGINE}::test_a_neighbor_is_decoded_between_the_chunks_of_a_long_prompt",),
    ),
    Mutant(
        "a prompt is fed to its end though it was cancelled",
        "serving/engine.py",
        "if reason := prompt.job.over:",
        "if False and (reason := prompt.job.over):",
        (f"{_ENGINE}::test_a_prompt_is_dropped_while_it_is_fed",),
    ),
    Mutant(
        "a row is drawn with the key of its neighbor",
        "decoding/slots.py",
        _PUT,
        _put("dataclasses.replace(x, keys=jnp.roll(x.keys, 1))"),
        (_WHOLE,),
    ),
    Mutant(
        "a row has the length of the slot's previous owner",
        "decoding/slots.py",
        _PUT,
        _put("dataclasses.replace(x, context=dataclasses.replace(x.context, length=old.context.length))"),
        (_WHOLE,),
    ),
    Mutant(
        "a row has the tokens of the slot's previous owner",
        "decoding/slots.py",
        _PUT,
        _put("dataclasses.replace(x, context=dataclasses.replace(x.context, tokens=old.context.tokens))"),
        (_WHOLE,),
    ),
    Mutant(
        "a row drafts with the state of the slot's previous owner",
        "decoding/slots.py",
        _PUT,
        _put("dataclasses.replace(x, drafter_state=old.drafter_state)"),
        (_WHOLE,),
    ),
    Mutant(
        "a head's last reused entry belongs to another token",
        "serving/prefixes.py",
        "min(alike - 1, len(tokens) - 2, one.valid)",
        "min(alike, len(tokens) - 2, one.valid)",
        (f"{_PREFIXES}::test_whole_chunks_are_taken",),
    ),
    Mutant(
        "more is taken of a text than its caches hold",
        "serving/prefixes.py",
        "min(alike - 1, len(tokens) - 2, one.valid)",
        "min(alike - 1, len(tokens) - 2)",
        (f"{_PREFIXES}::test_no_more_is_taken_than_is_valid_and_allowed",),
    ),
    Mutant(
        "a text counts as held though its head has read less",
        "decoding/reuse.py",
        "held = least_held(cache.length, drafter.held(drafter_state))",
        "held = cache.length",
        (f"{_REUSE}::test_what_a_head_has_not_read_is_not_held",),
    ),
    Mutant(
        "a head reads a state that was never computed",
        "decoding/feeding.py",
        "jnp.clip(self.text.start(self.index) - 1, self.reused, self.width + 1 - count)",
        "jnp.clip(self.text.start(self.index) - 1, 0, self.width + 1 - count)",
        (f"{_REUSE}::test_rows_have_the_tokens_of_a_lone_call[eagle | default | sampled]",),
        slow=True,
    ),
    Mutant(
        "a text that was taken from is lost",
        "decoding/reuse.py",
        "cache, drafter_state = jax.tree.map(jnp.copy, (cache, drafter_state))",
        "pass",
        (f"{_REUSE}::test_the_other_row_stays_valid",),
    ),
    Mutant(
        "a text is continued by a request with another salt",
        "serving/prompt.py",
        "self._kind = salt, kind_of(",
        "self._kind = None, kind_of(",
        (f"{_ENGINE}::test_a_text_with_another_salt_is_never_continued",),
    ),
    Mutant(
        "lists of tokens have programs of their own",
        "text/alike.py",
        "shared_width(len(array), _LISTED) - len(array)",
        "0",
        ("tests/text/test_decoder.py::test_lists_of_tokens_have_few_widths",),
    ),
    Mutant(
        "the second grammar of a request wins",
        "serving/fields.py",
        'if len(both := ["response_format"] * bool(found) + named) > 1:',
        'if len(both := ["response_format"] * bool(found) + named) > 9:',
        (f"{_APP}::test_two_grammars_are_an_error_that_names_both",),
    ),
    Mutant(
        "a token of a prompt has the log-probability of the one after it",
        "decoding/prompt_scores.py",
        "places = text.start(index) + 1 + jnp",
        "places = text.start(index) + 2 + jnp",
        (f"{_ENGINE}::test_a_prompt_is_scored_while_it_is_fed",),
        slow=True,
    ),
    Mutant(
        "what is not fed of a scored prompt has no scores",
        "serving/prompt.py",
        "if not self.continues or self.scores is not None:",
        "if not self.continues:",
        (f"{_ENGINE}::test_a_prompt_is_scored_while_it_is_fed",),
        slow=True,
    ),
    Mutant(
        "another model's name is answered",
        "serving/app.py",
        "if name != self._model:",
        "if name is None:",
        (f"{_APP}::test_errors_of_the_router_and_of_bodies_have_the_form_too",),
    ),
    Mutant(
        "any key lets everybody in",
        "serving/app.py",
        "if self._api_key is not None and not hmac.compare_digest(sent, self._api_key.encode()):",
        "if self._api_key is not None and not sent:",
        (f"{_APP}::test_a_server_with_a_key_lets_nobody_else_in",),
    ),
    Mutant(
        "a server that is about to stop takes requests",
        "serving/app.py",
        "if request.app.state.draining:",
        "if not self._engine.open:",
        (f"{_APP}::test_a_server_that_is_about_to_stop_refuses_requests",),
    ),
    Mutant(
        "costs of one row are those of many",
        "drafters/adapt.py",
        "return adapt(drafter, target, longest, batch=batch) if same else drafter",
        "return drafter",
        ("tests/drafters/test_adapt.py::test_costs_follow_the_number_of_rows_unless_they_are_the_user_s",),
    ),
    Mutant(
        "a greedy tree takes the program of sampled ones",
        "text/request.py",
        'target.traits.kernels == "native" and not drafter.tree',
        'target.traits.kernels == "native"',
        (
            "tests/text/test_programs.py::test_greedy_texts_of_a_tree_or_without_native_kernels_have_a_program_of_their_own",
        ),
    ),
    Mutant(
        "a number beyond float16 becomes infinite in a cache",
        "nn/cache_half.py",
        "jax.lax.reduce_precision(jnp.clip(x, -_LARGEST, _LARGEST)",
        "jax.lax.reduce_precision(x",
        ("tests/nn/test_cache_half.py::test_numbers_beyond_float16_are_its_largest",),
    ),
)
