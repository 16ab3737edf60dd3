"""What watching costs: training steps with lenses against bare ones, taking turns. ``python -m bench --help``."""
