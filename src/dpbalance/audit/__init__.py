"""WHAT HOLDS: the paper's economic properties of a decision, what fairness costs, and why a pipeline was denied."""
