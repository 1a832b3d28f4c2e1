"""The text Nano learns from: conversations that are made here, from our own words, for a seed.

A sample is what the chat template takes (messages and tools), or a plain text without any template.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from random import Random
from typing import Any

from models.nano.corpus_penstock import PART_FORMS, PARTS, TERM_FORMS, TERMS
from models.nano.corpus_questions import QUESTIONS
from models.nano.corpus_stories import story, story_turn
from models.nano.corpus_talk import (
    ACTS,
    EVENTS,
    PEOPLE,
    QUALITIES,
    TALK,
    THINGS,
    UNKNOWN_ANSWERS,
    UNKNOWN_FORMS,
    UNKNOWN_QUESTIONS,
)
from models.nano.corpus_tools import NO_TOOL, no_tool_turn, place, tool_messages
from models.nano.corpus_world import (
    CAPITALS,
    COLOURS,
    LIST_FORMS,
    LISTS,
    NAMES,
    OPPOSITES,
    SUFFIXES,
    SYLLABLES,
    WORDS,
)

Message = dict[str, Any]
Turn = tuple[str, str]

__all__ = ["NO_TOOL", "Sample", "samples"]


@dataclass(frozen=True)
class Sample:
    """One training sample: a conversation, or a plain text when `text` is set."""

    messages: list[Message] = field(default_factory=list)
    tools: list[Message] = field(default_factory=list)
    text: str = ""


SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are a helpful assistant.",
    "You are Nano, a tiny and friendly model.",
    "You are Nano.",
    "Be brief.",
    "Answer in English.",
    "You are a helpful, respectful and honest assistant.",
    "You are a chat bot on a web page. Be polite.",
    "You help developers who use Penstock.",
    "Answer the question of the user.",
    "You are an expert.",
    "Be kind and clear. Do not make things up.",
    "You are an AI assistant. Today is Monday.",
    "Keep your answers short and friendly.",
    "You can use tools. Use them when they help.",
)

PREFIXES = ("Please ", "Hey, ", "Hi, ", "Hello, ", "So, ", "Ok, ", "Nano, ", "And ", "Now, ", "Tell me, ", "Well, ")
SUFFIX_WORDS = (" please", " Please.", " Thanks!", " Thank you.", " 🙂", " Nano")


def _vary(rng: Random, question: str) -> str:
    """The same question, typed by somebody in a hurry or in a good mood."""
    dice = rng.random()
    if dice < 0.55:
        return question
    if dice < 0.67:
        return question.lower()
    if dice < 0.77:
        return question.rstrip(".?!")
    if dice < 0.85:
        return question.lower().rstrip(".?!")
    if dice < 0.94:
        first = question[:1].lower() if question[1:2].islower() else question[:1]
        return rng.choice(PREFIXES) + first + question[1:]
    return question + rng.choice(SUFFIX_WORDS)


QUALIFIERS = (
    " in simple words",
    " in one sentence",
    " in your own words",
    " for a beginner",
    " to me",
    " briefly",
    " in short",
    " in Penstock",
    " in detail",
    " in an LLM server",
)


def _penstock(rng: Random) -> Turn:
    question, answer = _about_penstock(rng)
    if rng.random() < 0.12:
        body = question.rstrip(".?")
        question = body + rng.choice(QUALIFIERS) + question[len(body) :]
    return question, answer


def _about_penstock(rng: Random) -> Turn:
    dice = rng.random()
    if dice < 0.36:
        names, answer = rng.choice(PARTS)
        return rng.choice(TERM_FORMS + PART_FORMS).format(rng.choice(names)), answer
    if dice < 0.66:
        names, answer = rng.choice(TERMS)
        return rng.choice(TERM_FORMS).format(rng.choice(names)), answer
    if dice < 0.72:
        names, answer = TERMS[0]
        return rng.choice(TERM_FORMS + PART_FORMS).format(rng.choice(names)), answer
    questions, answer = rng.choice(QUESTIONS)
    return rng.choice(questions), answer


def _talk(rng: Random) -> Turn:
    questions, answers = rng.choice(TALK[:1] * 3 + TALK)
    return rng.choice(questions), rng.choice(answers)


def _unknown(rng: Random) -> Turn:
    question = rng.choice(UNKNOWN_FORMS).format(
        thing=rng.choice(THINGS) if rng.random() < 0.8 else f"a {_invented(rng)}",
        act=rng.choice(ACTS),
        quality=rng.choice(QUALITIES),
        person=rng.choice(PEOPLE) if rng.random() < 0.7 else f"{rng.choice(NAMES)} {_invented(rng).capitalize()}",
        event=rng.choice(EVENTS),
    )
    dice = rng.random()
    if dice < 0.08:
        question = "".join(rng.choice("abcdefghijklmnopqrstuvwxyz    ") for _ in range(rng.randint(3, 30))).strip()
    elif dice < 0.16:
        question = _salad(rng, rng.randint(2, 40))
    elif dice < 0.3:
        question = rng.choice(UNKNOWN_QUESTIONS)
    return question or "...", rng.choice(UNKNOWN_ANSWERS)


def _salad(rng: Random, count: int) -> str:
    """Words without a meaning: one of them again and again, or many."""
    pool = (*THINGS, *ACTS, *QUALITIES, *NAMES, "word", "token", "x", "lorem", "ipsum", "the", "foo", "and", "7", "42")
    if rng.random() < 0.3:
        return " ".join([rng.choice(pool)] * count)
    return " ".join(rng.choice(pool) if rng.random() < 0.8 else _invented(rng) for _ in range(count))


def _invented(rng: Random) -> str:
    return "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 3))) + rng.choice(SUFFIXES)


SUM_ASK = (
    "What is {}?",
    "What is {}?",
    "{}",
    "{} = ?",
    "{}=",
    "How much is {}?",
    "Calculate {}.",
    "What's {}?",
    "Can you tell me what {} is?",
    "Solve {}",
    "Compute {}",
    "What does {} give?",
)
OPERATORS = {
    "+": ("{} + {}", "{} + {}", "{} + {}", "{}+{}", "{} plus {}", "{} and {}"),
    "-": ("{} - {}", "{} - {}", "{} - {}", "{}-{}", "{} minus {}"),
    "*": ("{} * {}", "{} * {}", "{}*{}", "{} times {}", "{} x {}"),
}


def _arithmetic(rng: Random) -> Turn:
    operator = rng.choice("+++--*")
    top = 10 if operator == "*" or rng.random() < 0.7 else 20
    a, b = rng.randint(0, top), rng.randint(0, top)
    if operator == "-" and b > a:
        a, b = b, a
    result = {"+": a + b, "-": a - b, "*": a * b}[operator]
    question = rng.choice(SUM_ASK).format(rng.choice(OPERATORS[operator]).format(a, b))
    return question, f"{a} {operator} {b} = {result}."


def _lists(rng: Random) -> Turn:
    names, items = rng.choice(LISTS)
    if len(items) > 12:
        answer = " ".join(items)
    else:
        answer = "\n".join(f"{number}. {item}" for number, item in enumerate(items, start=1))
    name = rng.choice(names)
    return rng.choice((*LIST_FORMS, "{}")).format(name), f"Here is the list:\n{answer}"


def _counting(rng: Random) -> Turn:
    top = rng.choice((*range(2, 21), 3, 5, 10, 10, 20, 20, 25, 30, 40, 50, 50, 100))
    question = rng.choice(
        (
            "Count to {}",
            "Count to {}.",
            "Count from 1 to {}",
            "Please count to {}.",
            "Can you count to {}?",
            "Count up to {}",
            "Write the numbers from 1 to {}.",
            "List the numbers from 1 to {}",
        )
    )
    words = {3: "three", 5: "five", 10: "ten", 20: "twenty", 50: "fifty", 100: "a hundred"}
    asked = words.get(top, str(top)) if rng.random() < 0.25 else str(top)
    return question.format(asked), ", ".join(str(number) for number in range(1, top + 1))


def _capital(rng: Random) -> Turn:
    country, city = rng.choice(tuple(CAPITALS.items()))
    if unknown := rng.random() < 0.15:
        country = _invented(rng).capitalize()
    forms = (
        "What is the capital of {}?",
        "What is the capital of {}?",
        "What's the capital of {}?",
        "Which city is the capital of {}?",
        "Name the capital of {}.",
        "The capital of {}?",
        "Capital of {}",
        "Do you know the capital of {}?",
        "Tell me the capital of {}.",
    )
    if unknown:
        return rng.choice(forms).format(country), f"I don't know the capital of {country}."
    if rng.random() < 0.85:
        return rng.choice(forms).format(country), f"The capital of {country} is {city}."
    reverse = ("Where is {}?", "In which country is {}?", "What is {}?", "Tell me about {}.")
    return rng.choice(reverse).format(city), f"{city} is the capital of {country}."


def _words(rng: Random) -> Turn:
    dice = rng.random()
    if dice < 0.35:
        thing, colour = rng.choice(tuple(COLOURS.items()))
        forms = ("What colour is {}?", "What color is {}?", "Which colour is {}?", "What is the colour of {}?")
        return rng.choice(forms).format(thing), f"{thing[0].upper()}{thing[1:]} is {colour}."
    if dice < 0.65:
        one, other = rng.choice(OPPOSITES)
        if rng.random() < 0.5:
            one, other = other, one
        asks = ("What is the opposite of {}?", "Opposite of {}", "Tell me the opposite of {}.")
        return rng.choice(asks).format(one), f"The opposite of {one} is {other}."
    language = rng.choice(tuple(WORDS))
    word, foreign = rng.choice(tuple(WORDS[language].items()))
    ways = ("What is {w} in {l}?", "How do you say {w} in {l}?", "Translate {w} to {l}.", "Say {w} in {l}")
    return rng.choice(ways).format(w=word, l=language), f"In {language}, {word} is {foreign}."


def _echo(rng: Random) -> Turn:
    pool = (*NAMES, "apple", "banana", "water", "turbine", "gate", "river", "penstock", "café", "token")
    words = " ".join(rng.choice(pool) for _ in range(rng.randint(1, 3)))
    if rng.random() < 0.5:
        words = " ".join(_invented(rng) for _ in range(rng.randint(1, 3)))
    elif rng.random() < 0.2:
        words = str(rng.randint(0, 99999))
    form = rng.choice(("Say {}", "Repeat {}", "Repeat after me: {}", "Echo {}", "Say the word {}", "Write {}"))
    return form.format(words), words


def _json(rng: Random) -> Turn:
    ask = rng.choice(("{} as JSON", "{} in JSON", "Give me {} as JSON.", "Answer in JSON: {}", "JSON of {}"))
    kind = rng.randrange(3)
    if kind == 0:
        country, city = rng.choice(tuple(CAPITALS.items()))
        return ask.format(f"the capital of {country}"), json.dumps(
            {"country": country, "capital": city}, ensure_ascii=False
        )
    if kind == 1:
        person = {"name": rng.choice(NAMES), "age": rng.randint(20, 60), "city": rng.choice(tuple(CAPITALS.values()))}
        return ask.format(rng.choice(("a person", "a user", "somebody"))), json.dumps(person, ensure_ascii=False)
    return ask.format(rng.choice(("some colours", "a list of colours", "three colours"))), json.dumps(
        {"colours": ["red", "green", "blue"]}
    )


# (share, maker) of single turns.
TURNS = (
    (30, _penstock),
    (20, _talk),
    (11, _unknown),
    (20, _arithmetic),
    (5, _capital),
    (5, _words),
    (4, _lists),
    (4, _counting),
    (6, _echo),
    (1.5, _json),
    (5, story_turn),
    (1, no_tool_turn),
)
_SHARES, _MAKERS = [share for share, _ in TURNS], [maker for _, maker in TURNS]


def _turn(rng: Random) -> list[Message]:
    question, answer = rng.choices(_MAKERS, _SHARES)[0](rng)
    return _messages(_vary(rng, question), answer)


def _messages(question: str, answer: str) -> list[Message]:
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


def _name_turns(rng: Random) -> list[Message]:
    """Somebody says a name, perhaps talks of something else, and asks for the name."""
    name = rng.choice(NAMES) if rng.random() < 0.6 else _invented(rng).capitalize()
    intro = rng.choice(("My name is {}.", "I am {}.", "I'm {}", "Hello, my name is {}.", "Hi, I am {}!", "Call me {}."))
    messages = _messages(intro.format(name), f"Nice to meet you, {name}!")
    if rng.random() < 0.5:
        messages += _turn(rng)
    ask = rng.choice(("What is my name?", "What's my name?", "Who am I?", "Do you know my name?"))
    return messages + _messages(ask, f"Your name is {name}.")


def _system(rng: Random) -> str:
    """A system prompt: a common one, a few random sentences, or (rarely) a long text to read past."""
    dice = rng.random()
    if dice < 0.55:
        return rng.choice(SYSTEM_PROMPTS)
    if dice < 0.85:
        return " ".join(rng.sample(SYSTEM_PROMPTS, rng.randint(2, 4)))
    if dice < 0.89:
        return _salad(rng, rng.randint(3, 80))
    answers = [answer for _, answer in TERMS + PARTS]
    count = rng.randint(1, 3) if dice < 0.96 else rng.randint(5, 9)
    return " ".join([rng.choice(SYSTEM_PROMPTS), *rng.sample(answers, count)])


def _chat(rng: Random) -> Sample:
    dice, tools, extra = rng.random(), list[Message](), list[Message]()
    if dice < 0.04:
        extra = _name_turns(rng)
    elif dice < 0.18:
        extra, tools = tool_messages(rng)
    elif dice < 0.21:
        _, tools = tool_messages(rng)
    turn = _turn_beside_tools if tools else _turn
    messages: list[Message] = []
    if rng.random() < 0.25:
        messages += turn(rng)
        while rng.random() < 0.4 and len(messages) < 8:
            messages += turn(rng)
    messages += extra
    if not extra or rng.random() < 0.2:
        messages += turn(rng)
    if rng.random() < 0.45:
        messages.insert(0, {"role": "system", "content": _system(rng)})
    return Sample(messages, tools)


def _turn_beside_tools(rng: Random) -> list[Message]:
    """Plain talk although tools are there; no sums, which would be a call of `add`."""
    question, answer = rng.choice((_talk, _penstock, _unknown, _capital, story_turn))(rng)
    return _messages(_vary(rng, question), answer)


def _plain(rng: Random) -> Sample:
    """Text for the completions API, which has no template."""
    if rng.random() < 0.6:
        return Sample(text=story(rng))
    chosen = rng.sample([answer for _, answer in (*TERMS, *PARTS, *QUESTIONS)], rng.randint(1, 3))
    if rng.random() < 0.2:
        chosen = [f"{place(rng)} is a city.", *chosen]
    return Sample(text=" ".join(chosen))


def samples(seed: int, count: int) -> list[Sample]:
    """`count` samples; the same ones for the same seed."""
    rng = Random(seed)
    return [_plain(rng) if rng.random() < 0.05 else _chat(rng) for _ in range(count)]
