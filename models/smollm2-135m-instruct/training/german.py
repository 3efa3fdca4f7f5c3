"""German sentences in the manner of the news, made by rule, to be translated."""

import random

_SLOTS = {
    "ort": (
        "Berlin Hamburg München Köln Frankfurt Stuttgart Leipzig Dresden Hannover Bremen Nürnberg Dortmund Essen Kiel "
        "Rostock Mainz Erfurt Freiburg Augsburg Münster Potsdam Kassel Wien Graz Zürich Basel Bern Salzburg"
    ).split(),
    "land": "Frankreich Italien Spanien Polen Schweden Japan Kanada Brasilien Indien Norwegen Portugal Chile".split(),
    "name": (
        "Müller Schmidt Wagner Fischer Becker Hoffmann Schäfer Krüger Vogel Lorenz Winkler Brandt Seidel Böhm Haas "
        "Kaiser Arnold Pohl Ziegler Yilmaz Novak Petersen Lindner Köhler"
    ).split(),
    "vorname": "Anna Lukas Sabine Thomas Jana Michael Claudia Stefan Katrin Felix Miriam Jens Heike Oliver".split(),
    "monat": "Januar Februar März April Mai Juni Juli August September Oktober November Dezember".split(),
    "tag": "Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag".split(),
    "amt": (
        "der Bürgermeister",
        "die Finanzministerin",
        "ein Sprecher der Polizei",
        "die Leiterin des Krankenhauses",
        "der Vorsitzende der Gewerkschaft",
        "die Geschäftsführerin des Unternehmens",
        "ein Vertreter der Bundesregierung",
        "die Präsidentin der Universität",
        "der Trainer der Nationalmannschaft",
        "die Umweltministerin",
    ),
    "vorhaben": (
        "den Ausbau der Radwege",
        "neue Schulen und Kindergärten",
        "die Sanierung der alten Brücke",
        "den Bau eines modernen Krankenhauses",
        "schnellere Internetverbindungen auf dem Land",
        "den Schutz der Küste vor Hochwasser",
        "bezahlbare Wohnungen für junge Familien",
        "die Förderung erneuerbarer Energien",
        "ein besseres Angebot im öffentlichen Nahverkehr",
        "die Ausbildung von Pflegekräften",
    ),
    "folge": (
        "die Preise weiter steigen werden",
        "die Verhandlungen bald abgeschlossen sind",
        "mehrere hundert Arbeitsplätze verloren gehen könnten",
        "die Zahl der Besucher im nächsten Jahr zunimmt",
        "das Vertrauen der Bürger zurückkehrt",
        "die Mannschaft rechtzeitig in Form kommt",
        "sich die Lage bis zum Herbst entspannt",
        "es vorerst keine weiteren Änderungen geben wird",
        "viele Betriebe keine Nachfolger mehr finden",
        "die Ergebnisse auch auf andere Länder übertragbar sind",
    ),
    "ereignis": (
        "einem schweren Verkehrsunfall auf der Autobahn",
        "einem Brand in einem Mehrfamilienhaus",
        "einem heftigen Unwetter",
        "einer Explosion in einer Fabrik",
        "einem Zusammenstoß zweier Züge",
        "einer Schlägerei in der Innenstadt",
        "einem Erdrutsch in den Bergen",
    ),
    "ding": (
        "das Museum",
        "das Stadttheater",
        "der Flughafen",
        "die Bibliothek",
        "das Schwimmbad",
        "der Hauptbahnhof",
        "das Rathaus",
        "der Weihnachtsmarkt",
    ),
    "verein": ("Hertha", "Union", "Eintracht", "Fortuna", "Arminia", "Borussia", "Energie", "Dynamo"),
    "forschung": (
        "dass regelmäßiger Schlaf das Gedächtnis verbessert",
        "dass Bienen Farben besser unterscheiden als bisher angenommen",
        "wie sich Bakterien gegen Medikamente wehren",
        "warum manche Menschen nie an Grippe erkranken",
        "dass die Gletscher in den Alpen schneller schmelzen als erwartet",
        "wie sich Kinder im Internet informieren",
        "dass Bewegung an der frischen Luft gegen Stress hilft",
    ),
    "meinung": (
        "Das ist ein wichtiger Schritt in die richtige Richtung",
        "Wir dürfen jetzt keine Zeit mehr verlieren",
        "Damit hatte in diesem Jahr niemand gerechnet",
        "Am Ende müssen alle Beteiligten Verantwortung übernehmen",
        "Ich bin stolz auf das, was wir gemeinsam erreicht haben",
        "Ohne zusätzliche Mittel lässt sich das nicht umsetzen",
        "Viele Menschen wissen gar nicht, welche Hilfe ihnen zusteht",
    ),
    "ware": ("Autos", "Fahrräder", "Möbel", "Bücher", "Maschinen", "Spielwaren", "Lebensmittel", "Computer"),
    "wetter": (
        "bleibt es meist trocken und freundlich",
        "ziehen von Westen her kräftige Gewitter auf",
        "muss mit glatten Straßen gerechnet werden",
        "fallen örtlich mehr als dreißig Liter Regen pro Quadratmeter",
        "weht ein starker bis stürmischer Wind",
    ),
}

