"""Reads the settings file for all pipelines, which ranks below their declarations and above the defaults."""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

from epochline.config.discovery import project_folder
from epochline.declare.settings import Settings
from epochline.errors import ConfigurationError, DeclarationError


def settings_file() -> Path:
    """``EPOCHLINE_SETTINGS``, or ``include/epochline.toml`` of the project."""
    named = os.environ.get("EPOCHLINE_SETTINGS")
    return Path(named) if named else project_folder() / "include" / "epochline.toml"


def file_settings() -> Settings:
    """Read ``[settings]`` of the settings file. Returns defaults if the default file does not exist.

    Raises `ConfigurationError` if the file that ``EPOCHLINE_SETTINGS`` names is missing, or a file cannot be read.
    """
    path = settings_file()
    try:
        text = path.read_text()
    except FileNotFoundError:
        if "EPOCHLINE_SETTINGS" not in os.environ:
            return Settings()
        raise ConfigurationError(f"EPOCHLINE_SETTINGS names {path}, which does not exist.") from None
    try:
        tables = tomllib.loads(text)
        strangers = sorted(set(tables) - {"settings"})
        if strangers:
            raise ConfigurationError(f"{path}: unknown: {', '.join(strangers)}; only [settings] is supported.")
        return Settings(**tables.get("settings", {}))
    except (tomllib.TOMLDecodeError, DeclarationError, TypeError) as error:
        raise ConfigurationError(f"{path}: {error}") from error
