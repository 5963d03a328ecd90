"""Cloud Storage: see docs/storage-emulation.md."""

from rehearsal.cloud.storage.control import HttpOrGrpcSite
from rehearsal.cloud.storage.service import StorageService

__all__ = ["HttpOrGrpcSite", "StorageService"]
