"""Speed benchmarks: `python -m benchmarks`. See README.md."""
