"""The settings of ``orqa serve``."""

import dataclasses

from orqa_jax.errors import OrqaError
from orqa_jax.index.dense import Search
from orqa_jax.train.config import check_at_least

# Answered and retrieved at most; more cannot be asked for.
CANDIDATES = 5
RETRIEVED = 100
# Requests that give a whole batch must fit, however their text is escaped.
_BYTES_OF_A_CHARACTER = 12


@dataclasses.dataclass(frozen=True)
class ServeConfig:
    """What to serve, and within which limits.

    Attributes:
      run: Run folder, or a link to one.
      system: As for ``orqa ask``; "" for the one that ``orqa fit`` chose.
      search: How block vectors are searched.
      host: Address to listen on; everyone who can reach it may ask.
      port: 0 for any that is free.
      max_batch: Questions that are answered together.
      max_wait_ms: How long the first question of a batch may wait for others.
      max_queue: Questions that may wait; more are refused with status 503.
      max_questions: Of one request.
      max_characters: Of one question.
      rate: Questions a second that one client may ask in the long run; 0 for any number.
      allowed_hosts: Names that the service is reached by; () for localhost alone where it listens
        there, and any name otherwise.
      cors_origins: Web pages elsewhere that may ask, such as "https://intranet.example".
      trust_proxy: Addresses of proxies whose X-Forwarded-For tells who asks.
      log_questions: Write the questions to the log.
      watch_seconds: How often to look whether the run folder holds a newer model; 0 for only on
        SIGHUP.
    """

    run: str
    system: str = ""
    search: Search = "exact"
    host: str = "127.0.0.1"
    port: int = 8080
    max_batch: int = 32
    max_wait_ms: float = 5.0
    max_queue: int = 128
    max_questions: int = 64
    max_characters: int = 1000
    rate: float = 0.0
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    trust_proxy: tuple[str, ...] = ()
    log_questions: bool = False
    watch_seconds: float = 5.0

    def __post_init__(self) -> None:
        check_at_least(self, port=0, max_batch=1, max_wait_ms=0, max_queue=1)
        check_at_least(self, max_questions=1, max_characters=1, rate=0, watch_seconds=0)
        if self.port > 65535:
            raise OrqaError(f"port is {self.port}; ports end at 65535.")
        if self.max_questions > self.max_queue:
            raise OrqaError(
                f"max_questions is {self.max_questions}, more than the {self.max_queue} of "
                "max_queue; such a request would always be refused."
            )

    @property
    def max_body(self) -> int:
        """Bytes of a request's body."""
        return 1024 + _BYTES_OF_A_CHARACTER * self.max_characters * self.max_questions
