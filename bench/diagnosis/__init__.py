"""How well problems of training are named: programs with known faults, healthy ones, and a scorer."""
