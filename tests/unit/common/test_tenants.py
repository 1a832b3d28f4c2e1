"""The tenants file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from services.common.tenants import Tenant, Tenants, TenantsError, hash_key, new_key

if TYPE_CHECKING:
    from pathlib import Path

A, B = hash_key("a"), hash_key("b")


def write(path: Path, text: str) -> Path:
    file = path / "tenants.yaml"
    file.write_text(text)
    return file


def test_a_tenant_is_found_by_any_of_its_keys(tmp_path: Path) -> None:
    tenants = Tenants.load(
        write(
            tmp_path,
            f"""
            tenants:
              - {{id: one, key_hashes: ["{A}", "{B}"], weight: 2.5, max_class: batch, isolation_salt: x,
                  response_cache: true, resumable: true}}
              - {{id: two, key_hashes: ["{hash_key("c")}"]}}
            """,
        )
    )
    one, two = tenants.find("b"), tenants.find("c")
    assert one is tenants.find("a")
    assert one is not None
    assert (one.id, one.weight, one.max_class, one.response_cache) == ("one", 2.5, "batch", True)
    assert two is not None
    assert (two.weight, two.max_class, two.response_cache, two.resumable) == (1.0, "interactive", False, False)
    assert tenants.find("d") is None
    assert tenants.find(A) is None, "the hash is not the key"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "file"),
        ("tenants: []", "tenants: "),
        ("- x", "file: "),
        ("tenants: [{id: a b, key_hashes: []}]", r"tenants\.0\.id"),
        ("tenants: [{id: a, key_hashes: []}]", r"tenants\.0\.key_hashes"),
        (f"tenants: [{{id: a, key_hashes: ['{A[:-1]}']}}]", r"tenants\.0\.key_hashes\.0"),
        (f"tenants: [{{id: a, key_hashes: ['{A}'], weight: 0}}]", r"tenants\.0\.weight"),
        (f"tenants: [{{id: a, key_hashes: ['{A}'], weight: .inf}}]", r"tenants\.0\.weight"),
        (f"tenants: [{{id: a, key_hashes: ['{A}'], max_class: urgent}}]", r"tenants\.0\.max_class"),
        (f"tenants: [{{id: a, key_hashes: ['{A}'], colour: red}}]", r"tenants\.0\.colour"),
        (f"tenants: [{{id: a, key_hashes: ['{A}']}}, {{id: a, key_hashes: ['{B}']}}]", "two tenants have the same id"),
        (f"tenants: [{{id: a, key_hashes: ['{A}']}}, {{id: b, key_hashes: ['{A}']}}]", "two tenants hold the same key"),
        ("tenants: [", "is not YAML"),
        ("tenants: !!python/object/apply:os.getpid []", "is not YAML"),
    ],
)
def test_a_wrong_file_is_refused_by_field(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(TenantsError, match=message):
        Tenants.load(write(tmp_path, text))


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TenantsError, match="cannot read the tenants file"):
        Tenants.load(tmp_path / "none.yaml")
    binary = tmp_path / "tenants.yaml"
    binary.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(TenantsError, match="is not YAML"):
        Tenants.load(binary)


def test_a_class_is_clamped_to_the_ceiling() -> None:
    tenant = Tenant(id="a", key_hashes=(A,), max_class="standard")
    assert [tenant.clamp(wanted) for wanted in ("interactive", "standard", "batch")] == [
        "standard", "standard", "batch",
    ]  # fmt: skip


def test_keys_are_new_and_their_hashes_stable() -> None:
    keys = {new_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith("sk-penstock-") and len(key) == 44 for key in keys)
    assert hash_key("a") == "sha256:ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb"
