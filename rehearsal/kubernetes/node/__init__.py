"""Emulated Kubernetes nodes: pods as processes, volumes, images, webhooks."""
