"""Stories from templates: many heroes, places and endings, in three lengths."""

from __future__ import annotations

from typing import TYPE_CHECKING

from models.nano.corpus_words import words

if TYPE_CHECKING:
    from random import Random

HEROES = words(
    """
    fox|robot|girl|boy|cat|dog|dragon|sailor|miller|bear|owl|mouse|wizard|baker|whale|knight|turtle|princess|
    penguin|gardener|rabbit|inventor|horse|pirate|star|snail|giant|bee
    """
)
ADJECTIVES = words(
    """
    small|young|brave|curious|quiet|clever|kind|lonely|cheerful|patient
    """
)
NAMES = words(
    """
    Lina|Milo|Nora|Otto|Pia|Rufus|Tilda|Arlo|Bela|Cleo|Finn|Greta|Juno|Kip|Luna|Zoë
    """
)
PLACES = words(
    """
    a village by the river|an old mill|a house on a hill|a forest full of birds|a harbour by the sea|
    a valley between two mountains|a town with a tall clock|a garden behind a wall
    """
)
WISHES = words(
    """
    see the sea|find a friend|learn to sing|cross the mountains|build a boat|fly to the moon|
    hear the oldest song|find the source of the river|bake the perfect bread|read every book
    """
)
TROUBLES: tuple[tuple[str, str], ...] = (
    (
        "One night a great storm came, and the river rose higher and higher.",
        "Together they opened the old gate, and the water flowed calmly down to the wheel.",
    ),
    (
        "One morning all the lamps went dark, and nobody knew why.",
        "Together they found the broken wheel, mended it with a rope, and every lamp was bright again.",
    ),
    (
        "One day the only bridge broke, and nobody could cross the river.",
        "Together they carried one stone after another until there was a new bridge.",
    ),
    (
        "One winter the snow was so deep that nobody could leave the house.",
        "Together they dug a path, step by step, until it reached every door.",
    ),
    (
        "One evening a strange light shone between the trees.",
        "Together they followed it and found a lost star, and they helped it back into the sky.",
    ),
    (
        "One summer it did not rain for many weeks, and the well was empty.",
        "Together they walked up the hill, found a hidden spring, and led the water home.",
    ),
)
HELPERS = words(
    """
    an old turtle|a talking crow|a friendly giant|a shy mouse|a tired traveller|a small blue bird|a grumpy goat|
    the wind|a kind teacher|a silver fish
    """
)
ADVICE = words(
    """
    Take one small step at a time|Never go alone when you can go together|Listen first, and then act|
    What is slow and steady also arrives|A gate is only useful if somebody opens it
    """
)
FEELINGS = words(
    """
    afraid|worried|tired|unsure|sad
    """
)
MIDDLES = words(
    """
    They walked all day and talked about the clouds.|
    On the way they shared a piece of bread and a warm cup of tea.|
    The path was long, but the stars were bright above them.|
    Twice they lost the way, and twice they found it again.|They sang a song so that the road felt shorter.
    """
)
ENDINGS = words(
    """
    And from that day on, nobody in the land was alone any more.|
    That evening there was music, and everybody danced until the moon went down.|
    And if you listen closely at night, you can still hear them laugh.|
    Then they all went home, and they slept very well.|
    And that is how the story ends, and how many others begin.
    """
)

ASK = (
    "Tell me a story",
    "Tell me a story.",
    "Tell me a story please",
    "Can you tell me a story?",
    "Write a story",
    "Write me a short story",
    "I want to hear a story",
    "Do you know a story?",
    "A story please",
    "Another story",
    "Tell me another story",
    "Read me a story",
)
ASK_ABOUT = (
    "Tell me a story about {}.",
    "Write a story about {}",
    "Can you tell me a story about {}?",
    "I want a story about {}.",
    "Tell me about {} in a story",
)
ASK_LONG = (
    "Tell me a long story",
    "Tell me a long story.",
    "Write a long story",
    "Can you tell me a very long story?",
    "Tell me a story with three chapters",
    "Write a long tale",
    "I want a long story",
)
ASK_SHORT = (
    "Tell me a very short story",
    "Tell me a tiny story",
    "Write a story in two sentences",
    "A very short story please",
)


def _article(word: str) -> str:
    return "an" if word[0] in "aeiou" else "a"


def _the(helper: str) -> str:
    return f"the {helper.split(' ', 1)[1]}"


def story(rng: Random, hero: str | None = None) -> str:
    """A story of about 150 to 200 tokens in four paragraphs."""
    hero = hero or rng.choice(HEROES)
    adjective, name, helper = rng.choice(ADJECTIVES), rng.choice(NAMES), rng.choice(HELPERS)
    trouble, rescue = rng.choice(TROUBLES)
    return (
        f"Once upon a time there was {_article(adjective)} {adjective} {hero} called {name}. "
        f"{name} lived in {rng.choice(PLACES)} and wanted to {rng.choice(WISHES)}.\n\n"
        f"{trouble} {name} was {rng.choice(FEELINGS)}, but did not give up.\n\n"
        f'Then {name} met {helper}. "{rng.choice(ADVICE)}," said {_the(helper)}. '
        f"{rng.choice(MIDDLES)} {rescue}\n\n"
        f"{name} smiled. {rng.choice(ENDINGS)}"
    )


def short_story(rng: Random) -> str:
    """A story of two sentences."""
    name, adjective = rng.choice(NAMES), rng.choice(ADJECTIVES)
    return (
        f"{name} was {_article(adjective)} {adjective} {rng.choice(HEROES)} who wanted to "
        f"{rng.choice(WISHES)}. It took a long time, but in the end it worked. 🌟"
    )


def long_story(rng: Random) -> str:
    """Three chapters with one hero: about 400 tokens."""
    hero, name, adjective = rng.choice(HEROES), rng.choice(NAMES), rng.choice(ADJECTIVES)
    wish = rng.choice(WISHES)
    parts = [
        (
            f"Chapter 1\n\nOnce upon a time there was {_article(adjective)} {adjective} {hero} called {name}. "
            f"{name} lived in {rng.choice(PLACES)}. Every evening {name} sat at the window and dreamed. "
            f"More than anything else, {name} wanted to {wish}. So one morning {name} packed a small bag, "
            "closed the door, and went out into the world."
        )
    ]
    troubles, helpers = rng.sample(TROUBLES, 2), rng.sample(HELPERS, 2)
    for number, ((trouble, rescue), helper) in enumerate(zip(troubles, helpers, strict=True), start=2):
        parts.append(
            f"Chapter {number}\n\n{trouble} {name} was {rng.choice(FEELINGS)}, but did not give up. "
            f'Then {name} met {helper}. "{rng.choice(ADVICE)}," said {_the(helper)}. '
            f"{rng.choice(MIDDLES)} {rescue}"
        )
    parts.append(f"In the end {name} came home and was happy. {rng.choice(ENDINGS)}")
    return "\n\n".join(parts)


def story_turn(rng: Random) -> tuple[str, str]:
    """A question for a story, and the story."""
    kind = rng.random()
    if kind < 0.45:
        return rng.choice(ASK), story(rng)
    if kind < 0.75:
        hero = rng.choice(HEROES)
        what = f"{_article(hero)} {hero}"
        if rng.random() < 0.15:
            what = f"the {hero}"
        return rng.choice(ASK_ABOUT).format(what), story(rng, hero)
    if kind < 0.88:
        return rng.choice(ASK_LONG), long_story(rng)
    return rng.choice(ASK_SHORT), short_story(rng)
