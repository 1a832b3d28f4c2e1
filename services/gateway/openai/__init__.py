"""The OpenAI wire formats: requests in, chunks, bodies and errors out. No I/O."""
