"""What measures: the hooks that all lenses share, the kernels behind them, and the rows of sums that they leave."""
