"""The error tree, and the one table that maps it to gRPC status and HTTP.

Every error says whose fault it is (by its class) and whether a retry helps (`retry_after_s`). Services raise these;
only the edges translate them, through `STATUS`.
"""

from __future__ import annotations

from dataclasses import dataclass

import grpc


class PenstockError(Exception):
    """Base of every error that may reach a client.

    Args:
        message: what is wrong and what to do about it, in one or two sentences.
        param: name of the offending field as the client wrote it, e.g. `messages[0].role`.
        retry_after_s: seconds after which a retry has an honest chance; None when there is no such figure.
    """

    code = "internal_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        retry_after_s: float | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.retry_after_s = retry_after_s
        if code is not None:
            self.code = code


class InvalidRequestError(PenstockError):
    """The client's fault: the same request will fail again."""

    code = "invalid_request"


class UnsupportedError(InvalidRequestError):
    """A field or value that Penstock knows but does not serve."""

    code = "unsupported"


class PayloadTooLargeError(InvalidRequestError):
    """The body is over the size limit."""

    code = "payload_too_large"


class UnauthenticatedError(PenstockError):
    """No key, or one that nobody holds."""

    code = "invalid_api_key"


class PermissionError_(PenstockError):
    """The tenant may not do this."""

    code = "permission_denied"


class NotFoundError(PenstockError):
    """There is no such thing (model, path, response)."""

    code = "not_found"


class MethodNotAllowedError(PenstockError):
    """The path exists under another HTTP method."""

    code = "method_not_allowed"


class ContendedError(PenstockError):
    """There is capacity, others hold it: retry after `retry_after_s`."""

    code = "rate_limit_exceeded"


class UnavailableError(PenstockError):
    """Nothing is there to serve it now: a worker, a router, a dependency."""

    code = "service_unavailable"


class DeadlineError(PenstockError):
    """The client's own deadline passed, or can't be met."""

    code = "deadline_exceeded"


class CancelledError_(PenstockError):
    """The client went away or took nothing for too long."""

    code = "cancelled"


class EngineError(PenstockError):
    """The engine failed this request: our fault, a retry may help."""

    code = "engine_error"


class ProtocolError(PenstockError):
    """A peer inside the mesh sent what the contract forbids."""

    code = "protocol_error"


@dataclass(frozen=True, slots=True)
class Status:
    """How an error looks outside: gRPC status, HTTP status, and OpenAI's `error.type`."""

    grpc: grpc.StatusCode
    http: int
    openai_type: str


STATUS: dict[type[PenstockError], Status] = {
    InvalidRequestError: Status(grpc.StatusCode.INVALID_ARGUMENT, 400, "invalid_request_error"),
    UnsupportedError: Status(grpc.StatusCode.INVALID_ARGUMENT, 400, "invalid_request_error"),
    PayloadTooLargeError: Status(grpc.StatusCode.INVALID_ARGUMENT, 413, "invalid_request_error"),
    UnauthenticatedError: Status(grpc.StatusCode.UNAUTHENTICATED, 401, "authentication_error"),
    PermissionError_: Status(grpc.StatusCode.PERMISSION_DENIED, 403, "permission_error"),
    NotFoundError: Status(grpc.StatusCode.NOT_FOUND, 404, "invalid_request_error"),
    MethodNotAllowedError: Status(grpc.StatusCode.UNIMPLEMENTED, 405, "invalid_request_error"),
    ContendedError: Status(grpc.StatusCode.RESOURCE_EXHAUSTED, 429, "rate_limit_error"),
    UnavailableError: Status(grpc.StatusCode.UNAVAILABLE, 503, "service_unavailable_error"),
    DeadlineError: Status(grpc.StatusCode.DEADLINE_EXCEEDED, 504, "timeout_error"),
    CancelledError_: Status(grpc.StatusCode.CANCELLED, 499, "cancelled_error"),
    EngineError: Status(grpc.StatusCode.INTERNAL, 500, "server_error"),
    ProtocolError: Status(grpc.StatusCode.INTERNAL, 500, "server_error"),
    PenstockError: Status(grpc.StatusCode.INTERNAL, 500, "server_error"),
}


def status_of(error: PenstockError) -> Status:
    """The table's row for `error`, by its nearest class."""
    for cls in type(error).__mro__:
        row = STATUS.get(cls)
        if row is not None:
            return row
    return STATUS[PenstockError]
