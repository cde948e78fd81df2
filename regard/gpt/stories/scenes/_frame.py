"""How a story begins, goes on, ends and asks. A passage of an opening names the three children."""

from regard.gpt.stories.scenes._format import passages

OPENINGS = passages("""
It was a {weather} [morning|afternoon], and {person} and {person2} had nothing to do. Their
    friend {person3} said, "Let us go out and see what happens."
{person}, {person2} and {person3} lived in three [little|crooked|whitewashed] houses at the end
    of the village. They spent every {season} day together.
Three friends ({person}, {person2} and {person3}) were on their way home from school. It was a
    {weather} day, and nobody was in a hurry.
Once upon a time there were three children, and their names were {person}, {person2} and
    {person3}. They had [promised|agreed] to meet every {day} after breakfast.
The school was closed that day. {person} was glad, {person2} was even gladder, and {person3}
    sang all the way down the [stairs|street|hill].
{person} called, "Wake up, the sun is shining." {person2} yawned and looked out of the window.
    Down in the street stood {person3} with a bag full of [cherries|apples|bread rolls].
{person} and {person2} were neighbours, and only a hedge stood between their gardens. Their
    cousin {person3} had come to stay for the whole of {month}.
The first day of the holidays had come at last. {person} packed a [bag|lunch], {person2} found
    the old [map|tent], and {person3} was already waiting at the bus stop.
This is the story of a {weather} day. {person}, {person2} and {person3} never forgot it.
Not far from the [mill|sea|railway] there was a narrow street where {person} lived. {person2}
    lived next door, and {person3} lived across the road.
{adult} looked after three children that {season}: {person}, {person2} and {person3}. It was
    never quiet in the house.
What can you do on a {weather} day? {person} wanted to read, {person2} wanted to climb trees,
    and {person3} wanted to do both.
The wind had blown all night. When {person} came out in the morning, {person2} and {person3}
    were already gathering fallen [branches|leaves|apples].
Every {season}, {adult} invited {person}, {person2} and {person3} to stay. The children loved
    the old house with its [creaking|winding] stairs.
""")

TRANSITIONS = passages("""
A little later something else happened.
Then it was time for lunch, and after that the children went out again.
The clock struck [three|four|five].
In the afternoon the sky grew [brighter|darker].
Nobody felt like going home yet.
That was not all.
Soon there was more to see.
What a day it was!
But the day was far from over.
After that they rested for a while.
""")

ENDINGS = passages("""
When the lamps were lit, everyone went home. It had been a good day.
That night {person} lay in bed and thought of it all. Soon {person.they} was fast asleep.
"Shall we meet again tomorrow?" asked {person}. Of course they would!
And if they have not grown up, they are still playing there.
At supper there was so much to tell that the soup grew cold.
{adult} tucked the children in and turned out the light. {person} whispered, "Good night."
Then the moon came out, and the story was over.
So the day came to an end, and all were happy.
The three friends walked home side by side, singing at the tops of their voices.
"What a day!" said {person2}, and nobody could have put it better.
By the time the stars came out, even {person3} had to yawn.
{person2} wrote all of it down that evening, and that is how we know.
""")

INTRODUCTIONS = passages("""
Have you listened well?
Now close your eyes and answer.
And now it is your turn!
How much do you remember?
"Did you listen?" asked {adult}.
Before you go to sleep, think back.
""")

# relation → the class of what its facts are about, and ways to ask for one
QUESTIONS = {
    "holder": (
        "thing",
        passages("""
Who had the {thing} in the end? {person0??holder thing}.
Do you remember who had the {thing} last? It was {person0??holder thing}.
"""),
    ),
    "place": (
        "thing",
        passages("""
Where was the {thing} at the end of the story? It was in the {place0??place thing}.
And where was the {thing} now? In the {place0??place thing}.
"""),
    ),
    "colour": (
        "thing",
        passages("""
What colour was the {thing}? It was {colour0??colour thing}.
Do you remember the colour of the {thing}? Of course, it was {colour0??colour thing}.
"""),
    ),
    "coloured": (
        "colour",
        passages("""
What was {colour}? The {thing0??coloured colour}.
"""),
    ),
    "condition": (
        "person",
        passages("""
How had {person} felt? {person.they} had felt {condition0??condition person}.
"""),
    ),
    "rank": (
        "first",
        passages("""
Who won the race? {person0??rank first}.
Who came first? {person0??rank first}.
"""),
    ),
    "species": (
        "pet",
        passages("""
What kind of animal was {pet}? A {animal0??species pet}.
And {pet}, what was {pet} again? A {animal0??species pet}.
"""),
    ),
    "pet": (
        "person",
        passages("""
What was the name of the animal that belonged to {person}? {pet0??pet person}.
"""),
    ),
    "spot": (
        "animal",
        passages("""
Where did the {animal} sit? On the {spot0??spot animal}.
"""),
    ),
    "material": (
        "thing",
        passages("""
Was the {thing} made of gold? No, it was a {material0??material thing} {thing}.
"""),
    ),
}
