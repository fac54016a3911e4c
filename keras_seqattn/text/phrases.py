"""A parallel corpus made from the CLDR data in Babel: phrases that people translated.

Every language renders the same list of dates, amounts, measures and names, so the n-th
phrases of two languages mean the same.
"""

import collections
import datetime
import functools
import itertools
import random
import re

from keras_seqattn import arguments

# Languages for which Babel has every phrase below; for many others it lacks some unit.
LANGUAGES = (
    "en",
    "de",
    "fr",
    "es",
    "cs",
    "fi",
    "hr",
    "lt",
    "lv",
    "ro",
    "ru",
    "sk",
    "sl",
)
SPLITS = ("train", "val", "test")
HELD_OUT = 1000
# A phrase is held out only if each of its words, on either side, still occurs at least
# this often in training.
WORD_COUNT = 5

WIDTHS = ("long", "full", "medium")
DAYS = {"year": 365, "month": 30, "week": 7, "day": 1}
COUNTS = (*range(1, 13), 15, 20, 25, 30, 40, 50, 60, 75, 80, 100, 120, 150, 200, 250)
FRACTIONS = (0.5, 1.5, 2.5, 3.5, 4.5, 7.5, 12.5, 0.25, 1.25, 2.75)
LARGE = (300, 400, 500, 750, 1000, 1500, 2000, 2500, 5000, 10000, 25000, 100000)
PERIODS = ("second", "minute", "hour", "day", "week", "month", "year")
PRICES = (0.5, 0.99, 1.5, 2.25, 3.5, 4.99, 7.5, 9.95, 12.75, 19.99, 49.9, 1234.5)
CURRENCIES = """
    EUR USD GBP JPY CHF CAD AUD NZD SEK NOK DKK CZK PLN HUF RON TRY RUB UAH CNY INR KRW
    THB IDR BRL MXN ARS CLP COP PEN ZAR EGP MAD KES NGN ILS SAR
""".split()
SYMBOLS = ("EUR", "USD", "GBP")
UNITS = """
    length-millimeter length-centimeter length-meter length-kilometer length-inch
    length-foot length-yard length-mile mass-milligram mass-gram mass-kilogram mass-ton
    mass-ounce mass-pound volume-milliliter volume-liter volume-hectoliter
    volume-cubic-meter volume-gallon area-square-meter area-square-kilometer
    area-hectare area-acre speed-kilometer-per-hour speed-mile-per-hour
    speed-meter-per-second speed-knot temperature-celsius temperature-fahrenheit
    digital-kilobyte digital-megabyte digital-gigabyte digital-terabyte power-watt
    power-kilowatt power-horsepower energy-kilowatt-hour energy-joule energy-kilocalorie
    frequency-hertz frequency-megahertz electric-volt electric-ampere
    pressure-hectopascal pressure-bar angle-degree
""".split()
COUNTRIES = """
    DE AT CH FR BE NL LU IT ES PT GB IE DK SE NO FI IS PL CZ SK HU RO BG GR TR RU UA BY
    EE LV LT SI HR RS BA AL MT CY US CA MX CU BR AR CL PE CO VE BO UY PY EC CN JP KR IN
    PK BD TH VN ID MY PH SG AU NZ EG MA DZ TN LY ET KE TZ UG NG GH SN CM ZA NA ZW MZ MG
    IL JO LB SY IQ IR SA YE OM KW QA AF MN NP LK KZ UZ GE AM AZ
""".split()
TONGUES = """
    en de fr es it pt nl sv da nb fi is pl cs sk hu ro bg el tr ru uk be et lv lt sl hr
    sr bs sq mt ca eu gl cy ga la zh ja ko hi bn ur th vi id ms fil ar he fa sw am zu af
    ka hy az kk uz mn ne si
""".split()


@functools.lru_cache
def phrase_splits(source: str, target: str) -> dict[str, list[tuple[str, str]]]:
    """Returns the pairs of each of `SPLITS`, for the codes of two of `LANGUAGES`.

    A source has one translation: where there are several, it is the first, which is
    always of the same kind. A held-out target has one source. No-break and thin spaces
    become plain spaces, as people type them.
    """
    pairs = {}
    for pair in zip(_render_all(source), _render_all(target), strict=True):
        pairs.setdefault(*pair)
    sides = (pairs.keys(), pairs.values())
    words = [collections.Counter(" ".join(side).split()) for side in sides]
    same_target = collections.Counter(pairs.values())
    rng = random.Random("split")
    mixed = sorted(pairs.items(), key=lambda _: rng.random())
    held_out = {}
    for pair in mixed:
        counts = [collections.Counter(text.split()) for text in pair]
        common = all(
            words[side][word] - count >= WORD_COUNT
            for side in (0, 1)
            for word, count in counts[side].items()
        )
        if common and same_target[pair[1]] == 1 and len(held_out) < 2 * HELD_OUT:
            held_out[pair] = None
            for side in (0, 1):
                words[side].subtract(counts[side])
    return {
        "train": [pair for pair in mixed if pair not in held_out],
        "val": list(held_out)[:HELD_OUT],
        "test": list(held_out)[HELD_OUT:],
    }


