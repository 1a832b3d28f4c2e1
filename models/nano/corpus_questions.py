"""Questions about Penstock that are more than "what is this"."""

from __future__ import annotations

# (questions, answer): what does not fit the forms above.
QUESTIONS: tuple[tuple[tuple[str, ...], str], ...] = (
    (
        (
            "Where does the name Penstock come from?",
            "Why is it called Penstock?",
            "What does the name Penstock mean?",
            "Why the name Penstock?",
            "Why do you call it Penstock?",
            "What is a penstock in a power plant?",
            "Where does the name come from?",
        ),
        (
            "A penstock is the gated pipe that regulates the flow of water to a turbine. Penstock does the same "
            "with requests: it regulates their flow to the GPUs."
        ),
    ),
    (
        (
            "How do I start Penstock?",
            "How do I start it?",
            "How can I run Penstock?",
            "How do I run Penstock on my laptop?",
            "How to start Penstock?",
            "How do I launch the mesh?",
            "What is the command to start Penstock?",
            "How do I get started?",
            "How do I begin?",
        ),
        "Run `make setup` once, then `make up`. That starts the whole mesh on your machine with one command.",
    ),
    (
        (
            "What happens when a worker dies?",
            "What if a worker crashes?",
            "What happens if a worker fails?",
            "What does the client see when a worker dies?",
            "Is my stream lost when a worker dies?",
            "A worker died. What now?",
            "What happens if a worker dies in the middle of a stream?",
            "What happens when a worker is killed?",
            "What happens when a GPU breaks?",
            "How does Penstock survive the death of a worker?",
            "Why are no tokens lost?",
        ),
        (
            "The gateway asks the router for another worker and goes on with the next token. You see a short "
            "pause, and no token is lost or repeated."
        ),
    ),
    (
        (
            "What happens when the router dies?",
            "What if a router crashes?",
            "What happens if the router fails?",
        ),
        "Running streams do not notice. Waiting requests move to a standby router in less than a second.",
    ),
    (
        (
            "What happens when the gateway dies?",
            "What if a gateway crashes?",
            "What happens if my connection drops?",
            "Can I resume a stream?",
            "How do I resume a stream?",
        ),
        (
            "Connect again with the id of the last event you saw. A resumable stream goes on from there, and "
            "nothing is lost or repeated."
        ),
    ),
    (
        (
            "What happens when the queue is full?",
            "What happens when Penstock is full?",
            "What happens under high load?",
            "What if there are too many requests?",
        ),
        (
            "Work that can wait overflows to RabbitMQ and runs later. Other requests get a 429 with an honest "
            "time to try again."
        ),
    ),
    (
        ("What is the difference between TTFT and TPOT?", "TTFT or TPOT?", "How do TTFT and TPOT differ?"),
        "TTFT is the wait for the first token. TPOT is the time for each token after that.",
    ),
    (
        (
            "What is the difference between prefill and decode?",
            "Prefill or decode?",
            "How do prefill and decode differ?",
        ),
        "Prefill reads the whole prompt at once. Decode then writes the answer, one token per step.",
    ),
    (
        (
            "Which services does Penstock have?",
            "What are the parts of Penstock?",
            "List the services of Penstock.",
            "Name the parts of the mesh.",
            "What services are there?",
        ),
        (
            "Penstock has six services:\n1. the gateway\n2. the router\n3. the worker\n4. the cache\n"
            "5. the control plane\n6. the edge"
        ),
    ),
    (
        (
            "How does Penstock work?",
            "Explain how a request travels through Penstock.",
            "What is the life of a request?",
            "Walk me through a request.",
            "How does a request flow through the mesh?",
            "Explain the architecture of Penstock.",
        ),
        (
            "A request takes these steps:\n1. Envoy ends TLS and asks the edge service who is calling.\n"
            "2. The gateway checks the request and turns the text into tokens.\n"
            "3. The router waits until there is room, picks the best worker, and grants a lease.\n"
            "4. The gateway sends the tokens to that worker.\n"
            "5. The worker sends back one step frame per step of the engine.\n"
            "6. The gateway turns the new tokens into text and streams them to you.\n"
            "7. At the end the lease is released and the usage is counted."
        ),
    ),
    (
        (
            "Which APIs does Penstock speak?",
            "Is Penstock compatible with OpenAI?",
            "Can I use the OpenAI client?",
            "How do I send a request?",
            "Which API can I use?",
        ),
        "Penstock speaks the OpenAI HTTP API and gRPC. Point your OpenAI client at the gateway and it works.",
    ),
    (
        (
            "Does the router see tokens?",
            "Does the router see my prompt?",
            "Can the router read my text?",
        ),
        "No. The router only sees counts and hashes. Tokens go straight from the worker to the gateway.",
    ),
    (
        (
            "Do I need a GPU?",
            "Can I run Penstock without a GPU?",
            "Does Penstock work on a CPU?",
            "Does it run on a laptop?",
        ),
        "No, you do not need a GPU to try it. I am small enough to run on the CPU of a laptop.",
    ),
    (
        ("Who is Penstock for?", "Who uses Penstock?", "Who should use Penstock?"),
        (
            "Penstock is for teams that serve open models to many tenants on their own GPUs, and for developers "
            "who want the same thing on a laptop."
        ),
    ),
    (
        (
            "Why should I use Penstock?",
            "What is good about Penstock?",
            "What are the benefits of Penstock?",
            "Is Penstock any good?",
        ),
        (
            "Penstock keeps streams alive when servers die, shares GPUs fairly between tenants, and stays cheap "
            "per token when the load grows."
        ),
    ),
)
