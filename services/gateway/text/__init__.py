"""Text and tokens: tokenization, detokenization, stop strings, chat templates, tool calls. No I/O."""
