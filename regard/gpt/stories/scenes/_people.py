"""Scenes about people: what they feel, say to each other and do to themselves."""

from regard.gpt.stories.scenes._format import scene

RAIN = scene("""
<12>
All at once it began to rain. {person}, who had come without {person2}, ran under a tree and
    pulled {person.their!} [hood|collar] over {person.their!} ears.
Dark clouds came up, and the rain poured down. {person} had forgotten {person.their!} umbrella,
    and so had {person2}.
{person} slipped on a wet stone and fell into the [pond|brook] right in front of {person2}.

<12>
{person} was so cold that {person.they!} shivered from head to foot. {person2} lent
    {person.them!} a [jacket|jumper|coat].
{person2} called to {person}, "You are dripping." Then {person2.they} offered {person.them!} a
    towel.

<12>
By the fire {person}<who> dried {person.self!} until {person.their!} cheeks were red.
At home {person} sat down by the stove, and soon {person.their!} [socks|sleeves|shoes] were dry
    again.
<when>{person}<who> wrapped {person.self!} in a blanket and drank a cup of [tea|cocoa|hot milk].
""")

MIRROR = scene("""
<12>
{person}<who> looked at {person.self!} in the mirror. {person.their} hair stood up in all
    directions, and {person2} could not help laughing.
{person2} sat yawning on the edge of the bath. {person} washed {person.self!} and combed
    {person.their!} hair.
{person}<who> taught {person.self!} to [whistle|juggle|skate] that day, while {person2} watched.

<12>
Then {person2}<who2> put on {person2.their!} boots, and {person} put on {person.their!} shoes.
<when>{person2}<who2> shrugged {person2.their!} shoulders. {person} only shook {person.their!} head.
{person2} was so surprised that {person2.they!} nearly fell over {person2.their!} own feet.
Then {person2}, who had been sitting next to {person}, rubbed {person2.their!} eyes and
    stretched.

<12>
-
<when>{person}<who> was rather proud of {person.self!}.
{person3}, who was waiting for {person}, stamped {person3.their!} foot.
{person2} finished the work all by {person2.self!}, and {person2.their!} face glowed.
""")

GLANCES = scene("""
{person} and {person2} walked through the {place}.
{person} waited for {person2} near the {place}.
{person} came into the {place} with {person2}.

<12> twice
<when>{person} nodded to {person2}, rubbed {person.their!} nose and said nothing.
<when>{person} waved to {person2} and stamped {person.their!} foot.
<when>{person} looked at {person2}, shook {person.their!} head and sighed.
<when>{person} whispered to {person2} and then rubbed {person.their!} hands.
Behind {person2} stood {person} and rubbed {person.their!} eyes.
[Behind|Near|Opposite|Not far from] {person2} [stood|sat|lay] {person} and
    [rubbed|closed|opened|covered] {person.their!} eyes.
[To the left of|To the right of|Close to] {person2} [stood|sat|waited] {person} and
    [bit|licked|chewed] {person.their!} lips.
[Past|Towards|Up to] {person2} [ran|came|walked] {person}, [swinging|stretching] {person.their!}
    arms.
<when>{person} [grinned at|winked at|bowed to] {person2}, [stretched|folded|crossed]
    {person.their!} arms and went away.
<when>{person} [laughed at|turned to|greeted] {person2}, [stamped|tapped] {person.their!} foot.
<when>{person} saw {person2}, [raised|dropped|shook|lowered] {person.their!} head.
<when>{person} [followed|passed|watched] {person2}, [rubbing|closing|opening] {person.their!} eyes.
[Watching|Hearing|Following|Led by|Called by] {person2}, {person} held {person.their!} breath.
{person}, [led by|called by|tired of|taller than|older than] {person2}, [tied|wiped|lost]
    {person.their!} shoes.
{person}, not {person2}, had forgotten {person.their!} [hat|gloves|lunch].
It was not {person2} but {person} who lifted {person.their!} hand.
Unlike {person2}, {person} kept {person.their!} [hat|gloves|coat] on.
Without {person2}, {person} [lost|found|missed] {person.their!} way.
To {person2} {person} showed {person.their!} [hands|teeth|tongue].
Beside {person2} sat {person} and tapped {person.their!} foot.
In front of {person2} walked {person} and swung {person.their!} arms.
After {person2} came {person} and held up {person.their!} hand.
<when>{person}<who> tied {person.their!} shoes.
In the {place} {person}, who had been talking to {person2}, closed {person.their!} eyes.
By the well {person}, who had been singing with {person2}, tied {person.their!} shoes.
{person2} had left, and {person} scratched {person.their!} head.
{person2} was asleep, but {person} rubbed {person.their!} eyes.
Because {person2} was late, {person} stamped {person.their!} foot.
When {person2} laughed, {person} covered {person.their!} ears.
As {person2} spoke, {person} folded {person.their!} arms.
""")

