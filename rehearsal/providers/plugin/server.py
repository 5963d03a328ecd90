"""The gRPC side: pulumi's ResourceProvider service (proto/pulumi/provider.proto) around `Provider`."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import select
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent import futures
from typing import Any

import grpc  # type: ignore[import-untyped]
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.empty_pb2 import Empty
from google.rpc.status_pb2 import Status  # type: ignore[import-untyped]
from pulumi.runtime.proto import plugin_pb2, provider_pb2, provider_pb2_grpc

from rehearsal.errors import RehearsalError
from rehearsal.providers.plugin.errors import CreatedButError
from rehearsal.providers.plugin.provider import Difference, Provider
from rehearsal.providers.plugin.values import from_struct, to_struct

# Waiting calls hold a thread each; the engine makes four a core, and `Cancel` must not queue behind them.
_WORKERS = 512
_LARGEST_MESSAGE = 400 * 1024 * 1024  # the engine's own limit


def _guarded(step: Callable[[Servicer, Any, grpc.ServicerContext], Any]) -> Callable[..., Any]:
    """Turn the errors of a step into one sentence for the user, without a traceback."""

    @functools.wraps(step)
    def run(servicer: Servicer, request: Any, context: grpc.ServicerContext) -> Any:
        try:
            return step(servicer, request, context)
        except CreatedButError as error:
            context.set_trailing_metadata((("grpc-status-details-bin", _half_made(error)),))
            message = str(error)
        except RehearsalError as error:
            message = f"{error}\n{error.fix}" if error.fix else str(error)
        return context.abort(grpc.StatusCode.UNKNOWN, message)  # which raises

    return run


class Servicer(provider_pb2_grpc.ResourceProviderServicer):
    """Turns requests into calls of a `Provider` and its errors into gRPC statuses."""

    def __init__(self, provider: Provider) -> None:
        self._provider = provider

    def Handshake(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Say that secrets and outputs aren't understood as such: the engine unwraps them."""
        return provider_pb2.ProviderHandshakeResponse(accept_secrets=False, accept_outputs=False)

    def GetPluginInfo(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Return the version, which the engine compares with the program's."""
        return plugin_pb2.PluginInfo(version=self._provider.version)

    def GetSchema(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Return a schema without types: programs bring their own SDK."""
        schema = {"name": self._provider.package, "version": self._provider.version}
        return provider_pb2.GetSchemaResponse(schema=json.dumps(schema))

    def CheckConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Refuse provider settings that would have no effect."""
        news = from_struct(request.news)
        failures = [
            (name, f"the stand-in doesn't know the provider setting {name!r}")
            for name in self._provider.unknown_settings(news)
        ]
        return _checked(news, failures)

    def DiffConfig(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Return the changed settings, and whether all resources must be replaced for them."""
        olds, news = from_struct(request.olds), from_struct(request.news)
        changed = sorted(key for key in olds.keys() | news.keys() if olds.get(key) != news.get(key))
        kind = provider_pb2.DiffResponse.DIFF_SOME if changed else provider_pb2.DiffResponse.DIFF_NONE
        replaces = self._provider.replacing_settings(olds, news)
        return provider_pb2.DiffResponse(changes=kind, diffs=changed, replaces=replaces)

    @_guarded
    def Configure(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Take the provider's settings."""
        prefix = f"{self._provider.package}:config:"
        given = from_struct(request.args) or {
            key.removeprefix(prefix): value for key, value in request.variables.items()
        }
        self._provider.configure_from(given)
        return provider_pb2.ConfigureResponse(
            acceptSecrets=False, supportsPreview=True, acceptResources=False, acceptOutputs=False
        )

    @_guarded
    def Check(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Complete and check a resource's inputs."""
        name = request.urn.rsplit("::", 1)[-1]
        checked = self._provider.check(
            _token(request.urn),
            from_struct(request.news),
            from_struct(request.olds),
            name,
            request.randomSeed,
        )
        return _checked(checked.inputs, checked.failures)

    @_guarded
    def Diff(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Return the differences of an update."""
        change = self._provider.diff(
            _token(request.urn),
            from_struct(request.olds),
            from_struct(request.news),
            request.ignoreChanges,
            from_struct(request.old_inputs),
        )
        details = bool(change.differences)
        response = provider_pb2.DiffResponse
        return response(
            changes=response.DIFF_SOME if details else response.DIFF_NONE,
            diffs=sorted({d.name for d in change.differences}),
            replaces=change.replaces,
            deleteBeforeReplace=change.delete_first,
            detailedDiff={d.path: _detail(d) for d in change.differences},
            hasDetailedDiff=True,
        )

    @_guarded
    def Create(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Make a resource."""
        id_, outputs = self._provider.create(
            _token(request.urn),
            from_struct(request.properties),
            preview=request.preview,
            timeout_s=request.timeout,
        )
        return provider_pb2.CreateResponse(id=id_, properties=to_struct(outputs))

    @_guarded
    def Read(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Read a resource: for a refresh, an import or a `get`."""
        token, inputs = _token(request.urn), from_struct(request.inputs)
        state = from_struct(request.properties)
        outputs = self._provider.read(token, request.id, state)
        if outputs is None:
            return provider_pb2.ReadResponse()
        # Without a state it is an import, whose inputs are what was read, whatever was given.
        taken = self._provider.inputs_of(token, outputs, inputs if state and inputs else None)
        return provider_pb2.ReadResponse(
            id=str(outputs.get("id", request.id)), properties=to_struct(outputs), inputs=to_struct(taken)
        )

    @_guarded
    def Update(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Change a resource in place."""
        outputs = self._provider.update(
            _token(request.urn),
            request.id,
            from_struct(request.olds),
            from_struct(request.news),
            ignored=request.ignoreChanges,
            before=from_struct(request.old_inputs),
            preview=request.preview,
            timeout_s=request.timeout,
        )
        return provider_pb2.UpdateResponse(properties=to_struct(outputs))

    @_guarded
    def Delete(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Remove a resource."""
        self._provider.delete(
            _token(request.urn), request.id, from_struct(request.properties), timeout_s=request.timeout
        )
        return Empty()

    @_guarded
    def Invoke(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Answer a look-up."""
        result = self._provider.invoke(request.tok, from_struct(request.args))
        # `return` is a word of Python's own, so the field can't be named in a call.
        response = provider_pb2.InvokeResponse()
        getattr(response, "return").CopyFrom(to_struct(result))
        return response

    def Cancel(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Stop waiting for whatever is under way."""
        self._provider.cancel()
        return Empty()

    def Attach(self, request: Any, context: grpc.ServicerContext) -> Any:  # noqa: N802
        """Ignore the engine's address: this provider never calls it back."""
        return Empty()


def serve(provider: Provider) -> None:
    """Listen on a free loopback port, print it for the engine, and serve until it or this process ends."""
    options = [("grpc.max_receive_message_length", _LARGEST_MESSAGE)]
    server = grpc.server(futures.ThreadPoolExecutor(max_workers=_WORKERS), options=options)
    provider_pb2_grpc.add_ResourceProviderServicer_to_server(Servicer(provider), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    with contextlib.suppress(BrokenPipeError):
        os.write(sys.stdout.fileno(), f"{port}\n".encode())
    while server.wait_for_termination(timeout=1.0) and not _unread(sys.stdout.fileno()):
        pass  # an engine that was killed sends no cancellation
    provider.cancel()  # what is under way would continue trying for minutes, for nobody


def _unread(stream: int) -> bool:
    """Return True if the reading end of the pipe is closed. The engine reads a plugin's output as long as it
    lives, so this also detects an engine that was gone before the plugin ran; a change of parent, or its
    death signal, would not.
    """
    poll = select.poll()
    poll.register(stream, 0)  # errors and hang-ups are always reported
    return bool(poll.poll(0))


def _token(urn: str) -> str:
    """Return the resource's type from `urn:pulumi:STACK::PROJECT::PARENT$TYPE::NAME`."""
    return urn.split("::")[2].rsplit("$", 1)[-1]


def _checked(inputs: Mapping[str, Any], failures: Iterable[tuple[str, str]]) -> Any:
    return provider_pb2.CheckResponse(
        inputs=to_struct(inputs),
        failures=[provider_pb2.CheckFailure(reason=reason) for _, reason in failures],
    )


def _detail(difference: Difference) -> Any:
    name = f"{difference.kind}_REPLACE" if difference.replaces else difference.kind
    return provider_pb2.PropertyDiff(kind=provider_pb2.PropertyDiff.Kind.Value(name), inputDiff=False)


def _half_made(error: CreatedButError) -> bytes:
    """Return the gRPC status detail that makes the engine keep an incomplete resource in its state."""
    detail = provider_pb2.ErrorResourceInitFailed(
        id=error.id, properties=to_struct(error.outputs), reasons=[str(error)]
    )
    packed = AnyMessage()
    packed.Pack(detail)
    status = Status(code=grpc.StatusCode.UNKNOWN.value[0], message=str(error), details=[packed])
    encoded: bytes = status.SerializeToString()
    return encoded
