"""Checks a verification function of any engine against the target's distribution."""

import dataclasses
import functools
import math
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Literal, get_args

import numpy as np
from jaxtyping import Float
from tqdm import tqdm

from jaxspec.core import validate
from jaxspec.testing.cells import NotPartitionedError
from jaxspec.testing.emitted import Emitted, emit_by_sampling, emit_exactly, num_tests, prefixes
from jaxspec.testing.engine_call import EngineCall, Fault
from jaxspec.testing.given_uniforms import MoreUniformsError
from jaxspec.testing.instances import Draft, Drafting, Instance, Kind, Layers, chain, instances
from jaxspec.testing.policy_orders import PolicyOrder, distinguishing_rows
from jaxspec.testing.verifier_report import CheckedCase, Finding, VerifierReport

_TOLERANCE = 1e-4  # of total variation; float32, and thresholds found to 1e-6, stay far below
_CHECKS = 10_000  # random points that partitions must agree with, over all instances
_MORE_CHECKS = 1000  # for each draft of the first instance that fails
_FEW_CHECKS = 32  # for each draft after that
_SEED = 0
_FEWEST_ROUNDS = 250
_SHOWN_AFTER = 1.0  # seconds until calls are counted on a terminal
_MOST_UNIFORMS = 64
# The smallest and largest value of each entry of a policy. Colder than that, the weights of logits overflow.
_POLICY = MappingProxyType({"temperature": (1e-6, math.inf), "top_k": (1, math.inf), "top_p": (1e-6, 1)})
_NO_UNIFORMS = "pass the number of uniforms, or leave it out for a function that takes a generator"
_ARGMAX_DRAFTS = "drafts are the most likely tokens, and draft_probs say that they were drawn; pass one-hot rows"


def check_verifier(
    verify: Callable[..., Any],
    *,
    kind: Kind = "chain",
    uniforms: int | None = None,
    greedy: bool = False,
    policy: Mapping[str, int | float] | None = None,
    drafts: Literal["independent", "distinct", "argmax"] = "independent",
    false_alarm_rate: float = 1e-6,
    samples: int = 10_000,
) -> VerifierReport:
    """Checks whether a verification function is lossless, and returns the smallest counterexample if it is not.

    The function is called with small targets and drafts, and the texts that it emits, continued by the target, are
    compared with the target's. The cube of its uniforms is partitioned into boxes of one result, so that all
    probabilities are exact. A function that is not a step function of a few uniforms is sampled. A check that takes
    longer than a second counts the calls on stderr, if that is a terminal.

    Args:
      verify: `verify(target_probs[n + 1, v], draft_probs[n, v], tokens[n], randomness)`, NumPy arrays in float64. Row 0
        of the target is its distribution after the text so far, and row `i + 1` after draft `i`. Returns the emitted
        tokens as a list or an array, the accepted drafts and one more, perhaps with -1 after them; or for a chain the
        tuple `(num_accepted, next_token)`.
      kind: `"chain"`, as above; `"drafts"`, several chains of one draft: `target_probs[d, n + 1, v]`,
        `draft_probs[d, n, v]`, `tokens[d, n]`; `"tree"`, with `parents[n]` before the randomness, -1 for the text.
      uniforms: number of uniforms in `[0, 1)` to pass as randomness, enough for three drafts or four nodes.
        `None` passes a `numpy.random.Generator`, whose `random`, `uniform`, `choice` and `multinomial` return uniforms
        of the check; the result is exact if at most 8 are drawn. With other methods, rounds are sampled.
      greedy: whether the target's most likely tokens must come out, given `target_probs` that are not one-hot.
      policy: dictionary with `temperature`, `top_k` and `top_p`. The function then gets these by name, and the target's
        logits instead of probabilities, to process in the order of transformers: temperature, top-k, top-p.
      drafts: `"independent"`; `"distinct"`, siblings drawn without replacement; or `"argmax"`, for an engine that
        drafts the most likely tokens but passes unchanged `draft_probs`.
      false_alarm_rate: if rounds are sampled, the probability that a lossless function is called biased.
      samples: maximum number of sampled rounds per target and draft.

    Raises:
      TypeError: if `verify` is not callable, or another argument has the wrong type.
      ValueError: if the first call fails or returns no tokens, if the function needs more uniforms than it is given,
        or if another argument is out of range.

    Example:
        >>> def verify(target_probs, draft_probs, tokens, uniforms):
        ...     if uniforms[0] * draft_probs[0, tokens[0]] < target_probs[0, tokens[0]]:
        ...         return 1, np.searchsorted(np.cumsum(target_probs[1]), uniforms[-1], side="right")
        ...     return 0, np.argmax(target_probs[0] - draft_probs[0])  # should be drawn, of three tokens or more
        >>> report = jaxspec.testing.check_verifier(verify, uniforms=2)
        >>> report.lossless, report.exact
        (False, True)
        >>> report.counterexample
        'target [0, 0.4, 0.6], draft [0.5, 0.3, 0.2]: token 1 comes out with 0.3, should be 0.4'
    """
    _validate(verify, kind, uniforms, greedy, policy, drafts)
    validate.integers("the check", samples=(samples, 1, validate.LARGEST))
    validate.in_range("the check", false_alarm_rate=(false_alarm_rate, 0, 1))
    if false_alarm_rate in (0, 1):
        raise ValueError(f"false_alarm_rate must be above 0 and below 1, got {false_alarm_rate}; pass 1e-6")
    # A line on stderr for a check that takes long, if that is a terminal.
    shown = {"bar_format": "{desc}: {n_fmt} calls in {elapsed}, {rate_fmt}", "unit": " calls", "leave": False}
    with np.errstate(all="ignore"), tqdm(desc="first call", delay=_SHOWN_AFTER, disable=None, **shown) as line:
        check = _Check(verify, kind, uniforms, bool(greedy), dict(policy or {}), drafts, line)
        check.try_once()
        return check.run(false_alarm_rate, samples)


