"""Conversations with tools: when to call one, how, and what to say about its answer."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from models.nano.corpus_world import CITIES, SUFFIXES, SYLLABLES

if TYPE_CHECKING:
    from random import Random

Message = dict[str, Any]

WEATHER_ASK = (
    "What is the weather in {}?",
    "What is the weather in {}?",
    "What's the weather in {}?",
    "What is the weather like in {}?",
    "What's the weather like in {} today?",
    "How is the weather in {}?",
    "How is the weather in {} right now?",
    "Weather in {}",
    "Tell me the weather in {}.",
    "Is it raining in {}?",
    "Is it warm in {}?",
    "Do I need an umbrella in {}?",
    "How warm is it in {}?",
    "What is the temperature in {}?",
    "Please check the weather in {}.",
    "Can you tell me the weather in {}?",
    "I am going to {}. How is the weather there?",
    "Give me the weather for {}.",
)
TIME_ASK = ("What time is it in {}?", "Tell me the time in {}.", "What is the local time in {}?")
ADD_ASK = ("Add {} and {}.", "What is {} + {}?", "What is {} plus {}?", "Use the tool to add {} and {}.")

WEATHER_DESCRIPTIONS = (
    "Get the weather in a city.",
    "Get the current weather for a city",
    "The weather of a city",
    "Returns the weather",
    "Get weather",
    "",
)
SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "clear", "snowy", "stormy", "mild")

NO_TOOL = "I can't look up the weather without a tool. Give me a get_weather tool and I will call it."


def place(rng: Random) -> str:
    """A city: usually a real one, sometimes an invented one so that copying is learned and not the list."""
    if rng.random() < 0.6:
        return rng.choice(CITIES)
    stem = "".join(rng.choice(SYLLABLES) for _ in range(rng.randint(1, 2)))
    return (stem + rng.choice(SUFFIXES)).capitalize()


def _function(rng: Random, name: str, description: str, types: dict[str, str]) -> Message:
    properties: dict[str, Any] = {}
    for key, kind in types.items():
        properties[key] = {"type": kind}
        if rng.random() < 0.3:
            properties[key]["description"] = f"The {key}"
    parameters: Message = {"type": "object", "properties": properties}
    if rng.random() < 0.7:
        parameters["required"] = list(types)
    if rng.random() < 0.1:
        parameters["additionalProperties"] = False
    function: Message = {"name": name}
    if description:
        function["description"] = description
    function["parameters"] = parameters
    if rng.random() < 0.15:
        function = dict(sorted(function.items()))
    return {"type": "function", "function": function}


def weather_tool(rng: Random, argument: str) -> Message:
    return _function(rng, "get_weather", rng.choice(WEATHER_DESCRIPTIONS), {argument: "string"})


def add_tool(rng: Random) -> Message:
    kind = rng.choice(("integer", "number"))
    return _function(rng, "add", rng.choice(("Add two numbers.", "Adds a and b", "")), {"a": kind, "b": kind})


def time_tool(rng: Random, argument: str) -> Message:
    return _function(rng, "get_time", rng.choice(("Get the local time.", "")), {argument: "string"})


def call(name: str, arguments: Message) -> Message:
    """An assistant message with one tool call, in the form in which clients send it back."""
    return {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "call_1", "type": "function", "function": {"name": name, "arguments": arguments}}],
    }


def _weather_result(rng: Random, city: str) -> tuple[str, str]:
    """What the tool returns, in one of the shapes that people use, and the sentence about it."""
    degrees, sky = rng.randint(-9, 39), rng.choice(SKIES)
    shape = rng.randrange(5)
    if shape == 0:
        key = rng.choice(("temperature", "temp", "temp_c", "temperature_c"))
        result = {key: degrees, rng.choice(("sky", "condition", "conditions", "weather")): sky}
        if rng.random() < 0.4:
            result = {"city": city, **result}
        return json.dumps(result, ensure_ascii=False), f"It is {sky} in {city}, with {degrees} degrees."
    if shape == 1:
        return f"{sky}, {degrees} degrees", f"It is {sky} in {city}, with {degrees} degrees."
    if shape == 2:
        said = rng.choice(("{0}°C and {1}", "{1}, {0}°C", "{1} and {0}°C", "{0} degrees and {1}"))
        return said.format(
            degrees, sky if rng.random() < 0.7 else sky.capitalize()
        ), f"It is {sky} in {city}, with {degrees} degrees."
    if shape == 3:
        return sky, f"It is {sky} in {city}."
    return json.dumps({"temperature": degrees}), f"It has {degrees} degrees in {city}."


def _tool_choice(rng: Random, argument: str) -> list[Message]:
    tools = [weather_tool(rng, argument)]
    if rng.random() < 0.4:
        tools.append(add_tool(rng))
    if rng.random() < 0.15:
        tools.append(time_tool(rng, argument))
    rng.shuffle(tools)
    return tools


def tool_messages(rng: Random) -> tuple[list[Message], list[Message]]:
    """Messages and the tools that were offered with them."""
    argument = "city" if rng.random() < 0.75 else "location"
    tools, kind, city = _tool_choice(rng, argument), rng.random(), place(rng)
    names = {tool["function"]["name"] for tool in tools}
    if kind < 0.3 and "add" in names:
        a, b = rng.randint(0, 99), rng.randint(0, 99)
        messages = [{"role": "user", "content": rng.choice(ADD_ASK).format(a, b)}]
        messages.append(call("add", {"a": a, "b": b}))
        total = str(a + b)
        result = total if rng.random() < 0.6 else json.dumps({"result": a + b})
        messages.append({"role": "tool", "tool_call_id": "call_1", "content": result})
        messages.append({"role": "assistant", "content": f"{a} + {b} = {total}."})
        return messages, tools
    if kind < 0.45 and "get_time" in names:
        messages = [{"role": "user", "content": rng.choice(TIME_ASK).format(city)}]
        messages.append(call("get_time", {argument: city}))
        clock = f"{rng.randint(0, 23):02}:{rng.randint(0, 59):02}"
        messages.append({"role": "tool", "tool_call_id": "call_1", "content": clock})
        messages.append({"role": "assistant", "content": f"It is {clock} in {city}."})
        return messages, tools
    messages = [{"role": "user", "content": rng.choice(WEATHER_ASK).format(city)}]
    messages.append(call("get_weather", {argument: city}))
    if rng.random() < 0.6:
        result, sentence = _weather_result(rng, city)
        messages.append({"role": "tool", "tool_call_id": "call_1", "content": result})
        messages.append({"role": "assistant", "content": sentence})
    return messages, tools


def no_tool_turn(rng: Random) -> tuple[str, str]:
    """The weather, asked without any tool."""
    return rng.choice(WEATHER_ASK).format(place(rng)), NO_TOOL
