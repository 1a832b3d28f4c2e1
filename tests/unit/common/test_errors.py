"""One table maps every error to gRPC and HTTP."""

from __future__ import annotations

import grpc
import pytest

from services.common import errors
from services.common.errors import STATUS, PenstockError, status_of


def tree(root: type[PenstockError] = PenstockError) -> list[type[PenstockError]]:
    return [root, *(found for cls in root.__subclasses__() for found in tree(cls))]


def own_tree() -> list[type[PenstockError]]:
    return [cls for cls in tree() if cls.__module__ == errors.__name__]


def test_every_error_has_a_row_and_a_code_of_its_own() -> None:
    assert set(own_tree()) == set(STATUS)
    codes = [cls.code for cls in own_tree()]
    assert len(set(codes)) == len(codes)


@pytest.mark.parametrize(
    ("error", "code", "http"),
    [
        (errors.InvalidRequestError, grpc.StatusCode.INVALID_ARGUMENT, 400),
        (errors.PayloadTooLargeError, grpc.StatusCode.INVALID_ARGUMENT, 413),
        (errors.UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED, 401),
        (errors.PermissionError_, grpc.StatusCode.PERMISSION_DENIED, 403),
        (errors.NotFoundError, grpc.StatusCode.NOT_FOUND, 404),
        (errors.ContendedError, grpc.StatusCode.RESOURCE_EXHAUSTED, 429),
        (errors.CancelledError_, grpc.StatusCode.CANCELLED, 499),
        (errors.EngineError, grpc.StatusCode.INTERNAL, 500),
        (errors.UnavailableError, grpc.StatusCode.UNAVAILABLE, 503),
        (errors.DeadlineError, grpc.StatusCode.DEADLINE_EXCEEDED, 504),
    ],
)
def test_the_promised_statuses(error: type[PenstockError], code: grpc.StatusCode, http: int) -> None:
    status = status_of(error("what is wrong"))
    assert (status.grpc, status.http) == (code, http)


def test_whose_fault_it_is_shows_in_the_status() -> None:
    for cls in own_tree():
        status = status_of(cls("x"))
        theirs = issubclass(cls, errors.InvalidRequestError)
        assert theirs <= (400 <= status.http < 500)


def test_a_class_without_a_row_gets_its_parents() -> None:
    class Narrower(errors.UnsupportedError):
        pass

    assert status_of(Narrower("x")) is STATUS[errors.UnsupportedError]


def test_an_error_carries_field_retry_and_code() -> None:
    error = errors.ContendedError("full", param="model", retry_after_s=1.5, code="queue_full")
    assert (str(error), error.param, error.retry_after_s, error.code) == ("full", "model", 1.5, "queue_full")
    assert errors.ContendedError("full").code == "rate_limit_exceeded"
