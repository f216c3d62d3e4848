"""How much one client may ask."""

import collections
import math

# Clients that are remembered; the one that was seen longest ago is forgotten first.
_CLIENTS = 65536
# Whoever comes back exactly when told to is not sent away for the last bit of a sum.
_ROUNDING = 1e-6


class RateLimit:
    """A token bucket for each client.

    Args:
      rate: Tokens a second.
      burst: Tokens that a client has who has not asked for long.
    """

    def __init__(self, rate: float, burst: float) -> None:
        self._rate, self._burst = rate, burst
        self._left: collections.OrderedDict[str, tuple[float, float]] = collections.OrderedDict()

    def take(self, client: str, count: int, now: float) -> int:
        """Takes ``count`` tokens at time ``now``; 0, or for how many seconds there are too few."""
        left, at = self._left.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - at) * self._rate)
        missing = count - left - _ROUNDING
        self._left[client] = (left if missing > 0 else left - count, now)
        if len(self._left) > _CLIENTS:
            self._left.popitem(last=False)
        return math.ceil(missing / self._rate) if missing > 0 else 0
