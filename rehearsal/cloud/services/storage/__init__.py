"""Cloud Storage: see docs/internals/storage-emulation.md."""

from rehearsal.cloud.services.storage.control import HttpOrGrpcSite
from rehearsal.cloud.services.storage.service import StorageService

__all__ = ["HttpOrGrpcSite", "StorageService"]
