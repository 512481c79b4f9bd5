"""WHAT HAPPENED: reports and charts of what was measured."""
