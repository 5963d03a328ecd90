"""Cloud KMS's encrypt and decrypt by gRPC, which Go's client speaks, as Pulumi's `gcpkms://` does.

The methods are those of the JSON API. There is no package with the messages in the lock: they are described
here, as https://github.com/googleapis/googleapis/blob/master/google/cloud/kms/v1/service.proto numbers them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, cast

import grpc  # type: ignore[import-untyped]
from aiohttp import web
from google.protobuf import descriptor_pb2, descriptor_pool, json_format, message_factory, wrappers_pb2
from google.protobuf.message import Message

from rehearsal.cloud.core.service import Call, Method
from rehearsal.cloud.door.grpcdoor import CALLER
from rehearsal.cloud.iam.iam import Iam

_PACKAGE = "google.cloud.kms.v1"
_KEYS = "cloudkms.projects.locations.keyRings.cryptoKeys"
_AAD = "additional_authenticated_data"
_TEXT, _BYTES, _TRUTH, _CHECKSUM, _LEVEL = "text", "bytes", "truth", "checksum", "level"
_MESSAGES: dict[str, dict[str, tuple[int, str]]] = {
    "EncryptRequest": {
        "name": (1, _TEXT), "plaintext": (2, _BYTES), _AAD: (3, _BYTES), "plaintext_crc32c": (7, _CHECKSUM),
        f"{_AAD}_crc32c": (8, _CHECKSUM),
    },
    "EncryptResponse": {
        "name": (1, _TEXT), "ciphertext": (2, _BYTES), "ciphertext_crc32c": (4, _CHECKSUM),
        "verified_plaintext_crc32c": (5, _TRUTH), f"verified_{_AAD}_crc32c": (6, _TRUTH),
        "protection_level": (7, _LEVEL),
    },
    "DecryptRequest": {
        "name": (1, _TEXT), "ciphertext": (2, _BYTES), _AAD: (3, _BYTES), "ciphertext_crc32c": (5, _CHECKSUM),
        f"{_AAD}_crc32c": (6, _CHECKSUM),
    },
    "DecryptResponse": {
        "plaintext": (1, _BYTES), "plaintext_crc32c": (2, _CHECKSUM), "used_primary": (3, _TRUTH),
        "protection_level": (4, _LEVEL),
    },
}  # fmt: skip
_LEVELS = ("PROTECTION_LEVEL_UNSPECIFIED", "SOFTWARE")


def _described() -> Mapping[str, type[Message]]:
    field = descriptor_pb2.FieldDescriptorProto
    kinds = {
        _TEXT: (field.TYPE_STRING, None),
        _BYTES: (field.TYPE_BYTES, None),
        _TRUTH: (field.TYPE_BOOL, None),
        _CHECKSUM: (field.TYPE_MESSAGE, ".google.protobuf.Int64Value"),
        _LEVEL: (field.TYPE_ENUM, f".{_PACKAGE}.ProtectionLevel"),
    }
    file = descriptor_pb2.FileDescriptorProto(
        name="rehearsal/kms.proto", package=_PACKAGE, syntax="proto3",
        dependency=[wrappers_pb2.DESCRIPTOR.name],
    )  # fmt: skip
    enum = file.enum_type.add(name="ProtectionLevel")
    for number, name in enumerate(_LEVELS):
        enum.value.add(name=name, number=number)
    for message, fields in _MESSAGES.items():
        described = file.message_type.add(name=message)
        for name, (number, kind) in fields.items():
            type_, type_name = kinds[kind]
            described.field.add(
                name=name, number=number, type=type_, type_name=type_name, label=field.LABEL_OPTIONAL
            )
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(wrappers_pb2.DESCRIPTOR.serialized_pb)
    pool.AddSerializedFile(file.SerializeToString())
    descriptors = {name: pool.FindMessageTypeByName(f"{_PACKAGE}.{name}") for name in _MESSAGES}
    return {name: message_factory.GetMessageClass(descriptor) for name, descriptor in descriptors.items()}


MESSAGES = _described()


def handler(methods: Mapping[str, Method], iam: Iam, require_api: Callable[[str], None]) -> Any:
    """Return the service `KeyManagementService` for a gRPC server, by the methods of the JSON API.

    `require_api` raises ApiError for an API that isn't enabled.
    """

    async def serve(verb: str, request: Message, _context: Any) -> Message:
        require_api("cloudkms")
        method = methods[f"{_KEYS}.{verb.lower()}"]
        sent = json_format.MessageToDict(request)
        path = {"name": sent.pop("name", "")}
        call = Call(
            "cloudkms", "v1", f"{_KEYS}.{verb.lower()}", path, {}, sent, CALLER.get(), cast(web.Request, None)
        )
        assert method.permission is not None
        assert method.resource is not None
        iam.require(call.principal, method.permission, method.resource(call))
        answer = await method.handler(call)
        assert isinstance(answer, dict)
        return json_format.ParseDict(answer, MESSAGES[f"{verb}Response"]())

    return grpc.method_handlers_generic_handler(
        f"{_PACKAGE}.KeyManagementService",
        {
            verb: grpc.unary_unary_rpc_method_handler(
                partial(serve, verb),
                request_deserializer=MESSAGES[f"{verb}Request"].FromString,
                response_serializer=lambda message: message.SerializeToString(),
            )
            for verb in ("Encrypt", "Decrypt")
        },
    )
