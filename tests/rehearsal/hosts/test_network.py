"""Addresses on the wire."""

from __future__ import annotations

from rehearsal.hosts.network import mac_address


def test_mac_address_spells_the_internal_address() -> None:
    assert mac_address("10.128.15.192") == "42:01:0a:80:0f:c0"
