"""Scenes about people: what they feel, say to each other and do to themselves."""

from regard.gpt.stories.scenes._format import scene

RAIN = scene("""
All at once it began to rain. {person}, who had come without {person2}, ran under a tree and
    pulled {person.their!} [hood|collar] over {person.their!} ears.
Dark clouds came up, and the rain poured down. {person} had forgotten {person.their!} umbrella,
    and so had {person2}.
{person} slipped on a wet stone and fell into the [pond|brook] right in front of {person2}.

{person} was so cold that {person.they!} shivered from head to foot. {person2} lent
    {person.them!} a [jacket|jumper|coat].
{person2} called, "You are dripping." Then {person2.they} offered {person.them!} a towel.

By the fire {person} dried {person.self!} until {person.their!} cheeks were red.
At home {person} sat down by the stove, and soon {person.their!} [socks|sleeves|shoes] were dry
    again.
{person} wrapped {person.self!} in a blanket and drank a cup of [tea|cocoa|hot milk].
""")

MIRROR = scene("""
{person} looked at {person.self!} in the mirror. {person.their} hair stood up in all directions,
    and {person2} could not help laughing.
{person2} sat yawning on the edge of the bath. {person} washed {person.self!} and combed
    {person.their!} hair.
{person} taught {person.self!} to [whistle|juggle|skate] that day, while {person2} watched.

Then {person2} put on {person2.their!} boots, and {person} put on {person.their!} shoes.
{person2} shrugged {person2.their!} shoulders. {person} only shook {person.their!} head.
{person2} was so surprised that {person2.they!} nearly fell over {person2.their!} own feet.
Then {person2}, who had been sitting next to {person}, rubbed {person2.their!} eyes and
    stretched.

-
{person} was rather proud of {person.self!}.
{person3}, who was waiting for {person}, stamped {person3.their!} foot.
{person2} finished the work all by {person2.self!}, and {person2.their!} face glowed.
""")

CONDITIONS = scene("""
After the long walk {person} was {condition=condition person} and {person2} was
    {condition2=condition person2}.
{person} felt {condition=condition person}. {person2} did not feel well either, for
    {person2.they!} was {condition2=condition person2}.
"What is wrong?" asked {adult}. {person} was {condition=condition person}, it turned out, and
    {person2} was {condition2=condition person2}.

[There was help for both.|Nobody had to ask twice.|A kind neighbour knew what to do.] {person}
    was {condition?condition person}, and the cure for that was {condition.remedy!}. {person2}
    was {condition2?condition person2}, and the cure for that was {condition2.remedy!}.
What {person2} needed was {condition2.remedy!}. What {person} needed was {condition.remedy!}.

Before long {person} was no longer {condition?condition person}, and {person2} was no longer
    {condition2?condition person2}.
{person} sighed, "How good that I am no longer {condition?condition person}."
-
""")

CALLING = scene("""
"Can you [swim|skate|dance|cook|juggle|sew], {person2=addressed now}?" asked {person}. "Only a
    little," said {person0?addressed now}.
{person} asked, "Where have you been, {person2=addressed now}?" "On the roof," answered
    {person0?addressed now}.
"Do you see that {animal}, {person2=addressed now}?" whispered {person}. "It is looking at us,"
    whispered {person0?addressed now}.
"What are you doing there, {person2=addressed now}?" asked {person}. "I am counting clouds,"
    replied {person0?addressed now}.
"Are you afraid of {animals}, {person2=addressed now}?" asked {person}. "Not at all," said
    {person0?addressed now}.

{person} asked, "And you, {person3=addressed now}?" "Not me," said {person0?addressed now}.
"What do you think, {person3=addressed now}?" {person} went on. "I would rather
    [sleep|eat|sing|read]," said {person0?addressed now}.
"Hand me that {thing}, {person3=addressed now}!" said {person2}. "Here it is," said
    {person0?addressed now}.

-
"Shall we go now, {person=addressed now}?" asked {person3}. "As soon as I have tied my shoes,"
    said {person0?addressed now}.
They all laughed so much that their sides hurt.
""")

FRIENDS_IN_BRACKETS = scene("""
The whole company ({person}, {person2} and {person3}) marched along the [lane|path|river].
There was one secret (a very old one) that {person} had never told. {person2} wanted to know it,
    and {person3} did too.
{person} had three wishes (a {thing}, a {thing2} and a {thing3}) and told {person2} about them.
The visitors (an uncle and two aunts) had brought a box of [figs|dates|raisins] for {person} and
    {person2}.

{person2} said, "I know a shortcut (it leads past the mill)." {person} trusted {person2.them!}.
{person2} said, "We need a plan (and something to eat)." Everyone agreed.
{person2} said, "My {thing4} (a present from an uncle) is at home." {person} laughed.
{person2} looked at {person} (they were the same height) and grinned.

At the [bridge|well|crossroads] they turned round.
Could there be a better day? {person3} did not think so!
How the time flew!
""")

RACE = scene("""
"Who is the fastest?" asked {adult}. They lined up by the gate, and {adult} clapped
    {adult.their!} hands.
They ran a race from the [church|mill|station] to the old oak.
{person3} said, "Let us race to the bridge." Off they went!

{person=rank first} came first, {person2=rank second} came second, and {person3=rank third} came
    third.
{person3=rank third} stumbled and came third. {person=rank first} was first, and
    {person2=rank second} was second.

So the gold medal went to {person0?rank first}, the silver medal to {person0?rank second} and
    the bronze medal to {person0?rank third}.
So the winner was {person0?rank first}, with {person0?rank second} close behind.
Everyone cheered for the winner, {person0?rank first}. The last to arrive was
    {person0?rank third}, but that did not matter.
""")

CLIMBING = scene("""
{person} climbed up the [ladder|apple tree|hill] so that {person.they!} could see further.
    {person2} held the {thing} and waited.
{person}, who was braver than {person2}, tiptoed into the dark {place} with {person.their!}
    heart beating fast.
{person2} built a den of branches. {person} crept inside on {person.their!} hands and knees.

{person} shouted, "Come and look." But {person2} had hurt {person2.self!} and had to sit down.
Suddenly something rustled. {person2} held {person2.their!} breath.
Something creaked, and {person} lost {person.their!} balance.

Luckily nothing worse happened. {person2} waved {person2.their!} hand, and {person} waved back.
It had only been the wind! {person2} made fun of {person2.self!} afterwards.
{person2} told {person3} about it, and {person2.their!} voice trembled a little.
""")
