"""A little of the world: capitals, colours, lists, opposites, words in other languages, cities, names."""

from __future__ import annotations

from models.nano.corpus_words import words

CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Italy": "Rome",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "Austria": "Vienna",
    "Switzerland": "Bern",
    "Poland": "Warsaw",
    "Norway": "Oslo",
    "Sweden": "Stockholm",
    "Finland": "Helsinki",
    "Denmark": "Copenhagen",
    "Greece": "Athens",
    "Ireland": "Dublin",
    "England": "London",
    "Hungary": "Budapest",
    "Japan": "Tokyo",
    "China": "Beijing",
    "India": "New Delhi",
    "Egypt": "Cairo",
    "Kenya": "Nairobi",
    "Canada": "Ottawa",
    "Brazil": "Brasília",
    "Mexico": "Mexico City",
    "Peru": "Lima",
    "Chile": "Santiago",
    "Colombia": "Bogotá",
    "Cuba": "Havana",
    "Australia": "Canberra",
    "Iceland": "Reykjavík",
}

LISTS: tuple[tuple[tuple[str, ...], tuple[str, ...]], ...] = (
    (
        ("the days of the week", "the seven days of the week", "the days"),
        ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday"),
    ),
    (
        ("the months of the year", "the months", "the twelve months"),
        (
            "January",
            "February",
            "March",
            "April",
            "May",
            "June",
            "July",
            "August",
            "September",
            "October",
            "November",
            "December",
        ),
    ),
    (("the seasons", "the four seasons", "the seasons of the year"), ("spring", "summer", "autumn", "winter")),
    (
        ("some colours", "five colours", "colours", "colors", "some colors", "a few colours"),
        ("red", "green", "blue", "yellow", "orange"),
    ),
    (("three colours", "three colors", "the three basic colours"), ("red", "green", "blue")),
    (
        ("the colours of the rainbow", "the colors of the rainbow", "the rainbow colours"),
        ("red", "orange", "yellow", "green", "blue", "indigo", "violet"),
    ),
    (
        ("the planets", "the planets of the solar system", "all planets"),
        ("Mercury", "Venus", "Earth", "Mars", "Jupiter", "Saturn", "Uranus", "Neptune"),
    ),
    (("some fruits", "fruits", "five fruits", "a few fruits"), ("apple", "pear", "plum", "cherry", "banana")),
    (("some animals", "animals", "five animals", "a few animals"), ("cat", "dog", "horse", "owl", "whale")),
    (
        ("the continents", "all continents"),
        ("Africa", "Antarctica", "Asia", "Australia", "Europe", "North America", "South America"),
    ),
    (("the vowels", "the vowels of the alphabet"), ("a", "e", "i", "o", "u")),
    (("the alphabet", "the letters of the alphabet"), tuple("abcdefghijklmnopqrstuvwxyz")),
)

LIST_FORMS = (
    "List {}.",
    "Name {}.",
    "What are {}?",
    "Tell me {}.",
    "Give me {}.",
    "Can you list {}?",
    "Can you name {}?",
    "Write down {}.",
    "Give me a list of {}.",
)

COLOURS = {
    "the sky": "blue",
    "grass": "green",
    "snow": "white",
    "coal": "black",
    "a banana": "yellow",
    "a tomato": "red",
    "an orange": "orange",
    "the sun": "yellow",
    "blood": "red",
    "milk": "white",
    "a leaf": "green",
    "a lemon": "yellow",
    "the sea": "blue",
    "chocolate": "brown",
    "a flamingo": "pink",
}

OPPOSITES = (
    ("hot", "cold"),
    ("big", "small"),
    ("fast", "slow"),
    ("up", "down"),
    ("day", "night"),
    ("old", "new"),
    ("happy", "sad"),
    ("open", "closed"),
    ("light", "dark"),
    ("left", "right"),
    ("full", "empty"),
    ("early", "late"),
    ("good", "bad"),
    ("wet", "dry"),
    ("loud", "quiet"),
    ("long", "short"),
)

