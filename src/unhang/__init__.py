"""unhang: version-pinned codemods that keep Megatron-LM, megatron-core, verl and ms-swift from hanging."""

__version__ = "0.1.0"
