"""Scenes about things: who has them, where they are, what they look like.

Each states the same about two things and asks for either, so that only the words that name the
thing, the person or the colour decide, and neither the order nor the wording of a passage does.
"""

from regard.gpt.stories.scenes._format import scene

PRESENTS = scene("""
{person=holder thing} had a {quality} {thing}, and {person2=holder thing2} had a {quality2}
    {thing2}.
{person=holder thing} was carrying a {quality} {thing}. {person2=holder thing2} was carrying a
    {quality2} {thing2}.
{adult} had [bought|made|mended] a {quality} {thing} for {person=holder thing} and a {quality2}
    {thing2} for {person2=holder thing2}.
There were two parcels on the kitchen table. The {quality} {thing} was for
    {person=holder thing}, and the {quality2} {thing2} was for {person2=holder thing2}.
Over the shoulder of {person=holder thing} hung a {quality} {thing}. {person2=holder thing2} had
    brought a {quality2} {thing2}.
There was a list of presents: {thing} {person=holder thing}, {thing2} {person2=holder thing2}.
There was a list of presents: {thing} {person=holder thing}, {thing2} {person2=holder thing2}.
There was a list of gifts: {thing} for {person=holder thing}, {thing2} for {person2=holder thing2}.
{person=holder thing} had the {thing}. {person2=holder thing2} had the {thing2}.
{person=holder thing} [came with|found|brought|held|wore] a {quality} {thing}, and
    {person2=holder thing2} [came with|found|brought|held|wore] a {quality2} {thing2}.
{person=holder thing} was [playing with|holding|hiding] a {quality} {thing}, while
    {person2=holder thing2} was [playing with|holding|hiding] a {quality2} {thing2}.
A {quality} {thing} was in the hands of {person=holder thing}. A {quality2} {thing2} was in the
    hands of {person2=holder thing2}.
[A|One] {quality} {thing} [was given|was sent|came] to {person=holder thing}, and a {quality2}
    {thing2} [was given|was sent|came] to {person2=holder thing2}.
For {person=holder thing} there was a {quality} {thing}, and for {person2=holder thing2} there was a
    {quality2} {thing2}.
The {thing} was with {person=holder thing}. The {thing2} was with {person2=holder thing2}.
First came the {thing} of {person=holder thing}. Then came the {thing2} of
    {person2=holder thing2}.
The {thing} belonged to {person=holder thing}. The {thing2} belonged to {person2=holder thing2}.
Two children had found something. A {quality} {thing} belonged to {person=holder thing}, and a
    {quality2} {thing2} belonged to {person2=holder thing2}.

-
{person3} [looked on|yawned|sighed].
"May I hold it?" asked {person3}.

<12>
-
-
-
-
-
-
<when>{person~holder thing} gave the {thing} to {person3=holder thing}.
By [noon|midday] {person~holder thing} was tired of the {thing} and handed it to
    {person3=holder thing}.
"You may borrow it," {person~holder thing} said kindly, and so the {thing} went to
    {person3=holder thing}.
{person~holder thing} lent the {thing} to {person2=holder thing} for a while.
After an hour the {thing} went to {person2=holder thing}.
After an hour the {thing} went to {person3=holder thing}.
[Later|In the evening|Before supper] the {thing} [came|was given|passed|was handed] to
    {person3=holder thing}.
[Later|In the evening|Before supper] the {thing2} [came|was given|passed|was handed] to
    {person3=holder thing2}.
{person~holder thing} nodded {person.their!} head, and the {thing} went to
    {person3=holder thing}.
Soon they swapped. The {thing} went to {person2=holder thing}, and the {thing2} went to
    {person=holder thing2}.
First the {thing} went to {person3=holder thing}. A moment later the {thing2} went to
    {person=holder thing2}.
First the {thing} went to {person2=holder thing}. A moment later it was returned to
    {person=holder thing}.
First the {thing} went to {person3=holder thing}. A moment later it was returned to
    {person=holder thing}.
{person3=holder thing} was allowed to have the {thing}.

-
{person} [looked on|yawned|sighed].
{person2} [looked on|yawned|sighed].
{person3} [looked on|yawned|sighed].

<12> twice
Now, who was holding the {thing}? Why, {person0?holder thing}, of course!
[On the way home|After lunch|At last] the {thing} was carried by {person0?holder thing}.
If you had wanted the {thing} that evening, you would have had to ask {person0?holder thing}.
And so the proud owner of the {thing} was {person0?holder thing}.
[For the rest of the day|Until bedtime|Later|That night] the {thing} was
    [carried around|kept|guarded] by {person0?holder thing}.
[For the rest of the day|Until bedtime|Later|That night] the {thing} was left in
    the [hands|bag|care] of {person0?holder thing}.
[For the rest of the day|Until bedtime|Later|That night] the {thing} [remained|stayed|was left] with
    {person0?holder thing}.
Whoever wanted the {thing} had to [ask|find|wait for] {person0?holder thing}.
{adult} wanted the {thing}, and so they called {person0?holder thing}.
{adult} thought that the {thing} was [with|carried by|lent to] {person0?holder thing}.
The {thing}, as {adult} knew, was still with {person0?holder thing}.
The one who [kept|carried|had|held] the {thing} was {person0?holder thing}.
Later {adult2} wondered where the {thing} was. It was with {person0?holder thing}.
[From then on|At noon|In the evening] the {thing} was in the hands of {person0?holder thing}.
[At noon|After lunch|In the evening|At bedtime] the {thing} was still with {person0?holder thing}.
Who had the {thing}? {person0?holder thing} had it.
The new list of presents said {thing} {person0?holder thing}.
The new list of presents said {thing} {person0?holder thing}.
The new list of gifts said {thing} for {person0?holder thing}.
At last came the {thing} of {person0?holder thing}.
No doubt, the {thing} was with {person0?holder thing}.
{adult2} asked about the {thing}. It was {person0?holder thing} who had it.

<12>
A new list of presents said {thing} {person0?holder thing}.
The one who took the {thing} home was {person0?holder thing}.
And the {thing}? Still in the hands of {person0?holder thing}, of course.
At supper the {thing} lay beside {person0?holder thing}.
Then {adult} said, "Take good care of the {thing}." That was meant for {person0?holder thing}.
""")

