#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""usage: make_facts.py [--seed N] > facts.json: facts to hide in a book and to ask a model for.

Ten kinds, twenty facts each. The JSON array has a row a line: `kind`, `said` (what the text says), `asked` (a question
in the text's words), `other` (the same question in other words: it shares no word with `said` but names and words such
as "the"), and `answers` (lists of forms; an answer must hold one form of every list). No two facts share a name, a
place or a value, so that no answer can come from another fact. A form of the answer never stands in a question.

`keys`, `names`, `places`, `causes`, `lists`, `dates`, `code`, `dialogue` and `tables` name what is asked for.
`paraphrase` has no name at all in the question in other words: only its meaning leads to the passage."""
import argparse
import json
import random
import re
import sys

PEOPLE = """Agatha Barnaby Cordelia Desmond Edwina Fergus Gwendolyn Horatio Imogen Jasper Katrina Lionel Marguerite
Neville Ottoline Percival Quentin Rosalind Sebastian Theodora Ulric Verity Wilfred Xenia Yolanda Zachary Ambrose
Beatrix Clement Dorothea Everett Florian Gertrude Humphrey Isolde Jerome Kasimir Leopold Mathilda Nathaniel Octavia
Philippa Rupert Sybil Tobias Ursula Vincent Winifred Alaric Blanche Cyril Delphine Edgar Felicity Gideon Harriet
Ignatius Josephine Kenneth Lavinia Magnus Nigella Oswald Prudence Reginald Seraphina Thaddeus Una Valentine Wallace
Archibald Bertha Cecily Dunstan Eleanora Frederica Godfrey Hester Isadora Julius Kirsten Lysander Minerva Norbert
Ophelia Phineas Roderick Stella Tristan Viola Wendell Adelaide Benedict Clarissa Douglas Esmeralda Fitzroy Genevieve
Herbert Irma Jocelyn Konrad Lucasta Montague Nerissa Orlando Patience Roland Susannah Timothy Vivian Walburga Alfreda
Bernard Calista Dominic Eustace Frieda Gilbert Hortense Ivor Juliana Killian Lorenzo Miranda Nicodemus Oriana Pascal
Rhoda Sigmund Tabitha Urban Veronica Warwick Zelda Aurelia Boniface Celestine Drusilla Emmeline Fabian Griselda""".split()
SURNAMES = """Abernathy Blenkinsop Cattermole Dalrymple Entwistle Fotheringay Grimshaw Hathersage Inchbald Jellicoe
Kirkbride Ludlow Mauleverer Netherton Oldershaw Pettigrew Quillfeather Ravenscroft Satterthwaite Tolliver Umpleby
Vavasour Wigglesworth Yarborough Arkwright Bickerstaff Cholmondeley Dunderdale Eversleigh Farquhar Gathercole
Heppenstall Isherwood Josselin Kettleborough Lanchester Micklethwait Nightingale Ormerod Postlethwaite Raistrick
Sowerbutts Threlkeld Uttley Venables Wolstenholme Aldersey Brocklehurst Cruikshank Duckworth Eccleston Featherstone
Gillibrand Heathcote Ingleby Kenworthy Longbottom Murgatroyd Oglethorpe Puddephat""".split()
TOWNS = """Ashcombe Brackwater Coldharbour Dunmere Eastholm Fairlight Greyfriars Hollowell Inverdale Juniper-Hill
Kestrelford Larkstone Millbrook Northwold Oxcroft Pinehurst Quarrendon Ravensby Stonleigh Thornbury Upwell Vinecote
Westering Yewdale Applegarth Birchover Cloverley Dovecote Elmstead Foxhole Gorsemoor Heatherby""".split()

SMALL_WORDS = set("""the a an of is was were did does do to in on at with from for and by has have had be been what which
who whom whose where when why how much many would you it its his her him that this their nobody anything he she if one
s there can could must not never no so as into under up out over again about""".split())


def shared_words(said, question):
    """Words of both, but for small ones and names."""
    words = [set(re.findall(r"[a-z]+", text.lower())) - SMALL_WORDS for text in (said, question)]
    names = {name.lower() for name in re.findall(r"[A-Z][a-z]+", said)}
    return words[0] & words[1] - names


def digits(draw, n):
    return str(draw.randrange(10 ** (n - 1), 10**n))


class Facts:
    def __init__(self, seed):
        self.draw = random.Random(seed)
        self.people = PEOPLE[:]
        self.surnames, self.towns = SURNAMES[:], TOWNS[:]
        self.draw.shuffle(self.people)
        self.draw.shuffle(self.surnames)
        self.draw.shuffle(self.towns)
        self.values = set()
        self.rows = []

    def person(self):
        return self.people.pop()

    def town(self):
        return self.towns.pop()

    def number(self, n):
        while True:
            value = digits(self.draw, n)
            if value not in self.values:
                self.values.add(value)
                return value

    def add(self, kind, said, asked, other, *answers):
        forms = [a if isinstance(a, list) else [a] for a in answers]
        for question in (asked, other):
            for form in (f for a in forms for f in a):
                assert not re.search(rf"\b{re.escape(form)}\b", question, re.I), (form, question)
        assert not shared_words(said, other), (said, other)
        self.rows.append({"kind": kind, "said": said, "asked": asked, "other": other, "answers": forms})


def keys(facts):
    for said, asked, other in [
            ("The door code of {p} is {v}.", "What is the door code of {p}?",
             "Which digits does {p} type in to get into the house?"),
            ("{p}'s locker at the swimming bath opens with the combination {v}.",
             "Which combination opens {p}'s locker at the swimming bath?",
             "What must {p} dial at the pool to reach the clothes?"),
            ("The account of {p} at the savings bank has the number {v}.",
             "What number does the account of {p} at the savings bank have?",
             "Under which figure is the money of {p} deposited?"),
            ("To call {p} one has to dial extension {v}.", "Which extension has to be dialled to call {p}?",
             "How can {p} be reached on the telephone?"),
            ("The parcel that {p} is waiting for bears the tracking number {v}.",
             "Which tracking number does the parcel of {p} bear?",
             "What would {p} quote to the post office to learn where the shipment is?")]:
        for _ in range(4):
            p, v = facts.person(), facts.number(5)
            facts.add("keys", said.format(p=p, v=v), asked.format(p=p), other.format(p=p), v)


def names(facts):
    for said, asked, other, values in [
            ("The donkey of {p} is called {v}.", "What is the donkey of {p} called?",
             "To which word does {p}'s long-eared animal answer?", ["Biscuit", "Thunder", "Clover", "Marble"]),
            ("{p} painted the name {v} on the bow of the new sailing boat.",
             "Which name did {p} paint on the bow of the sailing boat?",
             "How did {p} christen the vessel?", ["Albatross", "Evening Star", "Nightingale", "Wild Goose"]),
            ("The inn that {p} keeps at the crossroads is the {v}.", "Which inn does {p} keep at the crossroads?",
             "At the sign of what can travellers get a bed from {p}?",
             ["Golden Pheasant", "Three Barrels", "Black Swan", "Crooked Billet"]),
            ("The wet nurse of {p} was an old woman whom everybody knew as {v}.",
             "As what did everybody know the wet nurse of {p}?",
             "Who suckled {p} as a baby?", ["Mother Pomfret", "Widow Quill", "Granny Tansy", "Dame Hobbleday"]),
            ("The perfume that {p} always wears is sold under the name {v}.",
             "Under which name is the perfume sold that {p} always wears?",
             "What does {p} smell of?", ["Silver Moss", "Autumn Rain", "Blue Amber", "Velvet Dusk"])]:
        for value in values:
            p = facts.person()
            facts.add("names", said.format(p=p, v=value), asked.format(p=p), other.format(p=p), value)


def places(facts):
    for said, asked, other, values in [
            ("The spare key of {p} lies under the {v}.", "Under what does the spare key of {p} lie?",
             "Where would you look to get into {p}'s house if the owner is out?",
             ["flowerpot", "millstone", "rain barrel", "stone lion"]),
            ("{p} buried the silver spoons behind the {v}.", "Behind what did {p} bury the silver spoons?",
             "Where is the cutlery that {p} hid in the ground?",
             ["bakehouse", "chapel", "beehives", "pigsty"]),
            ("The pilot {p} left his coat in a {v}.", "Where did the pilot {p} leave his coat?",
             "In what kind of building does the airman {p}'s garment hang now?",
             ["tavern", "barber's shop", "theatre", "laundry"]),
            ("{p} spent the winter before last in {t}.", "Where did {p} spend the winter before last?",
             "In which town did {p} live through the cold months two years ago?", None),
            ("The grandfather of {p} was born in {t}, although nobody remembers it.",
             "Where was the grandfather of {p} born?", "From which town does {p}'s family come?", None)]:
        for value in values or range(4):
            p = facts.person()
            v = value if values else facts.town()
            facts.add("places", said.format(p=p, v=v, t=v), asked.format(p=p), other.format(p=p), v)


def causes(facts):
    for said, asked, other, values in [
            ("{p} missed the wedding because {v}.", "Why did {p} miss the wedding?",
             "What kept {p} from seeing the couple married?",
             [("the bridge had been washed away", ["bridge"]), ("a tooth had to be pulled", ["tooth"]),
              ("the ferry had run aground", ["ferry"]), ("the horse had gone lame", ["horse", "lame"])]),
            ("The shop of {p} was shut for a week on account of {v}.", "Why was the shop of {p} shut for a week?",
             "For what reason could nobody buy anything from {p}?",
             [("a burst water pipe", ["pipe"]), ("a plague of moths", ["moths"]),
              ("the theft of the scales", ["scales"]), ("a fallen chimney", ["chimney"])]),
            ("{p} gave up playing the violin after {v}.", "Why did {p} give up playing the violin?",
             "What made {p} stop making music?",
             [("an accident with a saw", ["saw", "accident"]), ("a quarrel with the conductor", ["quarrel", "conductor"]),
              ("a fever that took the hearing of one ear", ["fever", "hearing", "ear"]),
              ("the instrument had been sold to pay a debt", ["debt", "sold"])]),
            ("The bees of {p} died that spring because {v}.", "Why did the bees of {p} die that spring?",
             "What killed the insects that {p} keeps?",
             [("the hives had stood in flood water", ["flood", "water"]), ("the orchard had been sprayed with copper", ["copper", "sprayed"]),
              ("a bear had broken the hives open", ["bear"]), ("a late frost had taken the blossom", ["frost"])]),
            ("{p} was dismissed from the bank for {v}.", "Why was {p} dismissed from the bank?",
             "What cost {p} the post as a clerk?",
             [("writing verses in the ledger", ["verses", "ledger"]), ("sleeping in the vault", ["sleeping", "vault"]),
              ("keeping a parrot at the counter", ["parrot"]), ("lending his keys to a friend", ["keys", "lending"])])]:
        for text, forms in values:
            p = facts.person()
            facts.add("causes", said.format(p=p, v=text), asked.format(p=p), other.format(p=p), forms)


def lists(facts):
    for said, asked, other, values in [
            ("{p} brought two things to the picnic, a {a} and a {b}.", "Which two things did {p} bring to the picnic?",
             "What did {p} contribute to the meal in the open air?",
             [("melon", "kettle"), ("ham", "guitar"), ("pudding", "lantern"), ("cheese", "parasol")]),
            ("{p} speaks two foreign languages, {a} and {b}.", "Which two foreign languages does {p} speak?",
             "In what tongues could {p} talk to a stranger from abroad?",
             [("Danish", "Greek"), ("Polish", "Arabic"), ("Welsh", "Turkish"), ("Finnish", "Hindi")]),
            ("The coat of arms of {p} shows a {a} and a {b}.", "What does the coat of arms of {p} show?",
             "Which figures are on the family shield of {p}?",
             [("heron", "tower"), ("boar", "rose"), ("stag", "anchor"), ("dolphin", "sword")]),
            ("{p} is allergic to {a} and to {b}.", "To which two things is {p} allergic?",
             "What must a cook never serve {p}?",
             [("walnuts", "crab"), ("celery", "eggs"), ("mustard", "peaches"), ("lentils", "honey")]),
            ("In the will {p} received the {a} and the {b}.", "What did {p} receive in the will?",
             "Which pieces did {p} inherit?",
             [("clock", "piano"), ("carpet", "telescope"), ("mirror", "saddle"), ("globe", "harp")])]:
        for a, b in values:
            p = facts.person()
            facts.add("lists", said.format(p=p, a=a, b=b), asked.format(p=p), other.format(p=p), a, b)


def dates(facts):
    months = ["January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
              "November", "December"]
    days = [(d, m) for d in range(2, 28) for m in months]
    facts.draw.shuffle(days)
    for said, asked, other in [
            ("The birthday of {p} is the {d} of {m}.", "When is the birthday of {p}?",
             "On which day should one congratulate {p}?"),
            ("{p} signed the contract for the mill on {m} {d}.", "When did {p} sign the contract for the mill?",
             "On which day did {p} become the owner of the place where grain is ground?"),
            ("The steamer with {p} on board left the harbour on the {d} of {m}.",
             "When did the steamer with {p} on board leave the harbour?",
             "On which day did {p} put to sea?"),
            ("{p} was released from prison on {m} {d}.", "When was {p} released from prison?",
             "On which day did {p} go free?"),
            ("The new clinic of {p} will open its doors on the {d} of {m}.",
             "When will the new clinic of {p} open its doors?",
             "From which day on can the sick be treated at {p}'s?")]:
        for _ in range(4):
            p, (d, m) = facts.person(), days.pop()
            facts.add("dates", said.format(p=p, d=d, m=m), asked.format(p=p), other.format(p=p), str(d), m)


def code(facts):
    for said, asked, other, values in [
            ("In the {t} program the function `{v}` removes expired sessions.",
             "Which function removes expired sessions in the {t} program?",
             "In the {t} software, what is called to clean up logins that are too old?",
             ["purge_stale_tokens", "sweepTickets", "evict_dead_guests", "reapHandles"]),
            ("The {t} service listens on port {n}.", "On which port does the {t} service listen?",
             "Where on the machine would you connect to reach {t}?", None),
            ("The retry limit of the {t} client is set in the variable `{v}`.",
             "In which variable is the retry limit of the {t} client set?",
             "What would you change so that {t} tries again more often?",
             ["MAX_KNOCKS", "attemptCeiling", "kHopefulness", "retry_budget_q"]),
            ("The {t} job writes its report to the file `{v}`.", "To which file does the {t} job write its report?",
             "Where does the output of {t} end up?",
             ["ledger_out.tsv", "weekly_sum.dat", "totals-final.ini", "night_run.bin"]),
            ("The {t} release with the tag `{v}` fixed the memory leak.",
             "Which tag has the {t} release that fixed the memory leak?",
             "From which version on does {t} no longer eat more and more RAM?",
             ["v4.17.3", "v2.8.91", "v11.0.6", "v7.35.2"])]:
        products = iter(facts.products[:4])
        del facts.products[:4]
        for value in values or range(4):
            t = next(products)
            v = value if values else facts.number(4)
            facts.add("code", said.format(t=t, v=v, n=v), asked.format(t=t), other.format(t=t), v)


def dialogue(facts):
    for said, asked, other, values in [
            ('"What shall we plant this year?" asked {p}. "{V}," said the gardener, "and nothing else."',
             "What did the gardener say to {p} should be planted?",
             "Which crop was recommended when {p} wanted advice on the beds?",
             ["Turnips", "Sunflowers", "Artichokes", "Pumpkins"]),
            ('"Who broke the window?" {p} cried. "It was the {v}," the boy answered.',
             "Who broke the window, as the boy answered {p}?",
             "On whom did the child blame the shattered glass before {p}?",
             ["postman", "blacksmith", "sexton", "miller"]),
            ('"How much do you want for the cow?" said {p}. "{n} crowns," said the farmer.',
             "How many crowns did the farmer want for the cow from {p}?",
             "What price was {p} told for the animal?", None),
            ('{p} whispered to the stranger: "The password for tonight is {v}."',
             "Which password for tonight did {p} whisper to the stranger?",
             "What does one have to say to be let in this evening, according to {p}?",
             ["marzipan", "gooseberry", "thimble", "weathercock"]),
            ('"I dreamt of a {v} again," said {p} at breakfast, and nobody laughed.',
             "Of what did {p} dream again?", "What did {p} see in sleep?",
             ["lighthouse", "white wolf", "burning ship", "glass staircase"])]:
        for value in values or range(4):
            p = facts.person()
            v = value if values else facts.number(3)
            facts.add("dialogue", said.format(p=p, v=v, V=v, n=v), asked.format(p=p), other.format(p=p), v)


def tables(facts):
    for head, asked, other, values in [
            ("name | room | guests", "Which room is in the table beside {p}?",
             "Where in the hotel was {p} put up?", None),
            ("player | points | team", "How many points are in the table for {p}?",
             "What did {p} score?", None),
            ("member | subscription | instrument", "Which instrument is in the table beside {p}?",
             "What does {p} play?", ["bassoon", "trombone", "zither", "oboe"]),
            ("patient | ward | medicine", "Which medicine is in the table beside the patient {p}?",
             "What is {p} being treated with?", ["quinine", "camphor", "iodine", "arnica"]),
            ("crew | rank | cabin", "Which rank is in the table beside {p}?",
             "What position does {p} hold on the ship?", ["boatswain", "purser", "helmsman", "surgeon"])]:
        for i in range(4):
            p, q, r = (facts.surnames.pop() for _ in range(3))
            rows = []
            for who in (q, p, r):
                first, second = facts.number(3), facts.number(2)
                if values is None:
                    rows.append((who, first, second if "guests" in head else "the Rovers"))
                else:
                    word = values[i] if who == p else f"{'none' if 'rank' not in head else 'cook'}"
                    rows.append((who, word, second) if "rank" in head else (who, second, word))
            truth = rows[1][1] if values is None else values[i]
            said = head + "\n" + "\n".join(" | ".join(row) for row in rows)
            facts.add("tables", said, asked.format(p=p), other.format(p=p), truth)


def paraphrase(facts):
    for said, asked, other, *answers in [
            ("The physician's carriage lost a wheel near {}.", "Near which place did the physician's carriage lose a wheel?",
             "Where did the doctor's coach break down?"),
            ("A cobbler from {} repaired the queen's slippers for nothing.",
             "From where was the cobbler who repaired the queen's slippers?",
             "In which town lived the shoemaker who mended footwear for Her Majesty without pay?"),
            ("The choir of {} lost its best tenor to a rival.", "Which choir lost its best tenor to a rival?",
             "Where did a singer desert to the competition?"),
            ("The schoolmaster's umbrella was found in the clock tower of {}.",
             "In whose clock tower was the schoolmaster's umbrella found?",
             "Where did a teacher's protection against rain turn up?"),
            ("Smugglers landed forty casks of brandy below the cliffs of {}.",
             "Below the cliffs of which place did smugglers land forty casks of brandy?",
             "Where did criminals bring spirits ashore?"),
            ("The mayor of {} keeps a tame otter in his bath tub.", "Which place's mayor keeps a tame otter in his bath tub?",
             "In which town does the head of the council have a wild creature living in his washroom?"),
            ("Lightning split the oldest oak of {} down to its roots.", "Whose oldest oak did lightning split?",
             "Where was an ancient tree destroyed by a thunderstorm?"),
            ("The bakers of {} refused to bake for nine days.", "Where did the bakers refuse to bake for nine days?",
             "Which town had to go without fresh bread because of a strike?"),
            ("The burglar's sister swept floors at the jeweller's for a {}.",
             "For how long did the burglar's sister sweep floors at the jeweller's?",
             "How much time did the thief's relative spend cleaning at the shop with the gems?", ["fortnight"]),
            ("The widow traded her wedding ring for a {}.", "For what did the widow trade her wedding ring?",
             "What did the bereaved woman get in exchange for the token of her marriage?", ["cartload of coal", "coal"]),
            ("The sculptor carved the saint out of {}.", "Out of what did the sculptor carve the saint?",
             "Which material did the artist choose for the holy figure?", ["driftwood"]),
            ("The surveyor swore that the valley was {} fathoms deep.", "How many fathoms deep was the valley, as the surveyor swore?",
             "What depth did the man with the measuring instruments insist on?", ["319"]),
            ("The juggler's contract forbids him to eat {}.", "What does the juggler's contract forbid him to eat?",
             "Which food may the circus artist not have?", ["garlic"]),
            ("The lamplighter paid for his supper with a {}.", "With what did the lamplighter pay for his supper?",
             "What did the man who looks after the street lights hand over for his evening meal?", ["brass button"]),
            ("The orphan taught herself to read from a {}.", "From what did the orphan teach herself to read?",
             "With the help of what did the girl without parents learn her letters?", ["railway timetable", "timetable"]),
            ("The general hid in a {} until the battle was over.", "In what did the general hide until the battle was over?",
             "Where did the commander stay while his soldiers fought?", ["haystack"]),
            ("The chess club meets on the floor above the {}.", "Above what does the chess club meet?",
             "Over which business do people play the board game?", ["tannery"]),
            ("The poet's only pupil became a {}.", "What did the poet's only pupil become?",
             "Which trade did the student of the writer of verses take up?", ["locksmith"]),
            ("The convict tunnelled out of his cell with a {}.", "With what did the convict tunnel out of his cell?",
             "Which tool did the prisoner use to escape?", ["soup ladle", "ladle"]),
            ("The governess was afraid of nothing but {}.", "Of what was the governess afraid?",
             "What frightened the children's teacher?", ["geese"])]:
        if answers:
            facts.add("paraphrase", said.format(answers[0][0]), asked, other, answers[0])
        else:
            town = facts.town()
            facts.add("paraphrase", said.format(town), asked, other, town)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    facts = Facts(parser.parse_args().seed)
    facts.products = """Marlin Osprey Quokka Tapir Wombat Lynx Ibex Gecko Puffin Narwhal Ocelot Pangolin Stoat Tern
Vole Wren Yak Zebu Auk Bison""".split()
    for kind in (keys, names, places, causes, lists, dates, code, dialogue, tables, paraphrase):
        kind(facts)
    rows = facts.rows
    assert len(rows) == 200 and all(sum(r["kind"] == k for r in rows) == 20 for r in rows for k in [r["kind"]])
    facts.draw.shuffle(rows)
    print("[" + ",\n".join(json.dumps(row) for row in rows) + "]")


if __name__ == "__main__":
    sys.exit(main())
