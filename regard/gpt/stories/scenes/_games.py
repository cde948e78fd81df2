"""Scenes of play: theatre, dressing up, hiding, errands, riddles."""

from regard.gpt.stories.scenes._format import scene

THEATRE = scene("""
They decided to put on a play. {person=played part} was to be the {part=part person},
    {person2=played part2} was to be the {part2=part person2}, and {person3=played part3} was to
    be the {part3=part person3}.
{adult} said, "Let us play theatre." The part of the {part=part person} went to
    {person=played part}, that of the {part2=part person2} to {person2=played part2} and that of
    the {part3=part person3} to {person3=played part3}.
There was a list of parts: {person=played part} {part=part person}, {person2=played part2}
    {part2=part person2}, {person3=played part3} {part3=part person3}.
There were three parts. {person=played part} took the {part=part person}, {person2=played part2}
    took the {part2=part person2}, and {person3=played part3} took the {part3=part person3}.

The audience (an aunt, two uncles and a sleeping poodle) applauded.
There was a curtain made of bed sheets, and behind it everyone whispered and giggled.
A cardboard throne wobbled in the middle of the stage.

<123>
The one who trembled on the stage was the {part}, that is, {person0?played part}.
The list of parts said {person} {part?part person}.
Afterwards everyone shook hands with the {part}, {person0?played part}.
The loudest applause went to the {part}, {person0?played part}.
{person} bowed, still dressed as the {part?part person}.

<123>
-
The {part} forgot every line. Poor {person0?played part}!
At last {person} took off the costume of the {part?part person}.
""")

FANCY_DRESS = scene("""
For the carnival {person=wearer colour} was dressed all in {colour=colour person}, and
    {person2=wearer colour2} was dressed all in {colour2=colour person2}.
There was a treasure hunt with two teams. The leader of the {colour=colour person} team was
    {person=wearer colour}, and the leader of the {colour2=colour person2} team was
    {person2=wearer colour2}.

<12>
Through the fog {adult} saw something {colour}. Who could it be? It could only be
    {person0?wearer colour}!
Suddenly something {colour} dashed around the corner. Who was that? That was
    {person0?wearer colour}, running as fast as possible.
A scrap of {colour} cloth hung in the brambles. It had been torn off by
    {person0?wearer colour}.

<12>
-
And the {colour} mittens on the radiator? They were those of {person0?wearer colour}.
In the end a shower of {colour} confetti rained down on {person0?wearer colour}.
On a picture of that day {person} is all in {colour?colour person}.
""")

HIDING = scene("""
{person} hid in the {place=place person}. {person2} hid in the {place2=place person2}. {person3}
    began to search.
There was a list of rooms: {person} {place=place person}, {person2} {place2=place person2}.
Everybody was busy. {person} was sweeping in the {place=place person}, and {person2} was
    painting in the {place2=place person2}.

<12>
-
But {person} grew restless, crept out and slipped into the {place3=place person}.
But it was draughty there, so {person} moved to the {place3=place person}.
After some time {person} was bored and went over to the {place3=place person}.

<12>
{adult} found {person} in the {place0?place person}.
When {adult} called, {person} answered from the {place0?place person}.
The new list of rooms said {person} {place0?place person}.
It took long to find {person}, who sat in the {place0?place person}.

<12>
-
{adult2} saw {person} in the {place0?place person}.
At noon {person} was still in the {place0?place person}.
""")

RHYMING_WORDS = scene("""
"I am looking for two words," said {adult}. "The first rhymes with {animal=verse first}, and the
    second rhymes with {animal2=verse second}." {person} guessed {animal.rhyme!}, and {person2}
    guessed {animal2.rhyme!}. Both were right!
They made up riddles. {person} wanted a rhyme for {animal=verse first}, and {person2} wanted a
    rhyme for {animal2=verse second}. The answers were {animal.rhyme!} and {animal2.rhyme!}.
In the primer there were two pictures that rhymed with animals. One rhymed with
    {animal=verse first} and one with {animal2=verse second}, so they had to be {animal.rhyme!}
    and {animal2.rhyme!}.

"Too easy!" said {person2}.
{person2}<who2> stuck out {person2.their!} tongue.
{person} hopped on one leg for joy.
{person3} had known it too and was a little cross with {person3.self!}.
""")