COLOURS = scene("""
On the table lay two presents: a {colour=colour thing} {thing=coloured colour} and a
    {colour2=colour thing2} {thing2=coloured colour2}.
In the shop window there were a {colour=colour thing} {thing=coloured colour} and a
    {colour2=colour thing2} {thing2=coloured colour2}.
{adult} opened the cupboard. There they were, a {colour=colour thing} {thing=coloured colour}
    and, right behind it, a {colour2=colour thing2} {thing2=coloured colour2}.
In the morning {person} found a {colour=colour thing} {thing=coloured colour} and a
    {colour2=colour thing2} {thing2=coloured colour2}.
{person} had a {colour=colour thing} {thing=coloured colour}, and {person2} had a
    {colour2=colour thing2} {thing2=coloured colour2}.
On [the shelf|the chair|the floor] [stood|lay] a {colour=colour thing} {thing=coloured colour}, and
    beside it a {colour2=colour thing2} {thing2=coloured colour2}.
The {thing=coloured colour} of {person} was {colour=colour thing}, and the
    {thing2=coloured colour2} of {person2} was {colour2=colour thing2}.
{adult} [brought|found|made] a {colour=colour thing} {thing=coloured colour} for {person}. For
    {person2} there was a {colour2=colour thing2} {thing2=coloured colour2}.
{person} [drew|owned|carried] a {colour=colour thing} {thing=coloured colour}. {person2}
    [drew|owned|carried] a {colour2=colour thing2} {thing2=coloured colour2}.
{adult} had painted the {thing=coloured colour} {colour=colour thing} and the
    {thing2=coloured colour2} {colour2=colour thing2}.
There was a list of colours: {thing=coloured colour} {colour=colour thing},
    {thing2=coloured colour2} {colour2=colour thing2}.
Something lay in the grass. The {thing=coloured colour} was {colour=colour thing}. The
    {thing2=coloured colour2} was {colour2=colour thing2}.

-
"How beautiful!" said {person3}.
{person} [looked on|yawned|sighed].
{person2} [looked on|yawned|sighed].

<12>
<when>{person}<who> wanted the {colour} {thing?coloured colour}.
{person}<who> [touched|picked up|chose] the {colour} {thing?coloured colour} first.
<when>{person} [reached for|asked for|took] the {colour} {thing?coloured colour}.
{person} said, "I like the {thing} best." The {thing} was {colour?colour thing}.
[At night|At home|Later|In the evening] {person3} [thought|spoke|sang|wrote] of the {colour}
    {thing?coloured colour}.
[At night|At home|Later|In the evening] {person3} [carried|sold|hid|lifted|forgot] the {colour}
    {thing?coloured colour}.
What had {person} [lost|bought|found]? The {thing} was {colour?colour thing}.
{adult} knew that the {thing} was {colour?colour thing}.
{person3} [touched|picked up|chose] the {colour} {thing?coloured colour} first.
{person3} sighed, "How I would love to have the {colour} {thing?coloured colour}."
In the dark it was hard to see, but the {thing} was certainly {colour?colour thing}.
The list of colours said {thing} {colour?colour thing}.
The {thing} was {colour?colour thing}.
{person2} liked the {colour} {thing?coloured colour} [better|best].
And so {person3} [wished for|looked for|asked about] the {colour} {thing?coloured colour}.
{person}<who> closed {person.their!} eyes and tried to remember. The {thing} was
    {colour?colour thing}. Correct!

<12>
<when>{person2}<who2> pointed to the {colour} {thing?coloured colour}.
{person3} wanted the {colour} {thing?coloured colour}.
{person} painted a picture of the {colour} {thing?coloured colour}.
And the {thing}? It was {colour?colour thing}, of course.
{adult2} asked about the {thing}. "It is {colour?colour thing}," said {person3}.
In the evening {person} could not find the {colour} {thing?coloured colour}.
Nobody but {person2} was allowed to hold the {colour} {thing?coloured colour}.
Later {adult2} remembered only the {colour} {thing?coloured colour}.
What had been {colour}? The {thing?coloured colour}, and nothing else.
{person3} [laughed|smiled|paused] and [reached for|asked for|took] the {colour}
    {thing?coloured colour}.
""")

