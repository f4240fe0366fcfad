"""Check digits and other rules that tell an identifier from any other number of its form.

Each takes what a pattern has found, reduced to ASCII letters and digits in upper case where its name is in
`CHECKS`, and as it stands where it is in `RAW_CHECKS`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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


_IBAN_LENGTHS: Final = {
    country: int(length)
    for country, length in (
        entry.split(":")
        for entry in [
            "AD:24",
            "AE:23",
            "AL:28",
            "AT:20",
            "AZ:28",
            "BA:20",
            "BE:16",
            "BG:22",
            "BH:22",
            "BI:27",
            "BR:29",
            "BY:28",
            "CH:21",
            "CR:22",
            "CY:28",
            "CZ:24",
            "DE:22",
            "DJ:27",
            "DK:18",
            "DO:28",
            "EE:20",
            "EG:29",
            "ES:24",
            "FI:18",
            "FK:18",
            "FO:18",
            "FR:27",
            "GB:22",
            "GE:22",
            "GI:23",
            "GL:18",
            "GR:27",
            "GT:28",
            "HN:28",
            "HR:21",
            "HU:28",
            "IE:22",
            "IL:23",
            "IQ:23",
            "IS:26",
            "IT:27",
            "JO:30",
            "KW:30",
            "KZ:20",
            "LB:28",
            "LC:32",
            "LI:21",
            "LT:20",
            "LU:20",
            "LV:21",
            "LY:25",
            "MC:27",
            "MD:24",
            "ME:22",
            "MK:19",
            "MN:20",
            "MR:27",
            "MT:31",
            "MU:30",
            "NI:28",
            "NL:18",
            "NO:15",
            "OM:23",
            "PK:24",
            "PL:28",
            "PS:29",
            "PT:25",
            "QA:29",
            "RO:24",
            "RS:22",
            "RU:33",
            "SA:24",
            "SC:31",
            "SD:18",
            "SE:24",
            "SI:19",
            "SK:24",
            "SM:27",
            "SO:23",
            "ST:25",
            "SV:28",
            "TL:23",
            "TN:24",
            "TR:26",
            "UA:29",
            "VA:22",
            "VG:24",
            "XK:20",
            "YE:30",
        ]
    )
}
"""Lengths of the SWIFT registry of IBANs, release 99."""


def mod_97(number: str) -> bool:
    """ISO 7064 MOD 97-10 with the first four characters at the end; letters count as 10 to 35."""
    return int("".join(str(int(character, 36)) for character in number[4:] + number[:4])) % 97 == 1


def iban(number: str) -> bool:
    """ISO 13616: the country's length, and 1 modulo 97."""
    return _IBAN_LENGTHS.get(number[:2]) == len(number) and mod_97(number)


def us_ssn(number: str) -> bool:
    """No area 000, 666 or 900 to 999, no group 00, no serial 0000; not the numbers of advertisements."""
    area, group, serial = number[:3], number[3:5], number[5:]
    is_example = number in ("078051120", "219099999", "123456789") or len(set(number)) == 1
    return (
        area not in ("000", "666") and area < "900" and group != "00" and serial != "0000" and not is_example
    )


def us_itin(number: str) -> bool:
    """Nine digits from 9, with a fourth and fifth digit that the IRS gives."""
    group = int(number[3:5])
    return number[0] == "9" and (50 <= group <= 65 or 70 <= group <= 88 or 90 <= group <= 92 or group >= 94)


def aba_routing(number: str) -> bool:
    """Weights 3, 7, 1; the first two digits name a Federal Reserve district."""
    district = int(number[:2])
    is_district = district <= 12 or 21 <= district <= 32 or 61 <= district <= 72 or district == 80
    return is_district and int(number) > 0 and weighted(number, (3, 7, 1) * 3) % 10 == 0


def us_npi(number: str) -> bool:
    """Luhn's sum with the prefix 80840 of the US health industry."""
    return luhn("80840" + number)


def us_dea(number: str) -> bool:
    """The last digit is that of the first, third and fifth plus twice the others."""
    digits = [int(digit) for digit in number[2:]]
    return (sum(digits[0:5:2]) + 2 * sum(digits[1:6:2])) % 10 == digits[6]


def uk_nhs(number: str) -> bool:
    """Weights 10 to 1, modulo 11."""
    return weighted(number, range(10, 0, -1)) % 11 == 0 and len(set(number)) > 1


def uk_nino(number: str) -> bool:
    """Prefixes that are not given (HMRC, NIM39110)."""
    return number[:2] not in ("BG", "GB", "NK", "KN", "TN", "NT", "ZZ")


