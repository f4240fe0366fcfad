"""Functions of SQL that models answer, one file each: arguments, requests, values."""