_SENTENCES = (
    "Die Stadt {ort} will in den kommenden Jahren rund {n} Millionen Euro in {vorhaben} investieren.",
    "Wie {amt} am {tag} in {ort} mitteilte, ist damit zu rechnen, dass {folge}.",
    "Bei {ereignis} in der Nähe von {ort} sind am {tag} {k} Menschen verletzt worden, zwei von ihnen schwer.",
    "„{meinung}“, sagte {vorname} {name} am {tag} bei einer Veranstaltung in {ort}.",
    "Nach Angaben des Statistischen Bundesamtes stieg der Umsatz mit {ware}n im {monat} um {k},{j} Prozent.",
    "Forscher der Universität {ort} haben herausgefunden, {forschung}.",
    "{verein} {ort} gewann am {tag} mit {j}:0 gegen {verein2} {ort2} und steht damit im Viertelfinale des Pokals.",
    "Am {tag} {wetter}, die Temperaturen erreichen Werte zwischen {k} und {m} Grad.",
    "Der Prozess gegen den {m}-jährigen Angeklagten aus {ort} soll im {monat} beginnen.",
    "{vorname} {name} arbeitet seit {k} Jahren als Lehrerin in {ort} und möchte ihren Beruf nicht wechseln.",
    "Seit {monat} ist {ding} in {ort} wegen Bauarbeiten geschlossen, nun wurde die Wiedereröffnung erneut verschoben.",
    "Die Bundesregierung hat sich mit den Ländern darauf geeinigt, {vorhaben} stärker zu unterstützen.",
    "In {land} haben am {tag} mehrere tausend Menschen gegen die Politik der Regierung demonstriert.",
    "Obwohl die Preise gestiegen sind, reisen immer mehr Deutsche im Sommer nach {land}.",
    "Das Unternehmen aus {ort} stellt seit {jahr} {ware} her und beschäftigt heute mehr als {hundert} Mitarbeiter.",
    "{amt2} zeigte sich überzeugt davon, dass {folge}.",
    "Die Polizei sucht Zeugen, die am {tag} gegen {stunde} Uhr in {ort} etwas Verdächtiges beobachtet haben.",
    "Ein {m} Jahre alter Mann ist bei {ereignis} ums Leben gekommen.",
    "Für {vorhaben} stehen in diesem Jahr nur {n} Millionen Euro zur Verfügung, deutlich weniger als im Vorjahr.",
    "Der Schriftsteller {vorname} {name}, geboren {jahr} in {ort}, liest am {tag} aus seinem neuen Roman.",
    "Mit {hundert} Besuchern war {ding} in {ort} am Wochenende so gut besucht wie noch nie.",
    "Ob {folge}, ist nach Ansicht von Experten noch völlig offen.",
    "Wer in {ort} eine Wohnung sucht, muss inzwischen mehr als {m} Euro pro Quadratmeter bezahlen.",
    "Die Gewerkschaft fordert {k} Prozent mehr Lohn und droht mit Streiks ab {tag}.",
    "Kurz vor der Pause erzielte {name} nach einem Eckball das zweite Tor für {verein} {ort}.",
    "Zwischen {ort} und {ort2} fahren wegen einer Störung bis {tag} keine Züge.",
    "Der Ausschuss lehnte den Antrag, mehr Geld für {vorhaben} auszugeben, mit {k} zu {j} Stimmen ab.",
    "Viele Patienten warten monatelang auf einen Termin, obwohl in {ort} mehrere neue Praxen eröffnet haben.",
    "Sie habe nie daran gezweifelt, dass {folge}, erklärte {vorname} {name} im Gespräch mit unserer Zeitung.",
    "Der Export von {ware}n nach {land} ging im vergangenen Jahr um {m} Prozent zurück.",
    "Eine Studie zeigt, {forschung}; ihre Autoren haben dafür {hundert} Personen befragt.",
    "„{meinung}“, heißt es in einer Erklärung, die {amt} am {tag} veröffentlichte.",
    "Nach dem Abschied von {vorname} {name} braucht {verein} {ort} dringend einen neuen Torwart.",
    "Im {monat} {jahr} wurde {ding} in {ort} eingeweiht und seitdem mehrfach umgebaut.",
    "Können Sie sich vorstellen, eines Tages wieder in {land} zu leben?",
    "Zum Frühstück gibt es in diesem Hotel frisches Brot, Obst und auf Wunsch auch warme Speisen.",
    "Unser Zimmer in {ort} war sauber und ruhig, nur der Weg zum Bahnhof war etwas weit.",
    "Bitte beachten Sie, dass {ding} am {tag} erst ab {stunde} Uhr geöffnet ist.",
)


def news_sentence(rng: random.Random) -> str:
    """One sentence with places, people and numbers drawn at random."""
    values = {slot: rng.choice(choices) for slot, choices in _SLOTS.items()}
    values["ort"], values["ort2"] = rng.sample(_SLOTS["ort"], 2)
    values["verein"], values["verein2"] = rng.sample(_SLOTS["verein"], 2)
    amt = rng.choice(_SLOTS["amt"])
    values |= {
        "amt2": amt[0].upper() + amt[1:],
        "n": rng.randint(2, 900),
        "k": rng.randint(3, 12),
        "j": rng.randint(2, 6),
        "m": rng.randint(13, 60),
        "hundert": rng.randint(2, 90) * 100,
        "jahr": rng.randint(1890, 2019),
        "stunde": rng.randint(8, 22),
    }
    return rng.choice(_SENTENCES).format_map(values)
