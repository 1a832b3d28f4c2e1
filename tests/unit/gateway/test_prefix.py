"""Names of a prompt's blocks, however long it is and however far its answer got; keys of conversations."""

from __future__ import annotations

import pytest

from services.common.blocks import chain, root
from services.gateway.generation.prefix import LONG_TOKENS, block_hashes, continued, session_key
from tests.unit.gateway.test_job import job, tenant


@pytest.mark.parametrize("length", [1, 15, 16, 17, 160, LONG_TOKENS, LONG_TOKENS + 5])
@pytest.mark.parametrize("produced", [0, 1, 15, 16, 40])
async def test_a_continued_chain_is_the_chain_of_all_tokens(length: int, produced: int) -> None:
    asked = job(prompt=list(range(length)))
    start = root(asked.text.meta.version)
    hashes = await block_hashes(asked)
    assert hashes == chain(start, range(length))
    tail = list(range(7, 7 + produced))
    assert await continued(hashes, asked, tail) == chain(start, [*range(length), *tail])


async def test_adapters_and_isolated_tenants_share_nothing() -> None:
    base = job(prompt=list(range(32)))
    isolated = tenant("dev").model_copy(update={"isolation_salt": "s"})
    others = [
        job(prompt=list(range(32)), model="adapter"), job(prompt=list(range(32)), tenant=isolated),
        job(prompt=list(range(32)), model="adapter", tenant=isolated), base,
    ]  # fmt: skip
    assert len({await block_hashes(each) for each in others}) == len(others)
    assert await block_hashes(job(prompt=list(range(32)), tenant=tenant("other"))) == await block_hashes(base)


def test_a_session_belongs_to_its_tenant_and_is_not_told() -> None:
    key = session_key(tenant("a"), "alice@example.com")
    assert key == session_key(tenant("a"), "alice@example.com")
    assert "alice" not in key
    assert len({key, session_key(tenant("b"), "alice@example.com"), session_key(tenant("a"), "bob")}) == 3
    assert session_key(tenant("a"), "") == ""
    assert session_key(tenant("a"), "\udcff")  # bytes of a header that are no UTF-8