CUPBOARD = scene("""
{adult} opened the old cupboard to see what was in it.
One rainy hour was spent in the attic, among trunks and cobwebs.
The jumble sale was about to begin, and everything was laid out on trestles.

The {items} behind the {thing} {items.was!} covered with dust.
The {thing} behind the {items} {thing.was!} covered with dust.
The {items} inside the {thing} {items.was!} much too old to be of use.
The {thing} that lay among the {items} {thing.was!} worth a fortune.

{person} said, "The {thing2} beneath the {items2} {thing2.is!} mine."
{person2} said, "The {items2} beneath the {thing2} {items2.is!} lovely."
{person2} whispered, "The {items2} next to the {thing2} {items2.has!} no price."
{person} said, "The {thing2} next to the {items2} {thing2.has!} a crack."
""")

HUT_IN_THE_STORM = scene("""
The storm kept them in the hut all evening. {person} felt {condition=condition person}, and
    {person2} felt {condition2=condition person2}.
"I am {condition=condition person}," said {person}. "And I am {condition2=condition person2},"
    said {person2}.

<12>
{person3} had brought everything: for {person} there was {remedy0?needs person}.
What was to be done? {person3} ordered {remedy0?needs person} for {person}.

<12>
-
And for {person} there was {remedy0?needs person}.

"You think of everything!" said {person}.
Soon they were singing louder than the wind.
So they held out until the morning.
""")

AT_THE_WINDOW = scene("""
<23>
There was a knock. {person} asked, "Is that you, {person2=addressed now}?" "Who else?" laughed
    {person0?addressed now}.
{person} held the tin can with the string to one ear and asked, "Can you hear me,
    {person2=addressed now}?" "Every word," crackled the voice of {person0?addressed now}.
{person} asked, "Why are you up so early, {person2=addressed now}?" "I could not sleep," yawned
    {person0?addressed now}.

<123>
"Then hurry, {person3=addressed now}!" {person} called. "I am coming," answered
    {person0?addressed now}.
{person} asked, "Have you packed the sandwiches, {person3=addressed now}?" "All of them,"
    answered {person0?addressed now}.

They shouldered their bags and set off whistling.
The landlady shook her broom at them, but she was smiling.
-
""")

CIRCUS = scene("""
The circus came to town on {day=next days}. {person} could not go until the day after, which was
    {day0>next days}.
On {day=next days} the posters were put up. The clowns arrived a day later, on {day0>next days}.

A trapeze artist flew through the air, and {person} covered {person.their!} eyes.
The elephant squirted water at {person2}, who dried {person2.self!} with a flag.
A juggler tossed flaming torches, and {person2} forgot to close {person2.their!} mouth.

The wagons rolled away one day later, on {day0>next days}.
The clowns had packed their trunks when {day0>next days} came.
""")

REPAIRS = scene("""
Something always needs mending. {person} discovered a {trouble}, and {person2} discovered a
    {trouble2}.
{adult} asked for help. First there was a {trouble} to see to, and then there was a {trouble2}.
"What is the trouble?" asked {adult}. {person} complained of a {trouble}, and {person2}
    complained of a {trouble2}.

<12>
Against the {trouble} they used {trouble.remedy!}.
{person} remembered what is good against a {trouble}, namely {trouble.remedy!}.
{person3} opened the bottom drawer. For the {trouble} there was {trouble.remedy!}.

<12>
-
And against the {trouble} {person3} used {trouble.remedy!}.

Nobody could tell afterwards that anything had been wrong.
{person2} inspected everything with {person2.their!} hands behind {person2.their!} back.
"As good as new!" said {person}.
""")
