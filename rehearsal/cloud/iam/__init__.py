"""Emulated IAM: accounts, roles, policies, conditions, tokens, audit log."""
