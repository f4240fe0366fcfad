"""The tools of the generated dialogues: names, parameters, results, and phrasings of requests."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from numpy.random import Generator

from data.words import pick, words

Values = dict[str, Any]
Pool = Callable[[Generator], Any]


def one_of(*choices: Any) -> Pool:
    """A pool of these values."""
    return lambda random: pick(choices, random)


def whole(low: int, high: int) -> Pool:
    """A pool of integers, both ends included."""
    return lambda random: int(random.integers(low, high + 1))


def amount(low: float, high: float) -> Pool:
    """A pool of numbers with up to two decimals."""
    return lambda random: round(float(random.uniform(low, high)), int(random.integers(0, 3)))


@dataclass(frozen=True, slots=True)
class Slot:
    """A parameter: possible names, its JSON type, its values."""

    names: tuple[str, ...]
    kind: str
    pool: Pool
    choices: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of tool. Texts contain `{0}`, `{1}` for slots, and names for values drawn by `result`."""

    names: tuple[str, ...]
    description: str
    slots: tuple[Slot, ...]
    asks: tuple[str, ...]
    result: dict[str, Pool]
    answers: tuple[str, ...]


CITY = one_of(
    *words(
        """
    Paris; London; Berlin; Madrid; Oslo; Tokyo; Lima; Cairo; New York; Boston; Chicago; Rome; Vienna;
    Lisbon; Dublin; Sydney; Toronto; Mumbai; Seoul; San Francisco; Buenos Aires; Cape Town; Nairobi;
    Zurich; Prague; Warsaw; Athens; Denver
    """,
        ";",
    )
)
PERSON = one_of(
    *words(
        """
    Anna; Ben; Clara; David; Emma; Frank; Grace; Henry; Ida; Jack; Karl; Laura; Maria; Nora; Oscar; Paul;
    Rosa; Sam; Tom; Vera; John Smith; Mary Jones; Peter Brown; Lucy Green; Alan Ford
    """,
        ";",
    )
)
TIME = one_of(*(f"{hour:02}:{minute:02}" for hour in range(6, 23) for minute in (0, 15, 30, 45)))
DAY = one_of(*words("today tomorrow Monday Tuesday Wednesday Thursday Friday Saturday Sunday"))
DATE = one_of(*(f"2026-{month:02}-{day:02}" for month in range(1, 13) for day in range(1, 29)))
LANGUAGE = one_of(*words("French German Spanish Italian Polish Dutch Greek Japanese Swedish Turkish"))
CURRENCY = one_of(*words("USD EUR GBP JPY CHF CAD SEK INR"))
THING = one_of(
    *words(
        """
    buy milk; call the bank; water the plants; pay the rent; feed the cat; send the report; book the
    tickets; wash the car; clean the kitchen; visit grandma; fix the bike; return the books; charge the
    phone
    """,
        ";",
    )
)
PRODUCT = one_of(*words("lamp chair laptop headphones backpack kettle bicycle desk camera tent jacket mug"))
SONG = one_of(
    *words("Yesterday; Imagine; Blue Moon; Summertime; Hallelujah; Moon River; Clair de Lune; Bolero", ";")
)
ROOM = one_of(*words("kitchen; bedroom; living room; bathroom; office; garage; hallway; garden", ";"))
PHRASE = one_of(
    *words(
        """
    good morning; where is the station; thank you very much; I am hungry; how much is it; see you
    tomorrow; the weather is fine; I need a doctor; happy birthday; what time is it
    """,
        ";",
    )
)
TOPIC = one_of(
    *words(
        """
    solar panels; jazz; green tea; chess; marathon training; black holes; sourdough; electric cars;
    gardening; Roman history; volcanoes; knitting; sailing; robots
    """,
        ";",
    )
)
STOCK = one_of(*words("AAPL MSFT TSLA AMZN IBM SAP NVDA INTC"))
SKY = one_of(*words("sunny cloudy rainy windy clear foggy snowy"))

