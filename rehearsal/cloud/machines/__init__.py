"""Services of emulated machines: metadata server, guest attributes, pods, sandboxes."""
