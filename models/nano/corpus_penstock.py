"""What Nano knows about Penstock: its parts and its words, and the ways to ask for them."""

from __future__ import annotations

# Every way to ask for a term; "{}" is one of its names.
TERM_FORMS = (
    "What is {}?",
    "What is {}?",
    "What's {}?",
    "Explain {}.",
    "Can you explain {}?",
    "Tell me about {}.",
    "What does {} mean?",
    "What do you know about {}?",
    "Describe {}.",
    "Define {}.",
    "I want to know what {} is.",
    "Please tell me what {} is.",
    "{}?",
)

# More ways, for the parts that do something.
PART_FORMS = (
    "What does {} do?",
    "What does {} do?",
    "What is {} for?",
    "What is the job of {}?",
    "How does {} work?",
    "Why do I need {}?",
    "What is the role of {}?",
    "Why is there {}?",
)

# (names, answer): parts of the mesh.
PARTS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("the gateway", "a gateway", "the Penstock gateway", "gateway"),
        (
            "The gateway is the front door. It speaks the OpenAI API and gRPC, checks each request, turns text "
            "into tokens, asks the router for a worker, and streams the answer back to you."
        ),
    ),
    (
        ("the router", "a router", "the Penstock router", "router"),
        (
            "The router decides who is admitted, when, and where. It knows the load of every worker and the "
            "prefixes that each one has cached, and it grants leases. It never sees a token."
        ),
    ),
    (
        ("the worker", "a worker", "workers", "worker", "a Penstock worker"),
        (
            "A worker runs one engine, such as vLLM, on its GPUs. It reports its load to the routers and sends "
            "each gateway one step frame for every step of the engine."
        ),
    ),
    (
        ("the cache", "the cache service", "the response cache", "cache"),
        (
            "The cache service keeps finished answers and blocks of the KV cache, first in memory, then in "
            "Redis, then on disk. If it dies, requests go on without cache hits."
        ),
    ),
    (
        ("the control plane", "control plane", "a control plane"),
        (
            "The control plane tells Envoy about listeners, routes, clusters and certificates over xDS. It is "
            "not on the path of a request."
        ),
    ),
    (
        ("the edge", "the edge service", "edge"),
        (
            "The edge service finds out which tenant an API key belongs to, and counts requests and tokens "
            "against the limits of that tenant."
        ),
    ),
    (
        ("Envoy", "the Envoy proxy"),
        (
            "Envoy is the proxy in front of the gateways. It ends TLS, asks the edge service who is calling, "
            "and applies the request limits."
        ),
    ),
    (
        ("the journal", "a journal", "journals", "the token journal"),
        (
            "The journal keeps the tokens of a response in Redis while they are made. With it a stream can be "
            "resumed after a lost connection, and a job can go on when its worker dies."
        ),
    ),
    (
        ("RabbitMQ", "the overflow queue"),
        (
            "RabbitMQ holds the requests that overflow. Each one is confirmed before the client is told that "
            "it was accepted, and workers pull it when they have room."
        ),
    ),
    (
        ("Redis", "the Redis server"),
        (
            "Redis keeps two things for Penstock: cached blocks and answers, which may be lost, and the "
            "journal, which may not."
        ),
    ),
    (
        ("vLLM", "the vLLM engine"),
        (
            "vLLM is the engine that runs the model inside a worker. Penstock gives it token ids, and it gives "
            "back new tokens at every step."
        ),
    ),
    (
        ("the simulator", "the simulated engine", "the sim engine"),
        (
            "The simulator is an engine without a model. It has the timing of a real one, and every token is a "
            "function of the prompt, so tests can see any token that is lost, repeated or out of order."
        ),
    ),
)

