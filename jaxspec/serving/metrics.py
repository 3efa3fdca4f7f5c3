"""Counts what a server does, for Prometheus, under vLLM's names."""

from typing import TYPE_CHECKING

import numpy as np
import prometheus_client as prometheus

from jaxspec.serving.answers import later_seconds
from jaxspec.serving.handle import Handle
from jaxspec.text.result import TextResult

if TYPE_CHECKING:
    from jaxspec.serving.engine import Engine

_LABELS = ("model_name", "engine")
_SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10000.0, 20000.0)


class Metrics:
    """Holds the counters, gauges and histograms of one server.

    Example:
        >>> from jaxspec.serving.metrics import Metrics
        >>> with jaxspec.Engine(target, "ngram", slots=2, capacity=32) as engine:
        ...     b"vllm:num_requests_running" in Metrics(engine, "small").text()
        True
    """

    def __init__(self, engine: "Engine", model: str) -> None:
        """Creates them; `engine` is read when they are asked for."""
        self.registry = prometheus.CollectorRegistry()
        self._labels = {"model_name": model, "engine": "0"}
        gauge = lambda name, text, read: self._gauge(name, text).set_function(read)  # noqa: E731
        gauge("num_requests_running", "Requests in a slot.", lambda: engine.running)
        gauge("num_requests_waiting", "Requests that wait for a slot.", lambda: engine.waiting)
        gauge("kv_cache_usage_perc", "Slots that are taken, 0 to 1.", lambda: engine.running / engine.slots)
        info = prometheus.Gauge(
            "vllm:cache_config_info",
            "The size of a slot in tokens, and the number of slots.",
            (*_LABELS, "block_size", "num_gpu_blocks"),
            registry=self.registry,
        )
        info.labels(**self._labels, block_size=str(engine.capacity), num_gpu_blocks=str(engine.slots)).set(1)
        counter = self._counter
        self._prompt = counter("prompt_tokens", "Tokens of prompts.")
        self._new = counter("generation_tokens", "New tokens.")
        self._rounds = counter("spec_decode_num_drafts", "Rounds of drafting and verification.")
        self._drafted = counter("spec_decode_num_draft_tokens", "Drafted tokens that were verified.")
        self._accepted = counter("spec_decode_num_accepted_tokens", "Drafted tokens that were accepted.")
        self._places = self._labeled("spec_decode_num_accepted_tokens_per_pos", "Accepted tokens by place.", "position")
        self._asked = counter("prefix_cache_queries", "Tokens of prompts that were looked for in earlier texts.")
        self._reused = counter("prefix_cache_hits", "Tokens of prompts that were not fed, as an earlier text has them.")
        counter("num_preemptions", "Requests that lost their slot: none.")
        self._ended = self._labeled("request_success", "Requests by the reason of their end.", "finished_reason")
        self._refused = self._labeled("admission_rejections", "Requests that were not taken.", "reason")
        self._first = self._histogram("time_to_first_token_seconds", "Time to the first text.", _SECONDS)
        self._between = self._histogram("inter_token_latency_seconds", "Time between pieces of text.", _SECONDS)
        self._whole = self._histogram("e2e_request_latency_seconds", "Time of a request.", _SECONDS)
        self._each = self._histogram(
            "request_time_per_output_token_seconds", "Time of a token but the first.", _SECONDS
        )
        self._queued = self._histogram("request_queue_time_seconds", "Time until a prompt is fed.", _SECONDS)
        self._fed = self._histogram("request_prefill_time_seconds", "Time in which a prompt is fed.", _SECONDS)
        self._decoded = self._histogram("request_decode_time_seconds", "Time of a request in a slot.", _SECONDS)
        self._inferred = self._histogram("request_inference_time_seconds", "Time but that in the queue.", _SECONDS)
        self._prompts = self._histogram("request_prompt_tokens", "Tokens of a prompt.", _TOKENS)
        self._answers = self._histogram("request_generation_tokens", "New tokens of a request.", _TOKENS)
        self._counts = self._histogram("request_params_n", "Answers that a request asks for.", _TOKENS)
        self._limits = self._histogram("request_params_max_tokens", "Tokens that a request asks for.", _TOKENS)

    def first(self, seconds: float) -> None:
        """Counts the time from a request to its first text."""
        self._first.observe(seconds)

    def between(self, seconds: float) -> None:
        """Counts the time between two pieces of text."""
        self._between.observe(seconds)

    def asked(self, answers: int, most: int | None) -> None:
        """Counts a request by the number of its answers and, if there is one, by its limit of tokens."""
        self._counts.observe(answers)
        if most is not None:
            self._limits.observe(most)

    def refused(self, reason: str) -> None:
        """Counts a request that was not taken."""
        self._refused.labels(**self._labels, reason=reason).inc()

    def ended(self, result: TextResult, reason: str, seconds: float, handle: Handle) -> None:
        """Counts an answer, with the times of its request."""
        new, stats = len(result.token_ids), result.stats
        queued, fed = handle.queue_seconds or 0.0, handle.prompt_seconds or 0.0
        self._queued.observe(queued)
        self._fed.observe(fed)
        self._decoded.observe(max(seconds - queued - fed, 0.0))
        self._inferred.observe(max(seconds - queued, 0.0))
        if (later := later_seconds(result)) is not None:
            self._each.observe(later)
        for place, count in enumerate(np.cumsum(np.asarray(stats.histogram)[0][:0:-1])[::-1].tolist()):
            self._places.labels(**self._labels, position=str(place)).inc(count)
        self._prompt.inc(result.prompt_tokens)
        self._asked.inc(result.prompt_tokens)
        self._reused.inc(handle.reused_tokens)
        self._new.inc(new)
        self._rounds.inc(int(stats.rounds[0]))
        self._drafted.inc(int(stats.drafted[0]))
        self._accepted.inc(int(stats.accepted[0]))
        self._whole.observe(seconds)
        self._prompts.observe(result.prompt_tokens)
        self._answers.observe(new)
        self.left(reason)

    def left(self, reason: str) -> None:
        """Counts a request by the reason of its end."""
        self._ended.labels(**self._labels, finished_reason=reason).inc()

    def text(self) -> bytes:
        """Returns what Prometheus reads."""
        return prometheus.generate_latest(self.registry)

    def _gauge(self, name: str, text: str) -> prometheus.Gauge:
        return prometheus.Gauge(f"vllm:{name}", text, _LABELS, registry=self.registry).labels(**self._labels)

    def _counter(self, name: str, text: str) -> prometheus.Counter:
        return prometheus.Counter(f"vllm:{name}", text, _LABELS, registry=self.registry).labels(**self._labels)

    def _labeled(self, name: str, text: str, label: str) -> prometheus.Counter:
        return prometheus.Counter(f"vllm:{name}", text, (*_LABELS, label), registry=self.registry)

    def _histogram(self, name: str, text: str, buckets: tuple[float, ...]) -> prometheus.Histogram:
        made = prometheus.Histogram(f"vllm:{name}", text, _LABELS, registry=self.registry, buckets=buckets)
        return made.labels(**self._labels)
