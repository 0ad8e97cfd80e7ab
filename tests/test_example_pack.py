"""The example pack of docs/packs.md, on stand-ins of ours and on real releases."""

import json
from pathlib import Path

import pytest

from support import cli, environments, examples
from support.checkout import ROOT
from unhang import packs
from unhang.cli.main import main

PACK = ROOT / "docs" / "packs" / "accelerate-fixes"
