"""What a server needs to know, checked before it starts."""

from __future__ import annotations

import ipaddress
import secrets
from dataclasses import dataclass, field

from cairn.config import WebSettings
from cairn.config.settings import DEFAULT_ADDRESS, DEFAULT_PORT
from cairn.errors import InvalidInputError
from cairn.view.state_browser import Masks


@dataclass(frozen=True)
class WebOptions:
    address: str = DEFAULT_ADDRESS
    port: int = DEFAULT_PORT
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24), repr=False)
    hosts: tuple[str, ...] = ()
    read_only: bool = False
    masks: Masks = field(default_factory=Masks)
    savepoint_roots: tuple[str, ...] = ()

    @property
    def loopback(self) -> bool:
        return is_loopback(self.address)


def is_loopback(address: str) -> bool:
    if address == "localhost":
        return True
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def options_of(settings: WebSettings) -> WebOptions:
    """Options from the settings of a job; an open address without a token of one's own is refused."""
    if not is_loopback(settings.address) and not settings.token:
        raise InvalidInputError(
            f"rest.bind-address {settings.address} is reachable from other machines, so the web page requires a token: "
            f"set cairn.web.token, or leave the address at {DEFAULT_ADDRESS}",
            option="rest.bind-address",
        )
    if settings.token and len(settings.token) < 16:
        raise InvalidInputError("cairn.web.token is too short: use at least 16 characters", option="cairn.web.token")
    made = {"token": settings.token} if settings.token else {}
    return WebOptions(
        address=settings.address,
        port=settings.port,
        hosts=settings.hosts,
        read_only=settings.read_only,
        masks=Masks(settings.hidden_states),
        savepoint_roots=settings.savepoint_roots,
        **made,
    )
