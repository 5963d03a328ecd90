"""The layers: one folder each, declared by the `LAYER` of its layer.py."""
