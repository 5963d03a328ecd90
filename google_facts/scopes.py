"""Scopes of access tokens."""

from google_facts import table

EMAIL: str = table("scopes")["email"]["scope"]
"""By which a token tells its account's address; without it Kubernetes has a number."""
EVERYTHING: str = table("scopes")["everything"]["scope"]
"""All of Google Cloud, as far as IAM allows it."""
LOGIN = (EVERYTHING, EMAIL)
"""What programs ask for that call Google's APIs and clusters."""
