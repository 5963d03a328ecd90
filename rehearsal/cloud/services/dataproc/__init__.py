"""Emulated Dataproc Serverless."""
