"""The batch transaction: the commit protocol, the encoder, the writers and the sink. See ARCHITECTURE.md."""
