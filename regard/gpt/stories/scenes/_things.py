"""Scenes about things: who has them, where they are, what they look like."""

from regard.gpt.stories.scenes._format import scene

PRESENT = scene("""
{person=holder thing} had a {colour=colour thing} {thing=coloured colour}, and everyone
    [liked|admired|envied] it.
{person=holder thing} had found a {colour=colour thing} {thing=coloured colour}
    [under the stairs|by the river|in an old chest], and it was still as good as new.
{adult} had [bought|made|mended] a {colour=colour thing} {thing=coloured colour} for
    {person=holder thing}, who [danced for joy|could not stop smiling].
There was a parcel for {person=holder thing} on the kitchen table. In it lay a
    {colour=colour thing} {thing=coloured colour}.

"You may borrow it," {person~holder thing} said kindly, and so the {colour}
    {thing?coloured colour} went to {person2=holder thing}.
By [noon|midday] {person.they} was tired of it and gave the {colour} {thing?coloured colour} to
    {person2=holder thing}, who thanked {person.them!} warmly.
But {person.they} looked at the {colour} {thing?coloured colour} once more and handed it to
    {person2=holder thing}, who had always wished for one.

-
{person2~holder thing} kept it for an hour. After that {person3=holder thing} was allowed to
    have it.
But {person2~holder thing} did not keep it for long, because {person3=holder thing} begged for
    it until it changed hands again.
When {person2~holder thing} had to go in for a moment, {person3=holder thing} took charge of it.

From then on the {colour} {thing?coloured colour} was in the hands of {person0?holder thing}.
If you had wanted the {thing} that evening, you would have had to ask {person0?holder thing}.
And so the proud owner of the {colour} {thing?coloured colour} was {person0?holder thing}.
Later {adult2} wondered where the {thing} was. It was with {person0?holder thing}.
""")

THERE_AND_BACK = scene("""
{person=holder thing} was carrying a {quality} {thing}. "May I hold it?" asked {person2}.
Over the shoulder of {person=holder thing} hung a {quality} {thing}. {person2} had never seen
    one like it.

{person~holder thing} nodded {person.their!} head, and the {thing} went to
    {person2=holder thing}.
{person~holder thing} thought about it and held out {person.their!} hand. A moment later the
    {thing} was with {person2=holder thing}.

{person2~holder thing} tried it [once or twice|for a minute] and returned it to
    {person=holder thing}.
Next it was the turn of {person3=holder thing}, who [laughed out loud|was very careful with it].
{person2~holder thing} turned it round and round. It was far too [heavy|delicate|precious], and
    so {person3=holder thing} got it instead.

Now, who was holding the {thing}? Why, {person0?holder thing}, of course!
On the way home the {thing} was carried by {person0?holder thing}.
Then {adult} said, "Take good care of it." Of course that was meant for {person0?holder thing}.
""")

TWO_PRESENTS = scene("""
On the table lay two presents: a {colour=colour thing} {thing=coloured colour} and a
    {colour2=colour thing2} {thing2=coloured colour2}.
In the shop window there were a {colour=colour thing} {thing=coloured colour} and a
    {colour2=colour thing2} {thing2=coloured colour2}.
{adult} opened the cupboard. There they were, a {colour=colour thing} {thing=coloured colour}
    and, right behind it, a {colour2=colour thing2} {thing2=coloured colour2}.

{person} wanted the {colour2} {thing2?coloured colour2}. {person2} liked the {colour}
    {thing?coloured colour} better.
{person} sighed, "How I would love to have the {colour} {thing?coloured colour}." {person2}
    pointed to the {colour2} {thing2?coloured colour2}.
{person} [touched|picked up] the {colour} {thing?coloured colour} first and then the {colour2}
    {thing2?coloured colour2}.

In the dark it was hard to see, but the {thing2} was certainly {colour2?colour thing2} and the
    {thing} was certainly {colour?colour thing}.
{person2} closed {person2.their!} eyes and tried to remember. The {thing} was
    {colour?colour thing}, and the {thing2} was {colour2?colour thing2}. All correct!
{person} painted a picture of both. The {thing2} was {colour2?colour thing2}, and the {thing}
    was {colour?colour thing}.
""")

LOST_AND_FOUND = scene("""
{person} had lost {person.their!} {colour=colour thing} {thing=coloured colour}. {person2} said,
    "Do not be sad, we will look for it together."
"Oh dear!" cried {person}. {person.they} had lost {person.their!} {colour=colour thing}
    {thing=coloured colour}, and {person2} could see that {person.they!} was close to tears.

They searched the {place} and the {place2}, but all they found was [dust|a cobweb|an old shoe].
Was it in the {place}? No, it was not. Was it in the {place2}? There was nothing but a sleepy
    {animal}.
First they looked in the {place} and then in the {place2}, but they found nothing at all.

At last {person2} opened the door of the {place3=place thing}. There lay the {colour}
    {thing?coloured colour}!
Then {person3} came running from the {place3=place thing}. {person3.they} said, "Guess what is
    lying there." It was the {colour} {thing?coloured colour}.

{person} said, "I must have left it in the {place0?place thing}." Then {person.they} laughed at
    {person.self!}.
{person} clapped {person.their!} hands. Never again would {person.they!} leave it in the
    {place0?place thing}.
How it had got into the {place0?place thing}, nobody could say. {person} wiped {person.their!}
    eyes and smiled.
""")

CARRYING = scene("""
{person} took {person.their!} {thing} into the {place=place thing} and left it there.
In the morning the {thing} was in the {place=place thing}. That was where {person} kept it.
{person} kept a {quality} {thing} in the {place=place thing} and was very fond of it.

After breakfast {person2} needed it and carried it to the {place2=place thing}.
But it was in the way, and so {person2} moved it to the {place2=place thing}.
Then {person2} dragged it all the way to the {place2=place thing}, for no reason at all.

-
An hour later {adult} tidied up and put it in the {place3=place thing}.
When it began to rain, {person3} brought it into the {place3=place thing}.

In the evening {person} wanted it back. Where was it? It was in the {place0?place thing}!
And there it stayed. The {thing} was safe in the {place0?place thing}.
{person} asked, "Where is my {thing}?" {person2} answered, "Go and look in the
    {place0?place thing}."
{person} scratched {person.their!} head. In the end {person.they!} found the {thing} in the
    {place0?place thing}.
""")

WALKING_WITH = scene("""
{person2} stayed in the {place2=place person2}. {person} went to the {place=place person},
    carrying a {quality} {thing@place person}.
While {person2} was busy in the {place2=place person2}, {person} walked to the
    {place=place person} and took a {quality} {thing@place person} along.

There {person.they!} put it down and forgot it.
It grew heavy, and so {person} set it down there with a sigh.

Then {person} ran off to the {place3=place person} to
    [see the sunset|meet {person3}|eat a plum]. The {thing} did not come along, for it was still
    in the {place0?place thing}.
Soon afterwards {person} was in the {place3=place person} [with {person3}|all alone]. And the
    {thing}? Nobody had touched it in the {place0?place thing}.
""")

MATERIALS = scene("""
{adult} kept two treasures: a {material=material thing} {thing=made material} and a
    {material2=material thing2} {thing2=made material2}.
At the market {person} bought a {material=material thing} {thing=made material}, and {person2}
    bought a {material2=material thing2} {thing2=made material2}.

One day {person3} asked about the {thing2}. "Is it really {material2?material thing2}?"
    {person3} asked. It was! And the {thing} was truly {material?material thing}.
They were less precious than they looked. The {thing} was only {material?material thing} and the
    {thing2} was only {material2?material thing2}.
""")
