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

A {animal2} sat on the {spot2=spot animal2} and looked [at it|quite content].
The {animal2} sat on the {spot2=spot animal2}, and neither of them moved.
The {animal2} sat on the {spot2=spot animal2}.

<12>
-
After a while the {animal} yawned and lay down on the {spot3=spot animal}.
Then the {animal} jumped down and sat on the {spot3=spot animal}.

<12>
{person} called softly, but the {animal} would not leave the {spot0?spot animal}.
{person2} said, "Shoo." Still the {animal} remained on the {spot0?spot animal}.
When {person} came back an hour later, the {animal} was still on the {spot0?spot animal}.

<12>
-
{person3} stroked the {animal} on the {spot0?spot animal}.
At night the {animal} slept on the {spot0?spot animal}.
""")

PETS = scene("""
{person=owner pet} had a {animal=species pet} called {pet=pet person=named animal}, and
    {person2=owner pet2} had a {animal2=species pet2} called {pet2=pet person2=named animal2}.
{pet=pet person=named animal} was a {animal=species pet} and belonged to {person=owner pet}.
    {pet2=pet person2=named animal2} was a {animal2=species pet2} and belonged to
    {person2=owner pet2}.
{person=owner pet} came with a {animal=species pet} called {pet=pet person=named animal}.
    {person2=owner pet2} brought a {animal2=species pet2} called
    {pet2=pet person2=named animal2}.
Two animals lived in the yard. {person=owner pet} fed the {animal=species pet}, and its name was
    {pet=pet person=named animal}. {person2=owner pet2} fed the {animal2=species pet2}, and its
    name was {pet2=pet person2=named animal2}.
{pet=pet person=named animal} was the {animal=species pet} of {person=owner pet}, and
    {pet2=pet person2=named animal2} was the {animal2=species pet2} of {person2=owner pet2}.
With {person=owner pet} lived a {animal=species pet}, {pet=pet person=named animal}. With
    {person2=owner pet2} lived a {animal2=species pet2}, {pet2=pet person2=named animal2}.
{person=owner pet} was proud of a {animal=species pet} that was called
    {pet=pet person=named animal}. The {animal2=species pet2} of {person2=owner pet2} had the
    name of {pet2=pet person2=named animal2}.
A {animal=species pet} with the name of {pet=pet person=named animal} followed {person=owner pet},
    and {pet2=pet person2=named animal2}, a {animal2=species pet2}, followed {person2=owner pet2}.
A {animal=species pet} called {pet=pet person=named animal} belonged to {person=owner pet}. A
    {animal2=species pet2} called {pet2=pet person2=named animal2} belonged to
    {person2=owner pet2}.
There was a list of pets: {person=owner pet} {pet=pet person=named animal}, {person2=owner pet2}
    {pet2=pet person2=named animal2}. {pet} was a {animal=species pet}, and {pet2} was a
    {animal2=species pet2}.
There was a list of pets: {pet=pet person=named animal} {person=owner pet},
    {pet2=pet person2=named animal2} {person2=owner pet2}. {pet} was a {animal=species pet}, and
    {pet2} was a {animal2=species pet2}.
Along came {person=owner pet} and {pet=pet person=named animal}, then {person2=owner pet2} and
    {pet2=pet person2=named animal2}. {pet} was a {animal=species pet}, and {pet2} was a
    {animal2=species pet2}.
{person=owner pet} and the {animal=species pet} {pet=pet person=named animal} came first. Then came
    {person2=owner pet2} and the {animal2=species pet2} {pet2=pet person2=named animal2}.
The {animal=species pet} {pet=pet person=named animal} ran beside {person=owner pet}. The
    {animal2=species pet2} {pet2=pet person2=named animal2} ran beside {person2=owner pet2}.
First came {person=owner pet} with {pet=pet person=named animal}. Then came
    {person2=owner pet2} with {pet2=pet person2=named animal2}. {pet} was a {animal=species pet},
    and {pet2} was a {animal2=species pet2}.
The animal of {person=owner pet} was {pet=pet person=named animal}, a {animal=species pet}. The
    animal of {person2=owner pet2} was {pet2=pet person2=named animal2}, a {animal2=species pet2}.

-
{person} [looked on|yawned|sighed].
{person2} [looked on|yawned|sighed].
{person3} [looked on|yawned|sighed].

