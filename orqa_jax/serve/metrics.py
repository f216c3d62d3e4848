"""What the service tells Prometheus."""

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    PlatformCollector,
    ProcessCollector,
    generate_latest,
)

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30, 60)


class Metrics:
    """The counters of one server."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self.requests = Counter(
            "orqa_requests", "HTTP requests answered.", ["path", "status"], registry=registry
        )
        self.seconds = Histogram(
            "orqa_request_seconds",
            "From the first line of a request to the end of its response.",
            ["path"],
            buckets=_SECONDS,
            registry=registry,
        )
        self.questions = Counter("orqa_questions", "Questions accepted.", registry=registry)
        self.queue = Gauge(
            "orqa_queue_questions", "Questions that wait for a batch.", registry=registry
        )
        self.waited = Histogram(
            "orqa_queue_seconds",
            "How long questions waited for their batch.",
            buckets=_SECONDS,
            registry=registry,
        )
        self.batch_size = Histogram(
            "orqa_batch_questions",
            "Questions of one batch.",
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=registry,
        )
        self.batch_seconds = Histogram(
            "orqa_batch_seconds", "Work on one batch.", buckets=_SECONDS, registry=registry
        )
        self.loads = Counter(
            "orqa_loads", "Attempts to load the run.", ["result"], registry=registry
        )
        self.ready = Gauge("orqa_ready", "1 when questions are answered.", registry=registry)
        self.model = Gauge(
            "orqa_model",
            "1 for the model that answers.",
            ["system", "weights_fingerprint", "corpus_fingerprint"],
            registry=registry,
        )
        for result in ("done", "failed"):
            self.loads.labels(result)
        ProcessCollector(registry=registry)
        PlatformCollector(registry=registry)

    def text(self) -> bytes:
        """In the text format of Prometheus."""
        return generate_latest(self._registry)