CONDITIONS = scene("""
There was a list of worries: {person} {condition=condition person}, {person2}
    {condition2=condition person2}.
There was a list of worries: {person} {condition=condition person}, {person2}
    {condition2=condition person2}.
{person} was {condition=condition person} and {person2} was {condition2=condition person2}.
After the long walk {person} was {condition=condition person} and {person2} was
    {condition2=condition person2}.
{person} felt {condition=condition person}. {person2} did not feel well either, for
    {person2.they!} was {condition2=condition person2}.
"What is wrong?" asked {adult}. {person} was {condition=condition person}, it turned out, and
    {person2} was {condition2=condition person2}.

<12> twice
[There was help for both.|Nobody had to ask twice.|A kind neighbour knew what to do.] {person}
    was {condition?condition person}, and the cure for that was {remedy0?needs person}.
What {person} needed was {remedy0?needs person}.
{adult2} saw that {person} was {condition?condition person}.
The list of worries said {person} {condition?condition person}.
The list of worries said {person} {condition?condition person}.
And {person} was {condition?condition person}.
No doubt, {person} was {condition?condition person}.
{adult2} brought {person} what was needed, and that was {remedy0?needs person}.

<12>
-
And what did {person} ask for? For {remedy0?needs person}, of course.
{person3} knew what {person} needed, and that was {remedy0?needs person}.

<12>
Before long {person} was no longer {condition?condition person}.
{person} sighed, "How good that I am no longer {condition?condition person}."
-
""")

CALLING = scene("""
<23>
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

<123>
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
<12>
The whole company ({person}, {person2} and {person3}) marched along the [lane|path|river].
There was one secret (a very old one) that {person} had never told. {person2} wanted to know it,
    and {person3} did too.
{person} had three wishes (a {thing}, a {thing2} and a {thing3}) and told {person2} about them.
The visitors (an uncle and two aunts) had brought a box of [figs|dates|raisins] for {person} and
    {person2}.

<12>
{person2} said, "I know a shortcut (it leads past the mill)." {person} trusted {person2.them!}.
{person2} said, "We need a plan (and something to eat)." Everyone agreed.
{person2} said, "My {thing4} (a present from an uncle) is at home." {person} laughed.
{person2} looked at {person} (they were the same height) and grinned.
On the wall somebody had written ({person} and {person2}) in small letters.
On the wall somebody had written "{person} and {person2}" in small letters.
At the end of the letter stood ({person} with {person3}) as on every page.
At the end of the letter stood "{person} with {person3}" as on every page.

<12>
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
{person2=rank second} was second, {person3=rank third} was third, and {person=rank first} was
    first.
{person3=rank third} came third, {person2=rank second} came second, and {person=rank first} came
    first.

So the gold medal went to {person0?rank first}.
The silver medal went to {person0?rank second}.
The bronze medal went to {person0?rank third}.
So the winner was {person0?rank first}.
Everyone cheered for the winner, {person0?rank first}.
The last to arrive was {person0?rank third}, but that did not matter.

-
The bronze medal went to {person0?rank third}.
And close behind the winner was {person0?rank second}.
Who was last? It was {person0?rank third}.
Who was first? It was {person0?rank first}.
""")

CLIMBING = scene("""
<12>
{person} climbed up the [ladder|apple tree|hill] so that {person.they!} could see further.
    {person2} held the {thing} and waited.
<when>{person}, who was braver than {person2}, tiptoed into the dark {place} with {person.their!}
    heart beating fast.
{person2} built a den of branches. {person} crept inside on {person.their!} hands and knees.

<12>
{person} shouted, "Come and look." But {person2} had hurt {person2.self!} and had to sit down.
Suddenly something rustled. {person2}<who2> held {person2.their!} breath.
Something creaked, and {person}<who> lost {person.their!} balance.

<12>
Luckily nothing worse happened. {person2}<who2> waved {person2.their!} hand, and {person} waved
    back.
It had only been the wind! {person2}<who2> made fun of {person2.self!} afterwards.
{person2} told {person3} about it, and {person2.their!} voice trembled a little.
""")