def iso_7064_11_10(digits: str) -> bool:
    """ISO 7064 MOD 11,10, of German tax numbers."""
    product = 10
    for digit in digits[:-1]:
        product = ((int(digit) + product) % 10 or 10) * 2 % 11
    return (11 - product) % 10 == int(digits[-1])


def de_tax_id(number: str) -> bool:
    """No leading 0; of the first ten digits one is there twice or three times, and one or two are missing."""
    counts = sorted(number[:10].count(digit) for digit in set(number[:10]))
    has_repeat = counts[-1] in (2, 3) and counts[-2] == 1
    return number[0] != "0" and has_repeat and iso_7064_11_10(number)


def de_id_card(number: str) -> bool:
    """ICAO 9303: weights 7, 3, 1, letters from 10, over nine characters and a check digit."""
    return icao_9303(number[:10]) if len(number) >= 10 else True


def icao_9303(number: str) -> bool:
    """The check digit of documents that machines read."""
    weights = (7, 3, 1) * 12
    total = sum(int(one, 36) * weight for one, weight in zip(number[:-1], weights, strict=False))
    return total % 10 == int(number[-1], 36)


def de_social_security(number: str) -> bool:
    """Digits of the letter's place in the alphabet, weights 2 1 2 5 7 1 2 1 2 1 2 1, sums of digits."""
    digits = number[:8] + f"{ord(number[8]) - 64:02}" + number[9:11]
    weights = (2, 1, 2, 5, 7, 1, 2, 1, 2, 1, 2, 1)
    total = sum(sum(divmod(int(one) * weight, 10)) for one, weight in zip(digits, weights, strict=True))
    return total % 10 == int(number[11])


def fr_nir(number: str) -> bool:
    """97 minus the number modulo 97; 2A and 2B of Corsica count as 19 and 18."""
    body = number[:13].replace("2A", "19").replace("2B", "18")
    return body.isdigit() and number[13:].isdigit() and 97 - int(body) % 97 == int(number[13:])


_NIF_LETTERS: Final = "TRWAGMYFPDXBNJZSQVHLCKE"


def es_nif(number: str) -> bool:
    """The letter is the number modulo 23."""
    return _NIF_LETTERS[int(number[:-1]) % 23] == number[-1]


def es_nie(number: str) -> bool:
    """As a NIF whose first letter X, Y, Z counts as 0, 1, 2."""
    return es_nif(str("XYZ".index(number[0])) + number[1:])


_ODD_VALUES: Final = (
    1,
    0,
    5,
    7,
    9,
    13,
    15,
    17,
    19,
    21,
    2,
    4,
    18,
    20,
    11,
    3,
    6,
    8,
    12,
    14,
    16,
    10,
    22,
    25,
    24,
    23,
)


_OMOCODES: Final = {letter: str(digit) for digit, letter in enumerate("LMNPQRSTUV")}


def it_fiscal_code(code: str) -> bool:
    """Decree of 23 December 1976: a date (day + 40 of women), values of odd and even places modulo 26.

    Letters may stand for digits where two persons would have the same code.
    """
    year, day = (int("".join(_OMOCODES.get(one, one) for one in code[at : at + 2])) for at in (6, 9))
    if not is_date(2000 + year, "ABCDEHLMPRST".index(code[8]) + 1, day - 40 if day > 40 else day):
        return False
    total = 0
    for place, character in enumerate(code[:15]):
        value = int(character) if character.isdigit() else ord(character) - 65
        total += value if place % 2 else _ODD_VALUES[value]
    return chr(65 + total % 26) == code[15]