@functools.lru_cache
def _render_all(language):
    """Returns every phrase in one language, in an order that all languages share."""
    babel = arguments.package("babel", "corpora", "The corpus `phrases`")
    locale = babel.Locale(language)
    kinds = (_names, _lists, _dates, _times, _intervals, _durations, _units, _amounts)
    texts = itertools.chain.from_iterable(kind(locale) for kind in kinds)
    return tuple(re.sub(r"\s+", " ", text) for text in texts)


def _pick(rng, options):
    """Draws one option by `random()`, whose results are the same on every Python."""
    return options[int(rng.random() * len(options))]


def _names(locale):
    """Yields names of countries and languages."""
    yield from (locale.territories[code] for code in COUNTRIES)
    yield from (locale.languages[code] for code in TONGUES)


def _lists(locale):
    """Yields lists of countries and of languages."""
    from babel.lists import format_list

    rng = random.Random("lists")
    names = (
        [locale.territories[code] for code in COUNTRIES],
        [locale.languages[code] for code in TONGUES],
    )
    for _ in range(6000):
        options = list(_pick(rng, (names[0], names[0], names[1])))
        chosen = []
        for _ in range(_pick(rng, (2, 3, 3))):
            chosen.append(options.pop(int(rng.random() * len(options))))
        yield format_list(chosen, _pick(rng, ("standard", "standard", "or")), locale)


def _some_day(rng):
    return datetime.date(1970, 1, 1) + datetime.timedelta(int(rng.random() * 22000))


def _dates(locale):
    """Yields days in three widths, days of the year, months and quarters."""
    from babel.dates import format_date, format_skeleton

    rng = random.Random("dates")
    for _ in range(1800):
        day = _some_day(rng)
        yield from (format_date(day, width, locale) for width in WIDTHS)
    for number in range(366):
        day = datetime.date(2020, 1, 1) + datetime.timedelta(number)
        yield format_skeleton("MMMMd", day, locale=locale)
    for year in range(1980, 2030):
        for month in range(1, 13):
            day = datetime.date(year, month, 1)
            yield format_skeleton("yMMMM", day, locale=locale)
        for month in (1, 4, 7, 10):
            day = datetime.date(year, month, 1)
            yield format_skeleton("yQQQQ", day, locale=locale)


def _times(locale):
    """Yields times of day, alone and after a date."""
    from babel.dates import format_date, format_time, get_datetime_format

    times = [datetime.time(n // 12, n % 12 * 5) for n in range(24 * 12)]
    yield from (format_time(time, "short", locale=locale) for time in times)
    rng = random.Random("times")
    for _ in range(1500):
        day, time = _some_day(rng), _pick(rng, times)
        for width in ("long", "full"):
            pattern = get_datetime_format(width, locale=locale).replace("'", "")
            yield pattern.format(
                format_time(time, "short", locale=locale),
                format_date(day, width, locale),
            )


def _intervals(locale):
    """Yields intervals of days."""
    from babel.dates import format_interval

    rng = random.Random("intervals")
    for _ in range(1500):
        day = _some_day(rng)
        end = day + datetime.timedelta(_pick(rng, (1, 3, 6)))
        yield format_interval(day, end, "yMMMd", locale=locale)


def _durations(locale):
    """Yields times from now, and durations in two units."""
    from babel.dates import format_timedelta
    from babel.lists import format_list
    from babel.units import format_unit

    spans = itertools.product(DAYS.items(), range(1, 61), (1, -1))
    for (unit, days), count, sign in spans:
        yield format_timedelta(
            datetime.timedelta(sign * days * count),
            granularity=unit,
            threshold=10**6,
            add_direction=True,
            locale=locale,
        )
    limits = (("year", 30), ("month", 11), ("day", 28), ("hour", 23), ("minute", 59))
    parts = [(unit, range(1, 1 + limit)) for unit, limit in limits]
    rng = random.Random("durations")
    for _ in range(2000):
        first = int(rng.random() * 4)
        both = [
            format_unit(_pick(rng, counts), f"duration-{unit}", "long", locale=locale)
            for unit, counts in parts[first : first + 2]
        ]
        yield format_list(both, "standard", locale)


def _units(locale):
    """Yields measures, written out and short."""
    from babel.units import format_unit

    written_out = (*UNITS, *(f"duration-{period}" for period in PERIODS))
    for unit, count in itertools.product(written_out, (*COUNTS, *FRACTIONS, *LARGE)):
        yield format_unit(count, unit, "long", locale=locale)
    for unit, count in itertools.product(UNITS, COUNTS):
        yield format_unit(count, unit, "short", locale=locale)


def _amounts(locale):
    """Yields amounts of money, percentages and round numbers."""
    from babel.numbers import (
        format_compact_decimal,
        format_currency,
        format_percent,
        get_currency_precision,
    )

    for currency, count in itertools.product(CURRENCIES, (*COUNTS, *LARGE)):
        yield format_currency(
            count, currency, locale=locale, format_type="name", currency_digits=False
        )
    with_cents = [code for code in CURRENCIES if get_currency_precision(code)]
    for currency, price in itertools.product(with_cents, PRICES):
        yield format_currency(price, currency, locale=locale, format_type="name")
    for currency, price in itertools.product(SYMBOLS, (*COUNTS, *PRICES, *LARGE)):
        yield format_currency(price, currency, locale=locale)
    for percent in range(1, 101):
        yield format_percent(percent / 100, locale=locale)
    for size, count in itertools.product((10**3, 10**6, 10**9), range(2, 51)):
        yield format_compact_decimal(size * count, format_type="long", locale=locale)
