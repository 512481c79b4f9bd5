"""Does the paper's evaluation reproduce? Studies are run as a sweep; what they found is told in a report."""
