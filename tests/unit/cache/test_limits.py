"""What the cache refuses, by name."""

from __future__ import annotations

import pytest

from services.cache.limits import Limits, check_key
from services.cache.settings import CacheSettings
from services.common.errors import InvalidRequestError
from services.common.settings import load

LIMITS = Limits(value_bytes_max=10, ttl_s=60, ttl_s_max=600)


@pytest.mark.parametrize("size", [16, 32, 64])
def test_keys_of_hash_size_pass(size: int) -> None:
    check_key(bytes(size))


@pytest.mark.parametrize("size", [0, 15, 65, 1000])
def test_other_keys_are_refused_by_name(size: int) -> None:
    with pytest.raises(InvalidRequestError, match=f"key has {size} bytes") as caught:
        check_key(bytes(size))
    assert caught.value.param == "key"


def test_values_are_bounded() -> None:
    LIMITS.check_value(bytes(10))
    with pytest.raises(InvalidRequestError, match="value has 11 bytes, the most is 10") as caught:
        LIMITS.check_value(bytes(11))
    assert caught.value.param == "value"


def test_lifetimes_have_a_default_and_a_bound() -> None:
    assert (LIMITS.lifetime_s(0), LIMITS.lifetime_s(5), LIMITS.lifetime_s(600)) == (60, 5, 600)
    with pytest.raises(InvalidRequestError, match="ttl_s is 601, the most is 600") as caught:
        LIMITS.lifetime_s(601)
    assert caught.value.param == "ttl_s"


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--cache-ttl-s", "20", "--cache-ttl-s-max", "10"], "PENSTOCK_CACHE_TTL_S is longer"),
        (["--cache-bytes-max", "1048576", "--cache-value-bytes-max", "1048576"], "does not fit"),
        (["--port", "70000"], "PENSTOCK_PORT (--port)"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(
    flags: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        load(CacheSettings, flags, prog="penstock-cache")
    assert caught.value.code == 2
    assert message in capsys.readouterr().err
