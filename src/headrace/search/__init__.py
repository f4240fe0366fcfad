"""Search: indexes with words and vectors of texts, readers of documents, hybrid queries, citations."""
