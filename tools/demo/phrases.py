"""How people ask: every phrasing, by intent, trained on and held out.

`{w}` is the word asked about and `{aw}` the word behind its article. Held-out phrasings are never
trained on.
"""

from __future__ import annotations

TRAINED: dict[str, tuple[str, ...]] = {
    "definition": (
        "What does {w} mean?",
        "What does {w} mean?",
        "What does the word {w} mean?",
        "What is the meaning of {w}?",
        "What is the meaning of the word {w}?",
        "What is {w}?",
        "What is {aw}?",
        "What's {w}?",
        "Define {w}.",
        "Define the word {w}.",
        "Please define {w}.",
        "Can you define {w}?",
        "Could you explain the word {w}?",
        "Explain {w} to me.",
        "Explain {w}.",
        "Tell me what {w} means.",
        "Tell me the meaning of {w}.",
        "Tell me about {w}.",
        "Give me the definition of {w}.",
        "What is the definition of {w}?",
        "I want to know what {w} means.",
        "Do you know what {w} means?",
        "How would you define {w}?",
        "Please look up {w}.",
        "Meaning of {w}?",
        "Definition of {w}?",
        "What would you say {w} means?",
        "{w}",
        "{w}?",
    ),
    "part_of_speech": (
        "What part of speech is {w}?",
        "Which part of speech is {w}?",
        "Is {w} a noun or a verb?",
        "Is {w} a noun, a verb or an adjective?",
        "Part of speech of {w}?",
        "What is the part of speech of {w}?",
    ),
    "synonyms": (
        "What is a synonym of {w}?",
        "What are synonyms of {w}?",
        "Give me a synonym for {w}.",
        "Synonyms of {w}?",
        "What is another word for {w}?",
        "Which words mean the same as {w}?",
        "Tell me another word for {w}.",
    ),
    "opposite": (
        "What is the opposite of {w}?",
        "What's the opposite of {w}?",
        "Give me the opposite of {w}.",
        "Opposite of {w}?",
        "What is an antonym of {w}?",
        "Which word is the opposite of {w}?",
    ),
    "kind": (
        "What is {w} a kind of?",
        "What kind of thing is {w}?",
        "Which kind of thing is {w}?",
        "Tell me what kind of thing {w} is.",
        "{w} is a kind of what?",
    ),
    "example": (
        "Use {w} in a sentence.",
        "Can you use {w} in a sentence?",
        "Give me an example of {w}.",
        "Give me an example sentence for {w}.",
        "Show me a sentence with {w}.",
        "Example of {w}?",
    ),
}

HELD_OUT: dict[str, tuple[str, ...]] = {
    "definition": (
        "What is meant by {w}?",
        "Could you tell me the meaning of {w}?",
        "Please explain what {w} means.",
        "How do you define the word {w}?",
        "I would like to know the meaning of {w}.",
        "Can you tell me what the word {w} means?",
    ),
    "part_of_speech": ("Tell me which part of speech {w} is.", "Is the word {w} a verb or a noun?"),
    "synonyms": ("Is there another word for {w}?", "Tell me a synonym of {w}."),
    "opposite": ("Tell me the opposite of {w}.", "Can you give me the opposite of {w}?"),
    "kind": ("Can you tell me what kind of thing {w} is?",),
    "example": ("Please use {w} in a sentence.", "Can you give me an example of {w}?"),
}

# Asked after an answer, about the word of the turn before.
FOLLOW_UPS: dict[str, tuple[str, ...]] = {
    "definition": (
        "What does it mean?",
        "And what does it mean?",
        "Define it.",
        "And its meaning?",
    ),
    "part_of_speech": (
        "What part of speech is it?",
        "And what part of speech is it?",
        "Is it a noun or a verb?",
    ),
    "synonyms": (
        "And a synonym?",
        "What is a synonym of it?",
        "And what is another word for it?",
        "Any synonyms?",
    ),
    "opposite": (
        "And what is the opposite?",
        "And the opposite?",
        "What is its opposite?",
        "What is the opposite of it?",
    ),
    "kind": ("What is it a kind of?", "And what kind of thing is it?", "What kind of thing is it?"),
    "example": (
        "And an example?",
        "Can you use it in a sentence?",
        "Give me an example.",
        "Use it in a sentence.",
    ),
}

