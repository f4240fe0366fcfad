"""Check digits and other rules that tell an identifier from any other number of its form.

Each takes what a pattern has found, reduced to ASCII letters and digits in upper case where its name is in
`CHECKS`, and as it stands where it is in `RAW_CHECKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import date
from typing import Final

Check = Callable[[str], bool]


def weighted(digits: str, weights: Sequence[int]) -> int:
    """The sum of digits times weights."""
    return sum(int(digit) * weight for digit, weight in zip(digits, weights, strict=True))


def luhn(number: str) -> bool:
    """ISO/IEC 7812-1: every second digit from the right is doubled, and the sum ends in 0."""
    digits = [int(digit) for digit in reversed(number)]
    return (sum(digits[0::2]) + sum(sum(divmod(2 * digit, 10)) for digit in digits[1::2])) % 10 == 0


_CARDS: Final = (  # first digits from, to, lengths: ISO/IEC 7812 ranges as issuers publish them
    ("4", "4", (13, 16, 19)),
    ("51", "55", (16,)),
    ("2221", "2720", (16,)),
    ("34", "34", (15,)),
    ("37", "37", (15,)),
    ("300", "305", (14, 16)),
    ("36", "36", (14, 16)),
    ("38", "39", (14, 16)),
    ("3528", "3589", (16,)),
    ("6011", "6011", (16, 19)),
    ("644", "649", (16, 19)),
    ("65", "65", (16, 19)),
    ("62", "62", (16, 17, 18, 19)),
    ("50", "50", (13, 14, 15, 16, 17, 18, 19)),
    ("56", "58", (13, 14, 15, 16, 17, 18, 19)),
    ("60", "69", (16, 17, 18, 19)),
    ("2200", "2204", (16,)),
    ("9792", "9792", (16,)),
)


def card(number: str) -> bool:
    """A payment card: an issuer's first digits with a length of its cards, and Luhn's sum."""
    has_range = any(
        first <= number[: len(first)] <= last and len(number) in lengths for first, last, lengths in _CARDS
    )
    return has_range and luhn(number) and len(set(number)) > 1


_IBANS: Final = """
    AD:24 AE:23 AL:28 AT:20 AZ:28 BA:20 BE:16 BG:22 BH:22 BI:27 BR:29 BY:28 CH:21 CR:22 CY:28 CZ:24
    DE:22 DJ:27 DK:18 DO:28 EE:20 EG:29 ES:24 FI:18 FK:18 FO:18 FR:27 GB:22 GE:22 GI:23 GL:18 GR:27
    GT:28 HN:28 HR:21 HU:28 IE:22 IL:23 IQ:23 IS:26 IT:27 JO:30 KW:30 KZ:20 LB:28 LC:32 LI:21 LT:20
    LU:20 LV:21 LY:25 MC:27 MD:24 ME:22 MK:19 MN:20 MR:27 MT:31 MU:30 NI:28 NL:18 NO:15 OM:23 PK:24
    PL:28 PS:29 PT:25 QA:29 RO:24 RS:22 RU:33 SA:24 SC:31 SD:18 SE:24 SI:19 SK:24 SM:27 SO:23 ST:25
    SV:28 TL:23 TN:24 TR:26 UA:29 VA:22 VG:24 XK:20 YE:30
"""
_IBAN_LENGTHS: Final = {one[:2]: int(one[3:]) for one in _IBANS.split()}
"""Lengths of the SWIFT registry of IBANs, release 99."""


def mod_97(number: str) -> bool:
    """ISO 7064 MOD 97-10 with the first four characters at the end; letters count as 10 to 35."""
    return int("".join(str(int(character, 36)) for character in number[4:] + number[:4])) % 97 == 1


def iban(number: str) -> bool:
    """ISO 13616: the country's length, and 1 modulo 97."""
    return _IBAN_LENGTHS.get(number[:2]) == len(number) and mod_97(number)


def iso_7064_11_10(digits: str) -> bool:
    """ISO 7064 MOD 11,10, of German tax numbers."""
    product = 10
    for digit in digits[:-1]:
        product = ((int(digit) + product) % 10 or 10) * 2 % 11
    return (11 - product) % 10 == int(digits[-1])


def icao_9303(number: str) -> bool:
    """The check digit of documents that machines read."""
    weights = (7, 3, 1) * 12
    total = sum(int(one, 36) * weight for one, weight in zip(number[:-1], weights, strict=False))
    return total % 10 == int(number[-1], 36)


def is_date(year: int, month: int, day: int) -> bool:
    """Whether that day exists."""
    try:
        date(year, month, day)
    except ValueError:
        return False
    return True


def _dihedral(a: int, b: int) -> int:
    """The product of two elements of the dihedral group of ten: rotations 0 to 4, reflections 5 to 9."""
    rotation = (a + b) % 5 if a < 5 else (a - b) % 5
    return rotation + 5 * ((a < 5) != (b < 5))


_PERMUTATION: Final = (1, 5, 7, 6, 2, 8, 3, 0, 9, 4)


def verhoeff(number: str) -> bool:
    """Verhoeff (1969): products in the dihedral group of ten elements."""
    total = 0
    for place, digit in enumerate(reversed(number)):
        value = int(digit)
        for _ in range(place % 8):
            value = _PERMUTATION[value]
        total = _dihedral(total, value)
    return total == 0