def _validate(verify: Any, kind: Any, uniforms: Any, greedy: Any, policy: Any, drafts: Any) -> None:
    """Raises an error for an invalid function or case."""
    if not callable(verify):
        arguments = "target_probs, draft_probs, tokens, randomness"
        raise TypeError(f"verify must be callable as verify({arguments}), got {validate.shown(verify)}")
    validate.one_of("kind", kind, get_args(Kind))
    validate.one_of("drafts", drafts, ("independent", "distinct", "argmax"))
    if drafts == "distinct" and kind != "tree":
        raise ValueError(f"drafts='distinct' draws siblings of a tree, got kind={kind!r}; pass kind='tree' too")
    if uniforms is not None:
        validate.integers("the check", _NO_UNIFORMS, uniforms=(uniforms, 0, _MOST_UNIFORMS))
    validate.flag("greedy", greedy, "greedy=True expects the target's most likely tokens")
    if policy is not None and not isinstance(policy, Mapping):
        raise TypeError(
            f"policy must be a dictionary, got {validate.shown(policy)}; pass policy={{'temperature': 0.7}}"
        )
    for name, value in (policy or {}).items():
        validate.one_of("names in policy", name, tuple(_POLICY))
        if name == "temperature" and isinstance(value, int | float) and value == 0:
            raise ValueError(f"policy needs temperature above 0, got {value}; pass greedy=True instead")
        low, high = _POLICY[name]
        validate.in_range("policy", **{name: (value, low, high)})
        if name == "top_k" and value != int(value):
            raise TypeError(f"policy needs an integer as top_k, got {value}")
    if greedy and policy:
        raise ValueError("greedy=True takes no policy (temperature, top-k, top-p); leave out one")