KINDS = (
    Kind(
        ("get_weather", "weather", "current_weather", "weather_lookup"),
        "Get the current weather of a city.",
        (Slot(("city", "location", "place"), "string", CITY),),
        (
            "What is the weather in {0}?",
            "How's the weather in {0}?",
            "weather in {0}",
            "Is it raining in {0}?",
        ),
        {"temperature": whole(-8, 36), "sky": SKY},
        ("It is {sky} in {0}, {temperature} degrees.", "{0}: {sky}, {temperature} degrees."),
    ),
    Kind(
        ("get_forecast", "forecast", "weather_forecast"),
        "Forecast the weather of a city for some days.",
        (
            Slot(("city", "location"), "string", CITY),
            Slot(("days", "day_count"), "integer", whole(2, 10)),
        ),
        (
            "Give me the forecast for {0} for {1} days.",
            "What will the weather be in {0} over the next {1} days?",
        ),
        {"low": whole(-5, 10), "high": whole(11, 34), "sky": SKY},
        ("The next {1} days in {0} will be {sky}, between {low} and {high} degrees.",),
    ),
    Kind(
        ("add", "add_numbers", "sum"),
        "Add two numbers.",
        (
            Slot(("a", "x", "first"), "number", whole(1, 999)),
            Slot(("b", "y", "second"), "number", whole(1, 999)),
        ),
        ("What is {0} plus {1}?", "Add {0} and {1}.", "{0} + {1}", "sum of {0} and {1}"),
        {"result": whole(10, 1998)},
        ("The sum is {result}.", "{0} plus {1} is {result}."),
    ),
    Kind(
        ("multiply", "product", "multiply_numbers"),
        "Multiply two numbers.",
        (Slot(("a", "x"), "number", whole(2, 99)), Slot(("b", "y"), "number", whole(2, 99))),
        ("What is {0} times {1}?", "Multiply {0} by {1}.", "{0} * {1}"),
        {"result": whole(10, 9801)},
        ("{0} times {1} is {result}.", "The product is {result}."),
    ),
    Kind(
        ("convert_currency", "exchange", "currency_converter"),
        "Convert an amount of money to another currency.",
        (
            Slot(("amount", "value"), "number", whole(1, 5000)),
            Slot(("from_currency", "source", "from"), "string", CURRENCY),
            Slot(("to_currency", "target", "to"), "string", CURRENCY),
        ),
        ("Convert {0} {1} to {2}.", "How much is {0} {1} in {2}?", "What are {0} {1} worth in {2}?"),
        {"converted": amount(1, 5000)},
        ("{0} {1} are {converted} {2}.",),
    ),
    Kind(
        ("set_timer", "start_timer", "timer"),
        "Start a timer.",
        (Slot(("minutes", "duration_minutes"), "integer", whole(1, 90)),),
        (
            "Set a timer for {0} minutes.",
            "Wake me in {0} minutes.",
            "timer {0} minutes",
            "Start a {0} minute timer",
        ),
        {"status": one_of("started", "ok", "running")},
        ("The timer runs for {0} minutes.", "Done: a timer of {0} minutes."),
    ),
    Kind(
        ("set_alarm", "create_alarm", "alarm"),
        "Set an alarm at a time of day.",
        (Slot(("time", "at"), "string", TIME),),
        ("Set an alarm for {0}.", "Wake me up at {0}.", "alarm at {0} please"),
        {"status": one_of("set", "ok")},
        ("The alarm is set for {0}.",),
    ),
    Kind(
        ("create_event", "add_event", "schedule_meeting"),
        "Put an event into the calendar.",
        (
            Slot(("person", "with", "attendee"), "string", PERSON),
            Slot(("day", "date"), "string", DAY),
            Slot(("time", "start"), "string", TIME),
        ),
        (
            "Schedule a meeting with {0} on {1} at {2}.",
            "Put lunch with {0} on {1} at {2} into my calendar.",
            "Meet {0} {1} at {2}, please add it.",
        ),
        {"id": whole(100, 999), "status": one_of("created", "ok")},
        ("The event with {0} is in your calendar: {1} at {2}.", "Done: {0}, {1} at {2}."),
    ),
    Kind(
        ("list_events", "get_calendar", "events"),
        "List the events of a day.",
        (Slot(("day", "date"), "string", DAY),),
        ("What do I have on {0}?", "Show my events for {0}.", "What is in my calendar on {0}?"),
        {"count": whole(0, 6), "first": TIME},
        ("You have {count} events on {0}, the first at {first}.",),
    ),
    Kind(
        ("send_message", "send_text", "message"),
        "Send a text message to a person.",
        (
            Slot(("to", "recipient", "person"), "string", PERSON),
            Slot(("text", "message", "body"), "string", PHRASE),
        ),
        ("Tell {0}: {1}", 'Send {0} the message "{1}".', "Text {0} that {1}.", "Message {0} saying {1}"),
        {"status": one_of("sent", "delivered")},
        ("The message to {0} was {status}.",),
    ),
    Kind(
        ("translate", "translate_text", "translation"),
        "Translate a text into another language.",
        (
            Slot(("text", "phrase"), "string", PHRASE),
            Slot(("language", "to", "target_language"), "string", LANGUAGE),
        ),
        ('Translate "{0}" into {1}.', 'How do you say "{0}" in {1}?', 'What is "{0}" in {1}?'),
        {"translation": one_of("bonjour", "danke", "gracias", "buon giorno", "tack", "efharisto")},
        ('In {1} that is "{translation}".',),
    ),
    Kind(
        ("web_search", "search", "search_web"),
        "Search the web.",
        (Slot(("query", "q", "text"), "string", TOPIC),),
        ("Search the web for {0}.", "Find pages about {0}.", "look up {0}", "Google {0}"),
        {
            "hits": whole(1, 90),
            "top": one_of("a guide", "an encyclopedia article", "a news story", "a forum"),
        },
        ("I found {hits} pages about {0}; the first is {top}.",),
    ),
    Kind(
        ("add_task", "create_todo", "add_reminder"),
        "Add an entry to the to-do list.",
        (Slot(("text", "task", "title"), "string", THING),),
        ("Remind me to {0}.", "Add {0} to my to-do list.", "I must not forget to {0}.", "todo: {0}"),
        {"id": whole(1, 99)},
        ('I put "{0}" on your list.', "Noted: {0}."),
    ),
    Kind(
        ("find_product", "search_products", "product_search"),
        "Find a product below a price.",
        (
            Slot(("product", "name", "item"), "string", PRODUCT),
            Slot(("max_price", "price"), "number", whole(10, 900)),
        ),
        ("Find a {0} for at most {1} dollars.", "I want a {0} under {1} dollars.", "cheap {0}, up to {1}"),
        {"found": whole(1, 40), "price": amount(5, 800)},
        ("There are {found} of them, the cheapest for {price} dollars.",),
    ),
    Kind(
        ("get_order", "order_status", "track_order"),
        "Look up the status of an order.",
        (Slot(("order_id", "id", "number"), "integer", whole(1000, 99999)),),
        ("Where is my order {0}?", "What is the status of order {0}?", "track order number {0}"),
        {"status": one_of("shipped", "packed", "delivered", "delayed"), "date": DATE},
        ("Order {0} is {status}, expected on {date}.", "It is {status} ({date})."),
    ),
    Kind(
        ("play_music", "play_song", "play"),
        "Play a song.",
        (Slot(("song", "title", "track"), "string", SONG),),
        ("Play {0}.", "I want to hear {0}.", "put on {0}", "Can you play {0}?"),
        {"status": one_of("playing", "ok")},
        ("Now playing {0}.",),
    ),
    Kind(
        ("set_light", "switch_light", "light"),
        "Switch the light of a room.",
        (
            Slot(("room", "area"), "string", ROOM),
            Slot(("state", "to"), "string", one_of("on", "off"), ("on", "off")),
        ),
        ("Turn the light in the {0} {1}.", "Switch {1} the {0} light.", "{0} light {1}"),
        {"status": one_of("done", "ok")},
        ("The light in the {0} is {1}.",),
    ),
    Kind(
        ("set_temperature", "thermostat", "heat"),
        "Set the temperature of a room in degrees.",
        (Slot(("room", "area"), "string", ROOM), Slot(("degrees", "temperature"), "number", whole(15, 27))),
        ("Heat the {0} to {1} degrees.", "Set the {0} to {1} degrees.", "I want {1} degrees in the {0}."),
        {"status": one_of("set", "ok")},
        ("The {0} will be at {1} degrees.",),
    ),
    Kind(
        ("find_flights", "search_flights", "flights"),
        "Find flights between two cities on a date.",
        (
            Slot(("origin", "from_city", "departure"), "string", CITY),
            Slot(("destination", "to_city", "arrival"), "string", CITY),
            Slot(("date", "day"), "string", DATE),
        ),
        (
            "Find a flight from {0} to {1} on {2}.",
            "I have to fly from {0} to {1} on {2}.",
            "flights {0} to {1}, {2}",
        ),
        {"flights": whole(1, 14), "price": whole(40, 1400)},
        ("There are {flights} flights from {0} to {1}, from {price} dollars.",),
    ),
    Kind(
        ("book_table", "reserve_table", "restaurant_booking"),
        "Book a table at a restaurant.",
        (
            Slot(("city", "place"), "string", CITY),
            Slot(("people", "guests", "party_size"), "integer", whole(1, 12)),
            Slot(("time", "at"), "string", TIME),
        ),
        ("Book a table for {1} in {0} at {2}.", "We are {1} people and want to eat in {0} at {2}."),
        {
            "restaurant": one_of("The Old Mill", "Casa Verde", "Blue Door", "Chez Nous"),
            "status": one_of("booked", "ok"),
        },
        ("Your table for {1} at {restaurant} is booked for {2}.",),
    ),
    Kind(
        ("get_stock_price", "stock_price", "quote"),
        "Get the price of a stock.",
        (Slot(("symbol", "ticker"), "string", STOCK),),
        ("What is the price of {0}?", "How is {0} trading?", "quote for {0}", "{0} stock price"),
        {"price": amount(10, 900)},
        ("{0} stands at {price}.", "The price of {0} is {price}."),
    ),
    Kind(
        ("get_time", "time_in", "world_clock"),
        "Get the local time of a city.",
        (Slot(("city", "location", "zone"), "string", CITY),),
        ("What time is it in {0}?", "local time in {0}", "Tell me the time in {0}."),
        {"time": TIME},
        ("It is {time} in {0}.",),
    ),
    Kind(
        ("get_contact", "find_contact", "lookup_contact"),
        "Look up a person's phone number.",
        (Slot(("name", "person"), "string", PERSON),),
        ("What is the phone number of {0}?", "How can I reach {0}?", "number of {0}"),
        {"phone": one_of("555-0101", "555-0142", "555-0177", "555-0199", "555-0123")},
        ("The number of {0} is {phone}.",),
    ),
    Kind(
        ("read_file", "open_file", "get_file"),
        "Read a file.",
        (
            Slot(
                ("path", "file", "name"),
                "string",
                one_of("notes.txt", "todo.md", "config.json", "log.txt", "a.csv"),
            ),
        ),
        ("What does {0} say?", "Read {0}.", "Show me the file {0}.", "open {0}"),
        {"lines": whole(1, 400)},
        ("The file {0} has {lines} lines.",),
    ),
    Kind(
        ("list_users", "users", "get_users"),
        "List all users.",
        (),
        ("Who are the users?", "List all users.", "How many users are there?"),
        {"count": whole(2, 500)},
        ("There are {count} users.",),
    ),
    Kind(
        ("get_news", "news", "headlines"),
        "Get headlines about a topic.",
        (Slot(("topic", "subject"), "string", TOPIC), Slot(("limit", "count"), "integer", whole(1, 10))),
        ("Give me {1} headlines about {0}.", "Show {1} news items on {0}.", "{1} news about {0}"),
        {"found": whole(1, 10)},
        ("I found {found} headlines about {0}.",),
    ),
)