PLACES = scene("""
{person} carried {person.their!} {thing} into the {place=place thing} and left it there.
    {person2} left {person2.their!} {thing2} in the {place2=place thing2}.
There was a list of places: {thing} {place=place thing}, {thing2} {place2=place thing2}.
There was a list of things: {thing} in the {place=place thing}, {thing2} in the
    {place2=place thing2}.
In the morning the {thing} was in the {place=place thing}, and the {thing2} was in the
    {place2=place thing2}.
{person} [forgot|hid|put|kept] a {quality} {thing} in the {place=place thing}. A {quality2} {thing2}
    was in the {place2=place thing2}.
{adult} [had hidden|had taken|had carried] the {thing} into the {place=place thing} and the {thing2}
    into the {place2=place thing2}.
{adult} kept a {quality} {thing} in the {place=place thing} and a {quality2} {thing2} in the
    {place2=place thing2}.
{person} had a {quality} {thing} in the {place=place thing}. {person2} had a {quality2} {thing2}
    in the {place2=place thing2}.
There was a {quality} {thing} in the {place=place thing}. There was a {quality2} {thing2} in the
    {place2=place thing2}.

-
{person3} went to the {place4=place person3}.
{person3} was busy in the {place4=place person3}.

<12>
-
-
-
-
After breakfast {person2} needed the {thing} and carried it to the {place3=place thing}.
But the {thing} was in the way, and so {person2} moved it to the {place3=place thing}.
Then {person} dragged the {thing} all the way to the {place3=place thing}, for no reason at all.
An hour later {adult2} tidied up and put the {thing} in the {place3=place thing}.
When it began to rain, {person2} brought the {thing} into the {place2=place thing}.
First {person} carried the {thing} to the {place3=place thing}. Then {person2} carried the
    {thing2} to the {place=place thing2}.
Then {adult2} tidied up. The {thing} came into the {place2=place thing}, and the {thing2} came
    into the {place=place thing2}.

-
{person3} was singing in the {place5=place person3}.
{person} [looked on|yawned|sighed].
{person2} [looked on|yawned|sighed].

<12>
<when>{person} wanted the {thing}. Where was it? It was in the {place0?place thing}!
[Later|At night|In the evening] {person3} [saw|got|picked up|took] the {thing} in the
    {place0?place thing}.
{person2} thought that the {thing} was in the {place0?place thing}.
Nobody touched it any more. The {thing} was safe in the {place0?place thing}.
The new list of places said {thing} {place0?place thing}.
The new list of things said {thing} in the {place0?place thing}.
{person} asked, "Where is the {thing}?" {person3} answered, "Go and look in the
    {place0?place thing}."
<when>{person}<who> scratched {person.their!} head. In the end {person.they!} found the {thing} in
    the {place0?place thing}.
<when>{person2}<who2> scratched {person2.their!} head. In the end {person2.they!} found the {thing}
    in the {place0?place thing}.

<12>
<when>{adult} found the {thing} in the {place0?place thing}.
And the {thing}? It lay in the {place0?place thing}.
{person3} said, "The {thing} must be in the {place0?place thing} by now."
[Before supper|At night|In the evening] {person2} fetched the {thing} from the
    {place0?place thing}.
<when>{person}<who> looked for the {thing} and found it in the {place0?place thing}.
{adult} asked about the {thing}. "In the {place0?place thing}," said {person3}.
Who wanted the {thing} had to go to the {place0?place thing}.
""")

