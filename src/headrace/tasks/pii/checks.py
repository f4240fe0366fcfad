"""Checks of what patterns have found, by the names that recognizers give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from headrace.tasks.pii import national_numbers as national
from headrace.tasks.pii.checksums import Check, card, iban

CHECKS: Final[Mapping[str, Check]] = {
    check.__name__: check
    for check in (
        national.aba_routing,
        national.au_abn,
        national.au_acn,
        national.au_medicare,
        national.au_tfn,
        national.br_cnpj,
        national.br_cpf,
        national.ca_sin,
        card,
        national.de_id_card,
        national.de_social_security,
        national.de_tax_id,
        national.es_nie,
        national.es_nif,
        national.fi_personal_code,
        national.fr_nir,
        iban,
        national.in_aadhaar,
        national.it_fiscal_code,
        national.kr_rrn,
        national.nl_bsn,
        national.pl_pesel,
        national.se_personnummer,
        national.sg_nric,
        national.tr_national_id,
        national.uk_nhs,
        national.uk_nino,
        national.us_dea,
        national.us_itin,
        national.us_npi,
        national.us_ssn,
        national.za_id_number,
    )
}
"""By name, as recognizers name them."""
