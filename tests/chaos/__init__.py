"""Kills, losses, flipped bytes, races, full disks and faults: nothing silently wrong, nothing stuck.

A small seeded part runs with all other tests; ``pytest -m chaos`` runs minutes of it, ``--chaos-rounds N`` N times as
much. Everything goes through the command ``cehm`` in processes of its own. Counts are printed at the end.
"""
