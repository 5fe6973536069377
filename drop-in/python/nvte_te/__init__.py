"""Runs the front ends of Transformer Engine on libnvte: `python -m nvte_te --help`.

Each interpreter of the environment imports this package when it starts, so it imports nothing itself.
"""

__version__ = "@VERSION@"
