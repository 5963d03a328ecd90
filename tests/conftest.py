"""The order of the tests: files that take long begin first, so that none of them is waited for at the end."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)  # a stable sort: all else keeps its place
