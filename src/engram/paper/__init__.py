"""The paper's experiments as declarations, its claims with their verdicts, and the report."""
