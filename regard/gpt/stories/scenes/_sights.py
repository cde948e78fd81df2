"""What there is to see and hear between two scenes."""

from regard.gpt.stories.scenes._format import passages

SIGHTS = passages("""
A heron stood in the reeds on one leg.
Somewhere a blackbird was singing its evening song.
The smell of fresh bread drifted over from the bakery.
Two snails were crossing the path, and neither was in a hurry.
High above the chimneys a flock of starlings wheeled and dived.
The church bells rang, and pigeons fluttered up from the tower.
A postman pedalled past and rang his bell.
The washing danced on the line like a row of acrobats.
Bees hummed among the lavender.
A thin plume of smoke curled out of a chimney.
The first stars twinkled over the rooftops.
Dandelion seeds floated by like tiny parachutes.
An old tractor rattled along the dusty road.
The river glittered, and dragonflies darted over the water.
Far away a train whistled twice.
Raindrops drummed on the greenhouse roof and then stopped.
A spider was mending its web between two fence posts.
The shadows grew longer, and crickets chirped in the tall grass.
A gust of wind chased the leaves round and round.
The baker waved a floury hand from the doorway.
On the calendar icicles sparkled like diamonds.
A fat bumblebee bounced against the windowpane.
The miller snored in a deckchair with a newspaper over his face.
Swallows swooped low, which is a sure sign of rain.
A rainbow stretched from the harbour to the hills.
Three sailing boats glided past the lighthouse.
The fog lifted, and the mountains came into view.
A gardener pushed a squeaking wheelbarrow uphill.
Chestnuts plopped from the branches and rolled along the pavement.
Under the stairs the boiler grumbled to itself.
A kettle began to sing on the stove.
The weathercock creaked and turned towards the west.
Fireflies glowed in the hedge.
An accordion was playing in the marketplace.
The tide had gone out and left ripples in the sand.
A barge chugged under the stone arch and hooted.
Moss grew on the steps, soft and thick as velvet slippers.
The tram clanged around the corner and sprayed sparks.
Ants were hauling a crumb as large as a mountain.
A woodpecker hammered at the trunk of a dead birch.
Steam rose from the puddles as the sun returned.
The librarian was dusting an atlas and humming.
A fishing rod leaned against the jetty, and nobody was near it.
In the distance thunder muttered and then thought better of it.
The ferry hooted and left the pier.
Someone was practising scales on a piano, slowly and with many mistakes.
A bonfire crackled behind the allotments.
The scarecrow wore a new jacket and looked almost elegant.
Cobwebs trembled in the keyhole whenever the door slammed.
A caterpillar was nibbling holes into a cabbage leaf.
The fountain splashed, and sparrows bathed in it.
A fir cone fell to the ground with a gentle thump.
The blacksmith whistled while horseshoes cooled in a trough.
A lorry full of gravel rumbled over the cobbles.
The lemonade seller packed up her glasses and folded the awning.
Poppies nodded at the edge of the wheat field.
The grandfather clock cleared its throat and chimed.
A paper aeroplane sailed over the wall and landed in a nettle patch.
Tadpoles wriggled in the ditch beside the footpath.
The old cart groaned like a sleepy giant.
""")