LOST_AND_FOUND = scene("""
{person} had lost {person.their!} {colour=colour thing} {thing=coloured colour}. {person2} had
    lost {person2.their!} {colour2=colour thing2} {thing2=coloured colour2}.
"Oh dear!" cried {person}. {person.their} {colour=colour thing} {thing=coloured colour} was
    gone, and so was the {colour2=colour thing2} {thing2=coloured colour2} of {person2}.

They searched the {place} and the {place2}, but all they found was [dust|a cobweb|an old shoe].
Was it in the {place}? No, it was not. Was it in the {place2}? There was nothing but a sleepy
    {animal}.
-

<12>
{person3} opened the door of the {place3=place thing}. There lay the {thing}! The {thing2} lay in
    the {place4=place thing2}.
The {thing} lay in the {place3=place thing}. The {thing2} lay in the {place4=place thing2}.
Then {person3} came running from the {place3=place thing}. The {thing} had been there. The
    {thing2} had been in the {place4=place thing2}.

-
{person3} went to the {place5=place person3}.

<12>
{person} said, "I must have left the {thing} behind in the {place0?place thing}." Then {person.they}
    laughed at {person.self!}.
{person}<who> clapped {person.their!} hands. Never again would {person.they!} leave the {thing} in
    the {place0?place thing}.
How the {thing} had got into the {place0?place thing}, nobody could say. {person} wiped
    {person.their!} eyes and smiled.
{person2} said, "I must have left the {thing} behind in the {place0?place thing}." Then
    {person2.they} laughed at {person2.self!}.
""")

MATERIALS = scene("""
{adult} kept two treasures: a {material=material thing} {thing=made material} and a
    {material2=material thing2} {thing2=made material2}.
At the market {person} bought a {material=material thing} {thing=made material}, and {person2}
    bought a {material2=material thing2} {thing2=made material2}.
There was a list of materials: {thing=made material} {material=material thing},
    {thing2=made material2} {material2=material thing2}.
{person} had carried the {thing=made material} and the {thing2=made material2} home. The first
    was {material=material thing}, and the other was {material2=material thing2}.

<12>
One day {person3} asked about the {thing}. "Is it really {material?material thing}?"
    {person3} asked. It was!
The list of materials said {thing} {material?material thing}.
It was less precious than it looked. The {thing} was only {material?material thing}.
{person3} tapped against the {thing}. No doubt, it was {material?material thing}.
{person3} liked the {material} {thing?made material} best.

<12>
-
{person2} dusted the {material} {thing?made material} every day.
And the {thing}? Everybody could see that it was {material?material thing}.
""")

WALKING_WITH = scene("""
{person} went to the {place=place person}, carrying a {quality} {thing@place person}. {person2}
    went to the {place2=place person2}, carrying a {quality2} {thing2@place person2}.
{person} walked to the {place=place person} and took a {quality} {thing@place person} along.
    {person2} was in the {place2=place person2} with a {quality2} {thing2@place person2}.

There both put down what they had and forgot it.
-

<12>
Then {person} ran off to the {place3=place person} [to see the sunset|to eat a plum]. The {thing}
    did not come along.
Soon afterwards {person} was in the {place3=place person}, without the {thing}.

<12>
-
{person} ran off as well, to the {place4=place person}, without the {thing}.

<12>
Nobody had touched the {thing} in the {place0?place thing}.
The {thing} was still in the {place0?place thing}.
{adult} found {person} in the {place0?place person}.
When {adult} called, {person} answered from the {place0?place person}.

<12>
-
{adult2} saw the {thing} in the {place0?place thing}.
{adult2} saw {person} in the {place0?place person}.
""")
