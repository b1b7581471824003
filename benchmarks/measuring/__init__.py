"""What benchmarks/gpu.py is made of: inputs, sides, checks, times, floors, tables and the plot."""
