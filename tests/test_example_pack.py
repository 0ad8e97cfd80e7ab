"""The example pack of docs/packs.md, on stand-ins of ours and on real releases."""

from support.checkout import ROOT

PACK = ROOT / "docs" / "packs" / "accelerate-fixes"
