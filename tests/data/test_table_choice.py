"""Which tables a model reads for a question in words."""

from __future__ import annotations

from headrace.data.nsql import prompt_of
from headrace.data.table_choice import tables_for

SHOP = {
    "Track": ["TrackId", "Name", "Milliseconds", "UnitPrice"],
    "PlaylistTrack": ["PlaylistId", "TrackId"],
    "InvoiceLine": ["InvoiceLineId", "InvoiceId", "TrackId", "Quantity"],
    "Artist": ["ArtistId", "Name"],
    "Customer": ["CustomerId", "FirstName", "LastName", "Country"],
    "staff_member": ["id", "hired on", "salary"],
}
SMALL = 300  # tokens: an eighth has no room for all


def test_all_tables_are_shown_where_they_fit_or_the_context_is_unknown() -> None:
    assert tables_for("How many tracks are there?", SHOP, None) == SHOP
    assert list(tables_for("How many tracks are there?", SHOP, 100_000)) == list(SHOP)


def test_a_small_model_reads_the_tables_that_the_question_names() -> None:
    def chosen(question: str) -> list[str]:
        return list(tables_for(question, SHOP, SMALL))

    assert chosen("How many artists are there?") == ["Artist"]
    assert chosen("Which customers live in Brazil?") == ["Customer"]
    assert chosen("What do staff members earn in salaries?") == ["staff_member"]
    assert "Track" in chosen("How many tracks are there?")
    assert "Artist" not in chosen("How many tracks are there?")


def test_the_order_stays_and_one_table_is_always_left() -> None:
    both = tables_for("Which customers like which artist?", SHOP, SMALL)
    assert list(both) == ["Artist", "Customer"]
    wide = {"a": ["column"] * 500, "b": ["other"] * 500}
    assert list(tables_for("Which other?", wide, SMALL)) == ["b"]
    assert len(tables_for("", wide, SMALL)) == 1
    assert len(tables_for("你好 🙂 \0", wide, SMALL)) == 1
    assert tables_for("Anything", {}, SMALL) == {}


def test_names_stand_in_the_prompt_as_they_are() -> None:
    told = prompt_of("How many?", {"Track": ["Unit Price", "a, b (c)", 'x"y', "two\nlines"]})
    assert told == 'Table Track (Unit Price, "a, b (c)", "x""y", "two\nlines")\nHow many?'
