"""What benchmarks/ablation.py is made of: pairs of kernels, their inputs, checks and the table."""