<12> twice
<when>{person}<who> whistled for {pet0?pet person}.
<when>{person}<who> stroked {pet0?pet person}.
<when>{person}<who> [knelt down|came back] and [stroked|brushed|washed] {pet0?pet person}.
<when>{person} said, "Here is something for you." Then {person.they} stroked {pet0?pet person}.
<when>{person} said, "Where have you been all day?" Then {person.they} brushed {pet0?pet person}.
<when>{pet} was a very clever {animal?species pet}.
The {animal} was called {pet0?named animal}.
The {animal} that belonged to {person} was called {pet0?pet person}.
{person}<who> [laughed|smiled|paused] and [stroked|brushed|patted] {pet0?pet person}.
{person3} asked whose animal {pet} was. It belonged to {person0?owner pet}.
Beside {person} sat {pet0?pet person}.
[Behind|Near|In front of|Next to] {person} [sat|stood|lay|ran] {pet0?pet person}.
<when>{person} [called|fed|washed|carried|found] {pet0?pet person}.
[In the evening|At noon|Once more|On the stairs|In the yard] {person} [called|fed|hugged|looked for]
    {pet0?pet person}.
{person} [turned round|sat down|laughed|ran off] and [called|fed|hugged|lifted] {pet0?pet person}.
{person3} asked {person} about {pet0?pet person}.
What did {person} call? {person.they} called {pet0?pet person}.
The one that {person} liked best was {pet0?pet person}.
The one that lived with {person} was {pet0?pet person}.
The list of pets said {person} {pet0?pet person}.
The list of pets said {pet} {person0?owner pet}.
There went {person} and {pet0?pet person}.
There came {person} with {pet0?pet person}.
The animal of {person} was {pet0?pet person}.

<12>
<when>{person}<who> whistled for {pet0?pet person}.
<when>{person} [stroked|brushed|sang to|patted] {pet0?pet person}.
Nobody but {person} was allowed to comb {pet0?pet person}.
By the fire {person}<who> [brushed|washed|combed] {pet0?pet person}.
<when>{person} opened the door and let in {pet0?pet person}.
Who was waiting for {person} at the gate? It was {pet0?pet person}.
<when>{pet} ran up to {person0?owner pet}.
{pet} was a rather lazy {animal?species pet}.
And there sat {person} with {pet0?pet person}.
A new list of pets said {person} {pet0?pet person}.
{person3} liked the {animal} best, and that was {pet0?named animal}.

<12>
-
{pet} swished {pet.their} tail. {person} patted it and fastened {person.their!} coat.
{pet} curled {pet.self} up in the sun, just like a good {animal?species pet}.
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
{person2}<who2> laughed and threw {person2.their!} cap into the air.
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

<when>{person2}<who2> nearly jumped out of {person2.their!} skin.
"Again!" begged {person2}. And again it said, "{line?line parrot}"
Everyone giggled, and {person}<who> bit {person.their!} lip.
""")

WHO_SAID_IT = scene("""
{person} called, "{line=line person}" {person2} called, "{line2=line person2}"
On the stairs {person} had cried, "{line=line person}" By the gate {person2} had cried,
    "{line2=line person2}"
{person} shouted first, "{line=line person}" Then {person2} shouted, "{line2=line person2}"
{person} wrote on the wall, "{line=line person}" {person2} wrote below it, "{line2=line person2}"

<12> twice
The parrot had listened to {person} and repeated, "{line?line person}"
{person3} laughed and said it just like {person}, "{line?line person}"
{person3} tried to speak like {person}, "{line?line person}"
{person3} wrote down the words of {person}, "{line?line person}"
From afar one could still hear {person}, "{line?line person}"
Somebody asked {person} to say it again, "{line?line person}"
Then came the line of {person}, "{line?line person}"
{person} [nodded|laughed|sighed] and said the same as before, "{line?line person}"
The words of {person} came back from the wall, "{line?line person}"
What had {person} said? {adult} remembered it well, "{line?line person}"

<12>
-
And {person} said it once more, "{line?line person}"
At night the parrot spoke like {person}, "{line?line person}"
""")

LINES = scene("""
{person} says, "{line=line person}" {person2} says, "{line2=line person2}"
It was a short play. {person} had to say, "{line=line person}" {person2} had to say,
    "{line2=line person2}"
They wrote two letters. The letter of {person} began, "{line=line person}" The letter of {person2}
    began, "{line2=line person2}"
"{line=line person}" That was what {person} said. "{line2=line person2}" That was what {person2}
    said.
First came {person}, "{line=line person}" Then came {person2}, "{line2=line person2}"

<12>
{person} says, "{line?line person}"
The line of {person} was, "{line?line person}"
So {person} said, "{line?line person}"
First came {person}, "{line?line person}"

<12>
{person} says, "{line?line person}"
The line of {person} was, "{line?line person}"
And now {person}, "{line?line person}"
The letter of {person} began, "{line?line person}"

<12>
-
{person} says, "{line?line person}"
The words of {person} were, "{line?line person}"
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
{person2}<who2> put on {person2.their!} glasses and read the words aloud, "{name?spell first}
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
{person} made up two dragons. The second was called {name2=called second}, and the first was
    called {name=called first}.
Two [ships|stars|islands] could be seen from the window. The second was called
    {name2=called second}, and the first was called {name=called first}.

{person2} asked, "What was the second one called?" {person} said it once more: the second was
    called {name2?called second}.
{person2} asked, "What was the first one called?" {person} said it once more: the first was
    called {name?called first}.
{person2} liked both names. {person2.they} wrote down the first, {name?called first}.
{person2} liked both names. {person2.they} wrote down the second, {name2?called second}.

Later {person2} wrote a long tale about the first, {name?called first}.
Later {person2} wrote a long tale about the second, {name2?called second}.
-
{person} said, "I shall never forget the first, {name?called first}."
{person} said, "I shall never forget the second, {name2?called second}."
""")
