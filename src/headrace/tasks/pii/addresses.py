"""Checks of what is not an identity number: addresses of networks and wallets, tokens, telephone numbers."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any, Final

from headrace.tasks.pii.checksums import Check

_BASE58: Final = {
    character: value
    for value, character in enumerate("123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz")
}
_BECH32: Final = {character: value for value, character in enumerate("qpzry9x8gf2tvdw0s3jn54khce6mua7l")}
_BECH32_GENERATOR: Final = (0x3B6A57B2, 0x26508E6D, 0x1EA119FA, 0x3D4233DD, 0x2A1462B3)
_BECH32_SUMS: Final = (1, 0x2BC830A3)  # BIP 173, BIP 350


def ip(text: str) -> bool:
    """An address of IPv4 or IPv6, but for those of no host (0.0.0.0, ::)."""
    try:
        return not ip_address(text.split("/")[0]).is_unspecified
    except ValueError:
        return False


def base58check(text: str) -> bool:
    """25 bytes in base 58, the last four of which are those of the double SHA-256 of the others."""
    number = 0
    for character in text:
        if character not in _BASE58:
            return False
        number = number * 58 + _BASE58[character]
    if number >> 200:
        return False
    data = number.to_bytes(25)
    zeros = len(data) - len(data.lstrip(b"\0"))
    if zeros != len(text) - len(text.lstrip("1")):
        return False
    return hashlib.sha256(hashlib.sha256(data[:-4]).digest()).digest()[:4] == data[-4:]


def bech32(text: str) -> bool:
    """The checksum of BIP 173 or BIP 350; not in mixed case."""
    if text not in (text.lower(), text.upper()):
        return False
    prefix, _, rest = text.lower().rpartition("1")
    if any(character not in _BECH32 for character in rest):
        return False
    values = [ord(one) >> 5 for one in prefix] + [0] + [ord(one) & 31 for one in prefix]
    total = 1
    for value in values + [_BECH32[character] for character in rest]:
        top = total >> 25
        total = (total & 0x1FFFFFF) << 5 ^ value
        for bit, generator in enumerate(_BECH32_GENERATOR):
            total ^= generator if top >> bit & 1 else 0
    return total in _BECH32_SUMS


def jwt(text: str) -> bool:
    """RFC 7519: the first part is JSON with an algorithm."""
    first = text.split(".")[0]
    try:
        header: Any = json.loads(base64.urlsafe_b64decode(first + "=" * (-len(first) % 4)))
    except (ValueError, binascii.Error, RecursionError):
        return False
    return isinstance(header, dict) and "alg" in header


def phone(text: str) -> bool:
    """Between 7 and 15 digits (E.164), not all of them equal, and no date."""
    digits = [character for character in text if character.isdigit()]
    return 7 <= len(digits) <= 15 and len(set(digits)) > 2 and text.count("(") == text.count(")")


def secret(text: str) -> bool:
    """Letters and digits as a generator mixes them: at least ten different characters, and a digit."""
    return len(set(text)) >= 10 and any(character.isdigit() for character in text)


RAW_CHECKS: Final[Mapping[str, Check]] = {
    check.__name__: check for check in (base58check, bech32, ip, jwt, phone, secret)
}
"""By name, as recognizers name them. They read what was found as it stands."""
