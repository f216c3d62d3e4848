import pytest
from hypothesis import given
from hypothesis import strategies as st

from orqa_jax.serve import limits
from orqa_jax.serve.limits import RateLimit


def test_by_hand():
    limit = RateLimit(rate=2.0, burst=5.0)
    assert limit.take("a", 4, now=100.0) == 0
    assert limit.take("a", 3, now=100.0) == 1  # one is left, and two come in a second
    assert limit.take("a", 1, now=100.0) == 0
    assert limit.take("b", 5, now=100.0) == 0  # another client
    assert limit.take("a", 5, now=101.0) == 2  # two are there
    assert limit.take("a", 5, now=200.0) == 0  # never more than five
    assert limit.take("a", 1, now=200.0) == 1


@given(
    st.lists(st.tuples(st.floats(0, 3), st.integers(1, 8)), min_size=1, max_size=40),
    st.sampled_from([0.25, 1.0, 7.5]),
)
def test_no_client_gets_more_than_its_rate(asked, rate):
    limit, now, given_out = RateLimit(rate, burst=8.0), 0.0, 0
    for pause, count in asked:
        now += pause
        wait = limit.take("client", count, now)
        if wait:
            # Those that come back when they are told to are served.
            now += wait
            assert limit.take("client", count, now + 1e-6) == 0
        given_out += count
        assert given_out <= 8 + rate * now + 1e-3


def test_clients_are_forgotten_when_there_are_too_many(monkeypatch):
    monkeypatch.setattr(limits, "_CLIENTS", 2)
    limit = RateLimit(rate=0.001, burst=1.0)
    assert limit.take("a", 1, 0.0) == 0
    assert limit.take("b", 1, 0.0) == 0
    assert limit.take("a", 1, 0.0) > 0  # seen again, so b is now the oldest
    assert limit.take("c", 1, 0.0) == 0
    assert limit.take("a", 1, 0.0) > 0
    assert limit.take("b", 1, 0.0) == 0


@pytest.mark.parametrize("count", [1, 3])
def test_the_wait_is_enough(count):
    limit = RateLimit(rate=0.3, burst=3.0)
    assert limit.take("a", 3, 0.0) == 0
    wait = limit.take("a", count, 0.0)
    assert limit.take("a", count, wait - 1.0) > 0
    assert limit.take("a", count, float(wait)) == 0
