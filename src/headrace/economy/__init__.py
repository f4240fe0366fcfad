"""What requests cost: prices, the ledger, budgets, reports, and what hardware of one's own would cost."""