@dataclasses.dataclass
class _Check:
    verify: Callable[..., Any]
    kind: Kind
    uniforms: int | None
    greedy: bool
    policy: dict[str, int | float]
    drafts: Drafting
    line: tqdm
    calls: list[EngineCall] = dataclasses.field(default_factory=list)
    findings: dict[str, Finding] = dataclasses.field(default_factory=dict)
    copies: bool = False
    axes: int = 1  # uniforms that are given: of a generator as many as any call was found to draw

    def __post_init__(self):
        if self.uniforms is not None:
            self.axes = self.uniforms

    @functools.cached_property
    def instances(self) -> tuple[Instance, ...]:
        """Targets and drafts, smallest first."""
        if self.policy:
            return self._of_policy()
        found = instances(self.kind, self.drafts)
        return tuple(each for one in found if (each := _greedy(one)) is not None) if self.greedy else found

    def _of_policy(self) -> tuple[Instance, ...]:
        order, parents = PolicyOrder(self.policy), instances(self.kind, self.drafts)[0].parents

        def instance(parents: tuple[int, ...], draft: Layers, given: Layers) -> Instance:
            target = Layers(tuple(map(order.probs, given.rows)))
            return Instance(target, draft, parents, self.drafts, given, given_logits=True)

        rows = sorted(distinguishing_rows(order, 3), key=np.size)
        found = [
            instance(parents, Layers((draft,)), Layers((row, row[::-1])))
            for row in rows
            for draft in (np.full(row.size, 1 / row.size), _tilted(row.size))
        ]
        if self.kind == "chain":  # one of two drafts
            first = rows[0]
            found.append(instance(chain(2), Layers((_tilted(first.size),) * 2), Layers((first, first[::-1], first))))
        return tuple(found)

    def call(self, instance: Instance, draft: Draft) -> EngineCall:
        """Returns the call for one possible draft."""
        keywords = {name: int(value) if name == "top_k" else value for name, value in self.policy.items()}
        self.calls.append(
            EngineCall(
                self.verify, self.kind, instance, draft, keywords, self.copies, self.uniforms is None, self.line.update
            )
        )
        return self.calls[-1]

    def try_once(self) -> None:
        """Raises `ValueError` if the first call fails, since the arguments are then most likely wrong."""
        # The last instance too: it needs the most uniforms.
        for instance in (self.instances[0], self.instances[-1]):
            randomness = np.random.default_rng(_SEED) if self.uniforms is None else np.full(self.uniforms, 0.5)
            call = self.call(instance, instance.drafts[0])
            result = call(randomness)
            if isinstance(result, Fault) and result.kind in ("raises", "form"):
                shapes = [array.shape for array in call.arrays()]
                given = "a Generator" if self.uniforms is None else f"{self.uniforms} uniforms"
                more = self.more_uniforms
                enough = more > self.axes and not isinstance(call(np.full(more, 0.5)), Fault)
                advice = f"; pass uniforms={more}, with which it does not" if enough else ""
                raise ValueError(f"verify, given arrays of shapes {shapes} and {given}, {result.words}{advice}")
            if call.restore():
                self._note_change()

    def run(self, false_alarm_rate: float, samples: int) -> VerifierReport:
        """Evaluates all instances, and returns the report."""
        given, exact = self.instances, True
        try:
            found, biased = self._exactly_with_copies(given)
        except NotPartitionedError as error:
            exact = False
            words = f"the function is sampled, as it could not be divided into cells of its uniforms: {error}"
            self.findings["sampled"] = Finding("sampled", words, biased=False)
            found, biased = self._sampled(given, false_alarm_rate, samples)
        if True in biased:
            self._require_enough_uniforms(given[biased.index(True)], exact, false_alarm_rate, samples)
        counterexample = self._look(given, found, biased, exact)
        return VerifierReport(
            lossless=not any(biased) and not any(finding.biased for finding in self.findings.values()),
            exact=exact,
            counterexample=counterexample,
            findings=tuple(self.findings.values()),
            false_alarm_rate=0.0 if exact else false_alarm_rate,
            num_calls=sum(call.count for call in self.calls),
            cases=tuple(map(_case, given, found)),
        )

    @property
    def more_uniforms(self) -> int:
        """Enough uniforms for a function that takes a few more than it is given; `axes` if it takes a generator."""
        most = max(len(instance.parents) for instance in self.instances)
        return self.axes if self.uniforms is None else min(self.uniforms + most + 1, _MOST_UNIFORMS)

    def _require_enough_uniforms(self, instance: Instance, exact: bool, rate: float, samples: int) -> None:
        """Raises `ValueError` if a case fails only because the function gets too few uniforms.

        It then reads beyond the last one, or takes the last one twice, by an index of -1.
        """
        more = self.more_uniforms
        if more == self.axes:
            return
        check = dataclasses.replace(self, uniforms=more, calls=[], findings={})
        try:
            _, biased = check._exactly((instance,)) if exact else check._sampled((instance,), rate, samples)
        except NotPartitionedError:
            return
        if not any(biased):
            raise ValueError(
                f"verify needs more than uniforms={self.uniforms}: with {more} its output for {instance} is right, "
                f"with {self.uniforms} it is not; pass uniforms={more}"
            )

    def _exactly_with_copies(self, given: tuple[Instance, ...]) -> tuple[list[Emitted], list[bool]]:
        try:
            return self._exactly(given)
        except MoreUniformsError as error:
            (self.axes,) = error.args
            return self._exactly_with_copies(given)
        except NotPartitionedError:
            # Changed arguments may be the reason.
            if self.copies or not any(call.restore() for call in self.calls):
                raise
        self._note_change()
        return self._exactly_with_copies(given)

    def _exactly(self, given: tuple[Instance, ...]) -> tuple[list[Emitted], list[bool]]:
        checks = math.ceil(_CHECKS / sum(len(instance.drafts) for instance in given))
        found, far = [], []
        for number, instance in enumerate(given, 1):
            self.line.set_description_str(f"case {number} of {len(given)}", refresh=False)
            expected = instance.target.texts((), instance.length)
            work_out = lambda checks, instance=instance: emit_exactly(  # noqa: E731
                instance, self.call, self.axes, checks=checks, rng=np.random.default_rng(_SEED)
            )
            # A fault at an edge of the uniforms does not show how far off the rest is.
            one = work_out(_FEW_CHECKS if any(far) else checks)
            if one.changed and not self.copies:
                self._note_change()
                one = work_out(checks)
            if one.total_variation(expected) > _TOLERANCE and not any(far):
                one = work_out(_MORE_CHECKS)
            found.append(one)
            far.append(one.total_variation(expected) > _TOLERANCE)
        return found, [off or bool(one.faults) for off, one in zip(far, found, strict=True)]

    def _sampled(self, given: tuple[Instance, ...], rate: float, samples: int) -> tuple[list[Emitted], list[bool]]:
        rng = np.random.default_rng(_SEED)
        own = np.random.default_rng(_SEED + 1)
        randomness = (lambda: own) if self.uniforms is None else (lambda: own.random(self.uniforms))
        looks = [samples]
        while looks[0] > 4 * _FEWEST_ROUNDS:
            looks.insert(0, looks[0] // 4)
        bound = math.log(2 * num_tests(given, tuple(looks)) / rate)
        found = []
        for number, instance in enumerate(given, 1):
            self.line.set_description_str(f"case {number} of {len(given)}, sampled", refresh=False)
            sample = lambda instance=instance: emit_by_sampling(  # noqa: E731
                instance, self.call, randomness, looks=tuple(looks), bound=bound, rng=rng
            )
            one = sample()
            if one[0].changed and not self.copies:
                self._note_change()
                one = sample()
            found.append(one)
        return [one for one, _ in found], [far for _, far in found]

    def _note_change(self) -> None:
        self.copies = True  # for all later calls
        words = "verify changes its arguments in place, which an engine may use again; it was given copies"
        self.findings["arguments"] = Finding("arguments", words, biased=False)

    def _look(self, given: tuple[Instance, ...], found: list[Emitted], biased: list[bool], exact: bool) -> str | None:
        """Adds findings; returns the counterexample."""
        drawn = [one for one, instance in zip(found, given, strict=True) if not _is_certain(instance)]
        if drawn and not any(one.varies for one in drawn):
            self.findings["greedy"] = Finding("greedy", "the emitted tokens do not depend on the randomness")
        for instance, one in zip(given, found, strict=True):
            for fault, when in one.faults:
                if fault.kind not in self.findings:
                    self.findings[fault.kind] = Finding(fault.kind, f"{fault.words} ({instance}; {when})")
        if not any(biased):
            return None
        if self.drafts == "argmax":
            self.findings["argmax drafts"] = Finding("argmax drafts", _ARGMAX_DRAFTS)
        if self.policy and (order := _fitting_order(PolicyOrder(self.policy), given, found, exact)) is not None:
            words = f"the output fits {order}; transformers applies {PolicyOrder(self.policy)}"
            self.findings["order"] = Finding("order", words)
        return _counterexample(given[biased.index(True)], found[biased.index(True)])


def _case(instance: Instance, one: Emitted) -> CheckedCase:
    distance = one.total_variation(instance.target.texts((), instance.length))
    is_chain = instance.parents == chain(len(instance.parents))
    return CheckedCase(str(instance), distance, one.tokens, instance.best_chain() if is_chain else None)


def _tilted(vocab: int) -> Float[np.ndarray, "v"]:
    weights = np.arange(1.0, vocab + 1)
    return weights / weights.sum()


def _greedy(instance: Instance) -> Instance | None:
    """Returns the instance with the most likely tokens as its target; `None` if two are equally likely."""
    rows = instance.target.rows
    if any((np.sort(row)[..., -1] == np.sort(row)[..., -2]).any() for row in rows):
        return None
    target = Layers(tuple(np.eye(instance.vocab)[row.argmax(axis=-1)] for row in rows))
    return dataclasses.replace(instance, target=target, given=instance.target)


def _is_certain(instance: Instance) -> bool:
    """Returns whether the target has only one text."""
    return bool(instance.target.texts((), instance.length).max() > 1 - _TOLERANCE)


def _fitting_order(
    policy: PolicyOrder, given: tuple[Instance, ...], found: list[Emitted], exact: bool
) -> PolicyOrder | None:
    """Returns another order of the policy that fits the first tokens of all instances."""
    for other in policy.others():
        fits = []
        for instance, one in zip(given, found, strict=True):
            row = other.probs((instance.given or instance.target).probs(()))
            most = _TOLERANCE if exact else math.sqrt(row.size / one.num_rounds)
            fits.append(0.5 * float(np.abs(next(prefixes(one.probs)) - row).sum()) <= most)
        if all(fits):
            return other
    return None


def _counterexample(instance: Instance, one: Emitted) -> str:
    """Describes the prefix of a text that comes out too often or too rarely."""
    expected = instance.target.texts((), instance.length)
    pairs = list(zip(prefixes(one.probs), prefixes(expected), strict=True))
    distances = [0.5 * float(np.abs(came - should).sum()) for came, should in pairs]
    if max(distances) <= _TOLERANCE or one.lost > _TOLERANCE:
        fault, when = one.faults[0]
        return f"{fault.words} ({instance}; {when})"
    clear = _TOLERANCE if one.num_rounds == 0 else max(distances) / 2
    came, should = next(pair for pair, distance in zip(pairs, distances, strict=True) if distance > clear)
    text = np.unravel_index(int(np.abs(came - should).round(5).argmax()), came.shape)  # the first of equal ones
    tokens = ", ".join(str(int(token)) for token in text)
    subject = f"token {tokens} comes" if len(text) == 1 else f"tokens {tokens} come"
    rounds = f" ({one.num_rounds:,} sampled rounds)" if one.num_rounds else ""
    return f"{instance}: {subject} out with {came[text]:.3g}, should be {should[text]:.3g}{rounds}"