HELD_OUT_FOLLOW_UPS: dict[str, tuple[str, ...]] = {
    "definition": ("And what is its meaning?",),
    "part_of_speech": ("Which part of speech is it?",),
    "synonyms": ("Give me another word for it.",),
    "opposite": ("Give me its opposite.",),
    "kind": ("And what is it a kind of?",),
    "example": ("Please use it in a sentence.",),
}

# A new word behind the intent of the turn before.
SAME_INTENT = ("And {w}?", "What about {w}?", "And what about {w}?", "How about {w}?")

HELLO = "Hello! Ask me what a word means."
WELCOME = "You're welcome! Ask me about another word."
GOODBYE = "Goodbye! Come back with more words."
WHO = "I am a small dictionary companion. I know about five thousand English words."
CAN_DO = (
    "Ask me what a word means, or for its part of speech, its synonyms, its opposite, "
    "what it is a kind of, or an example."
)
ONLY_WORDS = "I only know about words. Ask me what a word means."

SMALL_TALK: tuple[tuple[str, tuple[str, ...]], ...] = (
    (
        HELLO,
        (
            "Hello",
            "Hello!",
            "Hi",
            "Hi!",
            "Hi there!",
            "Hey",
            "Hello there!",
            "Good morning!",
            "Good evening!",
            "Good afternoon!",
            "Hello, how are you?",
            "How are you?",
            "Greetings!",
        ),
    ),
    (
        WELCOME,
        (
            "Thanks",
            "Thanks!",
            "Thank you!",
            "Thank you very much!",
            "Many thanks!",
            "Great, thanks!",
            "Thanks a lot!",
            "Thank you, that helps!",
            "Very good!",
        ),
    ),
    (GOODBYE, ("Goodbye!", "Bye", "Bye!", "See you!", "Good night!", "See you later!", "Bye bye!")),
    (
        WHO,
        (
            "Who are you?",
            "What are you?",
            "What is your name?",
            "Tell me about yourself.",
            "Are you a robot?",
            "Are you a person?",
            "Who made you?",
            "How many words do you know?",
        ),
    ),
    (
        CAN_DO,
        (
            "What can you do?",
            "Help",
            "Help!",
            "Help me.",
            "How can you help me?",
            "How do you work?",
            "What can I ask you?",
            "What do you know?",
            "What should I ask?",
            "Can you help me?",
        ),
    ),
    (
        ONLY_WORDS,
        (
            "What time is it?",
            "What is the weather like?",
            "Tell me a joke.",
            "Write me a poem.",
            "What is two plus two?",
            "What is the capital of France?",
            "Who is the president?",
            "Sing me a song.",
            "Tell me a story.",
            "How old are you?",
            "Where do you live?",
            "What should I eat today?",
            "Can you write code?",
            "Translate this for me.",
            "What is the news today?",
            "Do you like music?",
            "Who won the game?",
        ),
    ),
)

HELD_OUT_SMALL_TALK: tuple[tuple[str, tuple[str, ...]], ...] = (
    (HELLO, ("Hi, good morning!", "Hello there, how are you?", "Hey there!")),
    (WELCOME, ("Thank you so much!", "Thanks, that helps!")),
    (GOODBYE, ("Goodbye, see you!", "Good bye!")),
    (WHO, ("And who are you?", "Who are you exactly?")),
)

# Bare, these are small talk and not a question about a word.
SMALL_TALK_WORDS = frozenset(
    {"hello", "hi", "hey", "thanks", "bye", "goodbye", "help", "greetings"}
)
