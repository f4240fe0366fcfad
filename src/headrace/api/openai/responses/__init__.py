"""The Responses API: one request makes one answer of items, which can be kept and continued."""
