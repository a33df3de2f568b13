"""Memory of a training step as sums: the ledger, formulas for networks that are not built, and whether they fit."""
