"""Every gateway finds the same router, and a loss moves only what was there."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from services.gateway.mesh.rendezvous import choose

ROUTERS = st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=6, unique=True)


def test_nobody_there() -> None:
    assert choose("m", []) is None


@given(st.text(max_size=8), ROUTERS, st.randoms(use_true_random=False))
def test_the_order_of_the_list_does_not_matter(model: str, routers: list[str], random: object) -> None:
    assert choose(model, routers) == choose(model, sorted(routers)) == choose(model, list(reversed(routers)))
    assert choose(model, routers) in routers


@given(st.text(max_size=8), ROUTERS, st.data())
def test_another_routers_loss_moves_nothing(model: str, routers: list[str], data: st.DataObject) -> None:
    chosen = choose(model, routers)
    lost = data.draw(st.sampled_from(routers))
    left = [router for router in routers if router != lost]
    assert (choose(model, left) == chosen) == (lost != chosen)


def test_models_spread_over_routers() -> None:
    routers = [f"10.0.0.{n}:8100" for n in range(4)]
    shares = Counter(choose(f"model-{n}", routers) for n in range(1000))
    assert set(shares) == set(routers)
    assert max(shares.values()) < 400
