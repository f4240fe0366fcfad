"""A server of tools behind OAuth, by the official SDK: `oauth_server.py PORT LOG SECONDS`.

Who opens its login is logged in. Tokens hold for so many seconds; what was asked of it stands in the log.
"""

from __future__ import annotations

import secrets
import sys
import time
from pathlib import Path

from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    IdentityAssertionParams,
    RefreshToken,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.server.mcpserver import MCPServer
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken


class Provider:
    def __init__(self, log: Path, seconds: int) -> None:
        self._log, self._seconds = log, seconds
        self._clients: dict[str, OAuthClientInformationFull] = {}
        self._codes: dict[str, AuthorizationCode] = {}
        self._access: dict[str, AccessToken] = {}
        self._refresh: dict[str, RefreshToken] = {}

    def _note(self, line: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{line}\n")

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self._clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self._note("registered")
        self._clients[str(client_info.client_id)] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        self._note("authorized")
        code = secrets.token_urlsafe(32)
        self._codes[code] = AuthorizationCode(
            code=code,
            scopes=[],
            expires_at=time.time() + 60,
            client_id=str(client.client_id),
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self._codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self._codes[authorization_code.code]
        return self._issued("code", str(client.client_id), authorization_code.resource)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        return self._refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        del self._refresh[refresh_token.token]  # each holds once
        return self._issued("refresh", str(client.client_id), refresh_token.resource)

    async def load_access_token(self, token: str) -> AccessToken | None:
        found = self._access.get(token)
        return found if found is not None and (found.expires_at or 0) > time.time() else None

    async def exchange_identity_assertion(
        self, client: OAuthClientInformationFull, params: IdentityAssertionParams
    ) -> OAuthToken:
        raise NotImplementedError

    async def revoke_token(self, token: AccessToken | RefreshToken) -> None:
        raise NotImplementedError

    def _issued(self, how: str, client: str, resource: str | None) -> OAuthToken:
        access, refresh = (f"{kind}-{secrets.token_urlsafe(24)}" for kind in ("access", "refresh"))
        self._note(f"{how} {access} {refresh}")
        until = int(time.time()) + self._seconds
        self._access[access] = AccessToken(
            token=access, client_id=client, scopes=[], expires_at=until, resource=resource
        )
        self._refresh[refresh] = RefreshToken(token=refresh, client_id=client, scopes=[], resource=resource)
        return OAuthToken(access_token=access, expires_in=self._seconds, refresh_token=refresh)


def main() -> None:
    port, log, seconds = int(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    url = f"http://127.0.0.1:{port}"
    server = MCPServer(
        "closed",
        auth_server_provider=Provider(log, seconds),
        auth=AuthSettings(
            issuer_url=url,  # type: ignore[arg-type]
            resource_server_url=f"{url}/mcp",  # type: ignore[arg-type]
            client_registration_options=ClientRegistrationOptions(enabled=True),
            validate_token_resource=True,
        ),
    )

    @server.tool()
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    server.run("streamable-http", host="127.0.0.1", port=port)


if __name__ == "__main__":
    main()