WORDS: dict[str, dict[str, str]] = {
    "French": {
        "hello": "bonjour",
        "thank you": "merci",
        "goodbye": "au revoir",
        "water": "eau",
        "summer": "été",
        "school": "école",
        "coffee": "café",
        "yes": "oui",
    },
    "German": {
        "hello": "hallo",
        "thank you": "danke",
        "goodbye": "auf Wiedersehen",
        "water": "Wasser",
        "street": "Straße",
        "door": "Tür",
        "beautiful": "schön",
        "yes": "ja",
    },
    "Spanish": {
        "hello": "hola",
        "thank you": "gracias",
        "goodbye": "adiós",
        "water": "agua",
        "tomorrow": "mañana",
        "child": "niño",
        "coffee": "café",
        "yes": "sí",
    },
    "Italian": {
        "hello": "ciao",
        "thank you": "grazie",
        "goodbye": "arrivederci",
        "water": "acqua",
        "city": "città",
        "coffee": "caffè",
        "yes": "sì",
    },
    "Japanese": {"hello": "こんにちは", "thank you": "ありがとう", "water": "水", "yes": "はい"},
}

CITIES = words(
    """
    Paris|Paris|London|Berlin|Rome|Madrid|Tokyo|New York|Vienna|Oslo|Lisbon|Warsaw|Stockholm|Helsinki|
    Copenhagen|Athens|Dublin|Budapest|Beijing|New Delhi|Cairo|Nairobi|Ottawa|Lima|Santiago|Havana|Canberra|
    Sydney|Melbourne|Toronto|Montréal|Vancouver|Chicago|Boston|Seattle|San Francisco|Los Angeles|Austin|Denver|
    Miami|Dallas|Houston|Munich|München|Hamburg|Cologne|Frankfurt|Zürich|Geneva|Basel|Graz|Prague|Brussels|
    Amsterdam|Rotterdam|Antwerp|Lyon|Nice|Marseille|Milan|Naples|Venice|Turin|Barcelona|Seville|Porto|Málaga|
    Bilbao|Glasgow|Edinburgh|Manchester|Liverpool|Cork|Bergen|Malmö|Göteborg|Tallinn|Riga|Vilnius|Kraków|Gdańsk|
    Sofia|Bucharest|Belgrade|Zagreb|Ljubljana|Istanbul|Ankara|Dubai|Mumbai|Delhi|Singapore|Bangkok|Hanoi|Manila|
    Jakarta|Seoul|Osaka|Kyoto|Shanghai|Hong Kong|Taipei|São Paulo|Bogotá|Quito|Caracas|Buenos Aires|Montevideo|
    Mexico City|Lagos|Accra|Cape Town|Casablanca|Tunis|Auckland|Wellington|Reykjavík|Honolulu|Kathmandu
    """
)

NAMES = words(
    """
    Anna|Ben|Clara|David|Emma|Felix|Grace|Hugo|Ida|Jonas|Kate|Leo|Mia|Noah|Olga|Paul|Rosa|Sam|Tina|Uma|Victor|
    Wendy|Yuki|Zoë|José|Chloé|Björn|Ana|Omar|Priya|Chen|Fatima|Ivan|Lucy|Max|Nina|Tom|Alice|Bob|Carol|Peter|
    Maria|John|Sarah|Michael
    """
)

SYLLABLES = words(
    """
    ba|be|bel|bo|bra|cal|da|den|dor|el|fa|fen|ga|gor|hal|il|ka|kel|la|lin|lo|ma|mar|mi|na|nor|ol|pa|per|qui|ra|
    ri|ros|sa|sel|ta|ter|tol|ul|va|vel|vi|wen|ya|zan|zor
    """
)
SUFFIXES = words(
    """
    ton|ville|burg|ford|ia|stad|port|dale|mouth|a|o|en|field|ham|ski|ö|é
    """
)
