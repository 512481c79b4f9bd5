"""How fast is it, beside what else one could use? `make bench`, or `python -m benchmarks NAME ...`."""