def pl_pesel(number: str) -> bool:
    """Weights 1 3 7 9; the month tells the century."""
    month = int(number[2:4]) % 20
    century = {4: 1800, 0: 1900, 1: 2000, 2: 2100, 3: 2200}[int(number[2:4]) // 20]
    return weighted(number, (1, 3, 7, 9, 1, 3, 7, 9, 1, 3, 1)) % 10 == 0 and is_date(
        century + int(number[:2]), month, int(number[4:6])
    )


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


def in_aadhaar(number: str) -> bool:
    """Verhoeff's digit; no first digit 0 or 1, and no palindrome."""
    return number[0] not in "01" and number != number[::-1] and verhoeff(number)


def au_tfn(number: str) -> bool:
    """Weighted sum modulo 11."""
    return weighted(number, (1, 4, 3, 7, 5, 8, 6, 9, 10)) % 11 == 0 and len(set(number)) > 1


def au_abn(number: str) -> bool:
    """The first digit less one, weighted sum modulo 89."""
    return number[0] != "0" and (weighted(number, (10, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19)) - 10) % 89 == 0


def au_acn(number: str) -> bool:
    """Weights 8 to 1, modulo 10."""
    return -weighted(number[:8], range(8, 0, -1)) % 10 == int(number[8])


def au_medicare(number: str) -> bool:
    """The ninth digit is the weighted sum of the first eight modulo 10."""
    return weighted(number[:8], (1, 3, 7, 9, 1, 3, 7, 9)) % 10 == int(number[8])


def sg_nric(number: str) -> bool:
    """Weights 2 7 6 5 4 3 2, with an offset and letters by the first letter."""
    total = weighted(number[1:8], (2, 7, 6, 5, 4, 3, 2))
    offset, letters = {
        "S": (0, "JZIHGFEDCBA"),
        "T": (4, "JZIHGFEDCBA"),
        "F": (0, "XWUTRQPNMLK"),
        "G": (4, "XWUTRQPNMLK"),
        "M": (3, "XWUTRQPNJLK"),
    }[number[0]]
    place = (total + offset) % 11
    return letters[place] == number[8]


def _modulo_11_digit(digits: str, weights: Sequence[int]) -> int:
    rest = weighted(digits, weights) % 11
    return 0 if rest < 2 else 11 - rest


def br_cpf(number: str) -> bool:
    """Two digits modulo 11."""
    first = _modulo_11_digit(number[:9], range(10, 1, -1))
    second = _modulo_11_digit(number[:9] + str(first), range(11, 1, -1))
    return number[9:] == f"{first}{second}" and len(set(number)) > 1


def br_cnpj(number: str) -> bool:
    """Two digits modulo 11."""
    weights = (6, 5, 4, 3, 2, 9, 8, 7, 6, 5, 4, 3, 2)
    first = _modulo_11_digit(number[:12], weights[1:])
    second = _modulo_11_digit(number[:12] + str(first), weights)
    return number[12:] == f"{first}{second}" and len(set(number)) > 1


def kr_rrn(number: str) -> bool:
    """A date of birth. The check digit is not asked: it holds for numbers from before October 2020 only."""
    century = {"9": 1800, "0": 1800, "1": 1900, "2": 1900, "5": 1900, "6": 1900}.get(number[6], 2000)
    return is_date(century + int(number[:2]), int(number[2:4]), int(number[4:6]))


def ca_sin(number: str) -> bool:
    """Luhn's sum; no first digit 0 or 8."""
    return number[0] not in "08" and luhn(number)


def nl_bsn(number: str) -> bool:
    """Weights 9 to 2 and -1, modulo 11."""
    return weighted(number, (9, 8, 7, 6, 5, 4, 3, 2, -1)) % 11 == 0 and len(set(number)) > 1


def se_personnummer(number: str) -> bool:
    """A date of birth (day + 60 of a coordination number), then Luhn's sum."""
    short = number[-10:]
    day = int(short[4:6])
    is_day = is_date(2000, int(short[2:4]), day - 60 if day > 60 else day)
    return is_day and luhn(short)


def fi_personal_code(number: str) -> bool:
    """The character is the number modulo 31. The sign of the century is gone, or is a letter."""
    digits = "".join(character for character in number[:-1] if character.isdigit())
    is_day = is_date(2000, int(digits[2:4]), int(digits[:2]))
    return is_day and "0123456789ABCDEFHJKLMNPRSTUVWXY"[int(digits) % 31] == number[-1]


def tr_national_id(number: str) -> bool:
    """Two check digits of sums at odd and even places."""
    digits = [int(digit) for digit in number]
    tenth = (7 * sum(digits[0:9:2]) - sum(digits[1:8:2])) % 10
    return digits[0] != 0 and tenth == digits[9] and sum(digits[:10]) % 10 == digits[10]


def za_id_number(number: str) -> bool:
    """A date of birth and Luhn's sum."""
    return is_date(2000, int(number[2:4]), int(number[4:6])) and luhn(number)


CHECKS: Final[Mapping[str, Check]] = {
    check.__name__: check
    for check in (
        aba_routing, au_abn, au_acn, au_medicare, au_tfn, br_cnpj, br_cpf, ca_sin, card, de_id_card,
        de_social_security, de_tax_id, es_nie, es_nif, fi_personal_code, fr_nir, iban, in_aadhaar,
        it_fiscal_code, kr_rrn, nl_bsn, pl_pesel, se_personnummer, sg_nric, tr_national_id, uk_nhs, uk_nino,
        us_dea, us_itin, us_npi, us_ssn, za_id_number,
    )
}  # fmt: skip
"""By name, as recognizers name them."""
