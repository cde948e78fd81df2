"""Scenes with animals."""

from regard.gpt.stories.scenes._format import scene

CAT_ON_MAT = scene("""
The {animal=sitting one} sat on the {spot=spot animal} and [purred|slept|dreamed|blinked].
In the kitchen the {animal=sitting one} sat on the {spot=spot animal}.
{person} [opened the door|came in|turned round]. The {animal=sitting one} sat on the
    {spot=spot animal}.
The {animal=sitting one} sat on the {spot=spot animal}.
The {animal=sitting one} sat on the {spot=spot animal}. The {animal} sat on it
    [like a king|and thought].

Then it jumped down and sat on the {spot2=spot animal}.
After a while it got up, yawned and lay down on the {spot2=spot animal}.
A {animal2} sat on the {spot3=spot animal2} and looked [at it|quite content].
The {animal2} sat on the {spot3=spot animal2}, and neither of them moved.

{person} called softly, but the {animal} would not leave the {spot0?spot animal}.
{person2} said, "Shoo." Still the {animal} remained on the {spot0?spot animal}.
When {person} came back an hour later, the {animal} was still on the {spot0?spot animal}.
""")

PETS = scene("""
{person} had a {animal=species pet} called {pet=pet person}, and {person2} had a
    {animal2=species pet2} called {pet2=pet person2}.
{pet=pet person} was a {animal=species pet} and belonged to {person}. {pet2=pet person2} was a
    {animal2=species pet2} and belonged to {person2}.

{person2} whistled for {pet0?pet person2}. {person} whistled for {pet0?pet person}. Both came at
    once!
{person2} said, "Here is something for you." Then {person2.they} stroked {pet0?pet person2}.
    Then {person} stroked {pet0?pet person}.
{pet2} was a very clever {animal2?species pet2}. {pet} was a rather lazy {animal?species pet}.

{pet} swished {pet.their!} tail. {person} patted it and fastened {person.their!} coat.
{pet2} curled {pet2.self!} up in the sun, just like a good {animal2?species pet2}.
Together they [chased|caught|counted] butterflies until {person} grew tired.
""")

CHASE = scene("""
They came to a little zoo. The {animal} that had been following the {animals} {animal.was!} out
    of breath.
They came to a little zoo. The {animals} that had been following the {animal} {animals.was!} out
    of breath.
In the meadow the {animals} that lived with the {animal} {animals.was!} making a great noise.
In the meadow the {animal} that lived with the {animals} {animal.was!} making a great noise.
At the zoo the {animals} next to the {animal} {animals.was!} half asleep.
At the zoo the {animal} next to the {animals} {animal.was!} half asleep.

{person} said, "The {animals2} behind the {animal2} {animals2.is!} much louder."
{person} said, "The {animal2} behind the {animals2} {animal2.is!} much louder."
On a bench the {items} beside the {thing} {items.was!} forgotten by someone in a hurry.
On a bench the {thing} beside the {items} {thing.was!} forgotten by someone in a hurry.
{person2} said, "Look, the {animals2} beside the {animal2} {animals2.has!} a funny way of
    walking."
{person2} said, "Look, the {animal2} beside the {animals2} {animal2.has!} a funny way of
    walking."

Then a gate slammed, and all of them ran away.
{person2} laughed and threw {person2.their!} cap into the air.
Nobody had ever seen such a thing before.
""")

PARROT = scene("""
{adult} had a parrot that repeated everything. {person} cried, "{line=line parrot}"
{person2} shouted into the empty well, "{line2=line other}" Then {person} shouted,
    "{line=line parrot}"
{person} leaned over the wall by the mountain. {person.they} shouted, "{line=line parrot}"
A green parrot lived in the {place}. {person} said to it, "{line=line parrot}"

At once a voice repeated, "{line?line parrot}"
They listened. Back came the same words, "{line?line parrot}"
For a moment it was quiet. Then the same words were heard again, "{line?line parrot}"

{person2} nearly jumped out of {person2.their!} skin.
"Again!" begged {person2}. And again it said, "{line?line parrot}"
Everyone giggled, and {person} bit {person.their!} lip.
""")

SPELL = scene("""
In an old book {person} had found a spell: "{name=spell first} {name2=spell second}
    {name3=spell third}."
{person} explained, "Whoever wants to fly must say these words." Then came the words,
    "{name=spell first} {name2=spell second} {name3=spell third}."
On the door of the {place} three strange words were written: "{name=spell first}
    {name2=spell second} {name3=spell third}."

{person2} took a deep breath and repeated, "{name?spell first} {name2?spell second}
    {name3?spell third}."
{person2} put on {person2.their!} glasses and read the words aloud, "{name?spell first}
    {name2?spell second} {name3?spell third}."

Nothing happened, except that a {animal} [sneezed|hiccuped|blinked].
There was a flash, and a {animal} sat on the {spot}!
{person} said, "Maybe it works only at midnight." So at midnight they all repeated,
    "{name?spell first} {name2?spell second} {name3?spell third}."
""")

CREATURE = scene("""
Under the [bridge|roots|floor] lived two [goblins|dwarfs|trolls]. The first was called
    {name=called first}, and the second was called {name2=called second}.
{person} made up two dragons. The first was called {name=called first}, and the second was
    called {name2=called second}.
Two [ships|stars|islands] could be seen from the window. The first was called
    {name=called first}, and the second was called {name2=called second}.

{person2} asked, "What was the second one called?" {person} said it once more: the second was
    called {name2?called second}.
{person2} liked both names. {person2.they} wrote down the first, {name?called first}, and then
    the second, {name2?called second}.

Later {person2} wrote a long tale about the first, {name?called first}.
-
{person} said, "I shall never forget the first, {name?called first}."
""")
