"""Scenes with numbers, days and verses."""

from regard.gpt.stories.scenes._format import scene

EATING = scene("""
There were {number=count items} {items} and {number5=count items2} {items2} in the cupboard.
    {person} took {number2-count items} of the {items} and
    [shared them with {person2}|hid them].
{adult} counted everything, and there were {number5=count items2} {items2} and
    {number=count items} {items}. But {person} gave {number2-count items} of the {items} away.
{person} owned {number=count items} {items}, and {person2} owned {number5=count items2}
    {items2}. On the way home {person} lost {number2-count items} {items}.

<12>
How many {items} were left? There were {number0?count items}.
{person} counted the {items} on {person.their!} fingers. There were {number0?count items}.
So the number of {items} was now {number0?count items}.

<12>
-
Then {person3} brought {number4+count items} more {items}. Altogether that made
    {number0?count items}.
{person3} said, "That is not much." So {person3.they} added {number4+count items} more {items}.
    Altogether that made {number0?count items}.
""")

COUNTING = scene("""
They played hide-and-seek. {person}<who> covered {person.their!} eyes and counted, "
{person} said, "Let me show you how I count." Then {person.they} began, "
{person} climbed the stairs and counted the steps in a funny way, "

{number=step numbers}, {number2>step numbers}, {number3>step numbers}, {number4>step numbers}."

How clever that sounded!
{person2} listened and moved {person2.their!} lips.
{person2} tried it too, but {person2.they!} soon got muddled.
""")

WEEK = scene("""
On {day=next days} {person} planted a [bean|seed|sunflower]. The next day was {day0>next days},
    and nothing could be seen.
It was {day=next days}, and not {day2}, as {person2} believed. {person} began to
    [paint the fence|build a boat|write a poem] and worked until dark. The next day was
    {day0>next days}.
{person} had been well on {day2} but fell ill on {day=next days}. The next day was
    {day0>next days}, and the doctor shook her head.

The day after that was {day0>next days}, and {person2} came to help.
{person2} visited {person.them!} one day later, on {day0>next days}.
It rained, and they waited one more day, until {day0>next days}.

But when {day0>next days} came, everything was well. {person} was very pleased with
    {person.self!}.
One day later, on {day0>next days}, all worries were forgotten.
""")

YEAR = scene("""
{person3} was born in {month2}, and {person} was born in {month=next months}. Just one month
    after {person} came {person2}, in {month0>next months}.
Every child had a favourite month. That of {person3} was {month2}, that of {person} was
    {month=next months}, and that of {person2} was the month after it, {month0>next months}.
{adult} disliked {season2} and loved {season=next seasons} best. But {person} preferred the
    season after it, {season0>next seasons}.

{person3} had to write that down and chewed {person3.their!} pencil.
How quickly the year goes by!
So there was always something to look forward to.
""")

VERSE = scene("""
{person} knew a verse by heart: / "I met a {quality} {animal=verse first}, / I met a {quality2}
    {animal2=verse second}; / the one was by the {animal.rhyme!}, / the other by the
    {animal2.rhyme!}." /
On the way they made up a song: / "Good morning, little {animal=verse first}, / good evening,
    little {animal2=verse second}; / the first may have a {animal.rhyme!}, / the next may have a
    {animal2.rhyme!}." /
{person} wrote a poem for {person2}: / "Here comes a dancing {animal=verse first}, / here comes
    a singing {animal2=verse second}; / my first rhyme is a {animal.rhyme!}, / my second is a
    {animal2.rhyme!}." /

{person2} laughed. {person2.they} said, "So the first animal is the {animal0?verse first}."
{person2} laughed. {person2.they} said, "So the second animal is the {animal0?verse second}."
"Once more!" begged {person2}. So the {animal0?verse first} came round again, and after it the
    {animal0?verse second}.
{person2} learned it at once. First came the {animal0?verse first}.

-
They sang it all the way home.
{person3} pressed {person3.their!} hands over {person3.their!} ears.
{person} took a bow, and {person.their!} cheeks were glowing.
""")
