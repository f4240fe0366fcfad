"""Rules of the numbers that states and their offices give to persons and firms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from headrace.tasks.pii.checksums import icao_9303, is_date, iso_7064_11_10, luhn, verhoeff, weighted


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


def de_tax_id(number: str) -> bool:
    """No leading 0; of the first ten digits one is there twice or three times, and one or two are missing."""
    counts = sorted(number[:10].count(digit) for digit in set(number[:10]))
    has_repeat = counts[-1] in (2, 3) and counts[-2] == 1
    return number[0] != "0" and has_repeat and iso_7064_11_10(number)


def de_id_card(number: str) -> bool:
    """ICAO 9303: weights 7, 3, 1, letters from 10, over nine characters and a check digit."""
    return icao_9303(number[:10]) if len(number) >= 10 else True


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
    1, 0, 5, 7, 9, 13, 15, 17, 19, 21, 2, 4, 18, 20, 11, 3, 6, 8, 12, 14, 16, 10, 22, 25, 24, 23,
)  # fmt: skip
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
