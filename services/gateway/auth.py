"""Who is calling: the API key of a request, checked against the tenants file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from services.common.errors import UnauthenticatedError

if TYPE_CHECKING:
    from services.common.tenants import Tenant, Tenants

_HELP = "send `Authorization: Bearer KEY` with a key of this mesh (`penstock status --json` prints the dev key)"


def authenticate(tenants: Tenants, authorization: str | None) -> Tenant:
    """The tenant behind an `authorization` header or metadata value.

    Raises:
        UnauthenticatedError: there is none, it isn't a bearer token, or nobody holds the key.
    """
    if not authorization:
        raise UnauthenticatedError(f"no API key: {_HELP}", code="missing_api_key")
    scheme, _, key = authorization.partition(" ")
    if scheme.lower() != "bearer" or not key.strip():
        raise UnauthenticatedError(f"the authorization header is not a bearer key: {_HELP}")
    tenant = tenants.find(key.strip())
    if tenant is None:
        raise UnauthenticatedError(f"nobody holds this API key: {_HELP}")
    return tenant
