"""Decoder of the Llama 3 and Qwen 2, 2.5 and 3 families, its points and its weights' formats.

Letters in tensor names: B batch, L sequence, D model width, H query heads, J key/value heads,
G = H/J, K width of a head, Q = H·K, R = J·K, F feed-forward width, V vocabulary, N layers,
T = B·L tokens.
"""