# (names, answer): words of the trade.
TERMS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        ("Penstock", "Penstock", "penstock", "the Penstock mesh", "this project", "this server"),
        (
            "Penstock is a serving mesh for large language models. It decides who is admitted, when, and where, "
            "and it carries every token back exactly once, even when a server dies."
        ),
    ),
    (
        ("a step frame", "the step frame", "step frames", "a StepFrame"),
        (
            "A step frame is one message that holds the new tokens of all sequences of one gateway for one step "
            "of the engine. One frame per step keeps the cost of a token low."
        ),
    ),
    (
        ("a lease", "leases", "the lease", "a router lease"),
        (
            "A lease is the permission from the router to use a worker for one request. It is given back when "
            "the request ends or when it moves to another worker."
        ),
    ),
    (
        ("draining", "a drain", "drain", "the drain of a worker"),
        (
            "Draining means that a worker takes no new requests but finishes or hands over the ones it has. "
            "Then it can be stopped without cutting a stream."
        ),
    ),
    (
        ("failover", "a failover", "the failover"),
        (
            "Failover moves a running stream to another worker when its worker dies. The new worker gets the "
            "prompt and the tokens made so far, and the client only sees a short pause."
        ),
    ),
    (
        ("the prefix cache", "a prefix cache", "prefix caching", "prefix cache"),
        (
            "The prefix cache keeps the work done for the start of a prompt. When a new prompt begins with the "
            "same tokens, that part is not computed again, so the first token comes sooner."
        ),
    ),
    (
        ("TTFT", "time to first token", "the TTFT"),
        (
            "TTFT is the time to first token: how long you wait from sending a request until the first token "
            "arrives. It is mostly queueing and prefill."
        ),
    ),
    (
        ("TPOT", "time per output token", "the TPOT"),
        (
            "TPOT is the time per output token: the average time between two tokens after the first one. A low "
            "TPOT makes a stream feel smooth."
        ),
    ),
    (
        ("prefill", "the prefill", "the prefill phase"),
        (
            "Prefill is the first phase of a request. The model reads the whole prompt at once and fills the KV "
            "cache before it writes the first token."
        ),
    ),
    (
        ("decode", "decoding", "the decode phase"),
        (
            "Decode is the second phase of a request. The model writes one token per step for every running "
            "sequence until the answer is complete."
        ),
    ),
    (
        ("the KV cache", "a KV cache", "KV cache"),
        (
            "The KV cache holds the keys and values of all tokens that the model has read, so that each new "
            "token needs only one small step."
        ),
    ),
    (
        ("a token", "tokens", "the token"),
        (
            "A token is a small piece of text, such as a word or a part of a word. Models read and write tokens, "
            "not letters."
        ),
    ),
    (
        ("a tokenizer", "the tokenizer", "tokenization"),
        "A tokenizer cuts text into tokens and gives each one a number. It also turns the numbers back into text.",
    ),
    (
        ("overflow", "the overflow", "an overflow"),
        (
            "Overflow is what happens when a queue is full. The request is written down and sent to RabbitMQ, "
            "and a worker takes it later. Nothing that was accepted is lost."
        ),
    ),
    (
        ("a tenant", "tenants", "the tenant", "multi-tenancy"),
        (
            "A tenant is a team or a customer that shares the mesh with others. Each tenant has its own keys, "
            "limits and fair share, and cannot see the data of the others."
        ),
    ),
    (
        ("tensor parallelism", "tensor parallel", "TP"),
        (
            "Tensor parallelism splits each layer of a model over several GPUs, so that a model which is too "
            "big for one GPU can still run."
        ),
    ),
    (
        ("a GPU", "GPUs"),
        (
            "A GPU is a chip that does many small sums at the same time. Large language models run on GPUs "
            "because they need a great many sums for every token."
        ),
    ),
    (
        ("continuous batching", "batching"),
        (
            "Continuous batching lets new requests join the running batch at every step, so that the GPU never "
            "waits for the slowest answer."
        ),
    ),
    (
        ("backpressure", "flow control"),
        (
            "Backpressure means that a slow reader slows the writer down. In Penstock every queue is bounded, "
            "so memory never grows for ever."
        ),
    ),
    (
        ("admission control", "admission"),
        (
            "Admission control decides whether a request may enter now, must wait, overflows, or is refused "
            "with an honest time to try again."
        ),
    ),
    (
        ("gRPC", "grpc"),
        (
            "gRPC is a way for programs to call each other over the network. The services of Penstock talk to "
            "each other with gRPC streams."
        ),
    ),
    (
        ("a language model", "an LLM", "a large language model", "LLMs"),
        (
            "A language model is a program that has learned from text which token is likely to come next. By "
            "adding one token after another it writes an answer."
        ),
    ),
    (
        ("a rate limit", "rate limits", "rate limiting"),
        (
            "A rate limit says how many requests or tokens a tenant may use in a time. Who goes over it gets a "
            "429 and the time to try again."
        ),
    ),
    (
        ("a heartbeat", "heartbeats"),
        (
            "A heartbeat is a small message that says: I am alive. Workers send one every half second, and a "
            "worker that is silent for two seconds counts as dead."
        ),
    ),
)
