//! Places: providers' codes, countries, continents.
//!
//! Covered are all countries of ISO 3166-1 that have a code, by code and English short name, and the seven continents.
//! Of a provider's code the country or continent is taken from its words as AWS, Google Cloud, Lambda, Runpod and Vast.ai
//! write them (`us-east-1`, `europe-west4`, `EU-RO-1`, `Quebec, CA`); a code that says neither matches only itself.
//! Where a code is a country's and a continent's (AF, AS, NA, SA), a requirement means the continent, a fact the country.

use std::fmt;

/// A place that is asked for.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// By its two-letter code.
    Continent(String),
    /// By its ISO code.
    Country(String),
    /// What a provider calls it, in lower case; `*` and `?` are wildcards.
    Code(String),
}

/// A place that a machine stands in, as far as it is known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    code: String,
    country: Option<&'static str>,
    continent: Option<&'static str>,
}

impl Place {
    /// What a requirement's value means.
    pub fn asked(text: &str) -> Self {
        let upper = text.trim().to_uppercase();
        if CONTINENTS.iter().any(|(code, _)| *code == upper) {
            return Self::Continent(upper);
        }
        if let Some((continent, _)) = CONTINENT_NAMES
            .iter()
            .find(|(_, name)| same(name, text))
            .map(|(code, name)| (code, name))
        {
            return Self::Continent((*continent).to_owned());
        }
        match country(text) {
            Some((code, _, _)) => Self::Country(code.to_owned()),
            None => Self::Code(text.trim().to_lowercase()),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Continent(code) | Self::Code(code) => f.write_str(code),
            // By name where the code would read as a continent's.
            Self::Country(code) if CONTINENTS.iter().any(|(continent, _)| continent == code) => {
                f.write_str(country(code).map_or(code, |(_, name, _)| name))
            }
            Self::Country(code) => f.write_str(code),
        }
    }
}

impl Found {
    /// What a provider's words say.
    pub fn of(text: &str) -> Self {
        let (country, continent) = locate(text);
        Self {
            code: text.to_lowercase(),
            country,
            continent,
        }
    }

    /// Whether this is the place asked for, or lies in it.
    pub fn is_in(&self, asked: &Place) -> bool {
        match asked {
            Place::Continent(code) => self.continent == Some(code.as_str()),
            Place::Country(code) => {
                self.country == Some(code.as_str()) || self.code.eq_ignore_ascii_case(code)
            }
            Place::Code(code) => super::matching::glob(code, &self.code),
        }
    }
}

type Located = (Option<&'static str>, Option<&'static str>);

fn locate(text: &str) -> Located {
    let in_country = |(code, _, continent): Country| (Some(code), Some(continent));
    // "Quebec, CA", "California, USA".
    if let Some(found) = text.rsplit(',').next().and_then(country) {
        return in_country(found);
    }
    let words: Vec<&str> = text
        .split(|c: char| !c.is_ascii_alphabetic())
        .filter(|word| !word.is_empty())
        .collect();
    let Some(first) = words.first() else {
        return (None, None);
    };
    let wide = WIDE
        .iter()
        .find(|(word, _)| first.eq_ignore_ascii_case(word));
    let Some((_, continent)) = wide else {
        return country(first).map_or((None, None), in_country);
    };
    // "EU-RO-1": the second word is a country, which may lie elsewhere ("AP-AU-1").
    let second = words
        .get(1)
        .filter(|word| word.len() == 2)
        .and_then(|word| country(word));
    match second {
        Some(found) => in_country(found),
        None => (None, Some(continent)),
    }
}

/// First words of providers' codes that name a continent.
const WIDE: [(&str, &str); 15] = [
    ("af", "AF"),
    ("africa", "AF"),
    ("ap", "AS"),
    ("apac", "AS"),
    ("asia", "AS"),
    ("eu", "EU"),
    ("eur", "EU"),
    ("europe", "EU"),
    ("me", "AS"),
    ("na", "NA"),
    ("northamerica", "NA"),
    ("oc", "OC"),
    ("sa", "SA"),
    ("sea", "AS"),
    ("southamerica", "SA"),
];

const CONTINENT_NAMES: [(&str, &str); 7] = [
    ("AF", "Africa"),
    ("AN", "Antarctica"),
    ("AS", "Asia"),
    ("EU", "Europe"),
    ("NA", "North America"),
    ("OC", "Oceania"),
    ("SA", "South America"),
];

/// Code, name, continent.
type Country = (&'static str, &'static str, &'static str);

/// A country by ISO code or name; `USA`, `UK` and `UAE` too.
fn country(text: &str) -> Option<Country> {
    let text = text.trim();
    let text = match text.to_ascii_uppercase().as_str() {
        "USA" => "US",
        "UK" => "GB",
        "UAE" => "AE",
        "CZECHIA" => "CZ",
        "SOUTH KOREA" | "SOUTH-KOREA" | "KOREA" => "KR",
        "TÜRKIYE" => "TR",
        _ => text,
    };
    CONTINENTS.iter().find_map(|(continent, countries)| {
        countries
            .split('|')
            .filter_map(|entry| entry.split_once(' '))
            .find(|(code, name)| code.eq_ignore_ascii_case(text) || same(name, text))
            .map(|(code, name)| (code, name, *continent))
    })
}

fn same(name: &str, text: &str) -> bool {
    name.eq_ignore_ascii_case(text)
        || (text.contains(['-', '_']) && name.eq_ignore_ascii_case(&text.replace(['-', '_'], " ")))
}

/// Countries by continent, `CODE Name` each.
const CONTINENTS: [(&str, &str); 7] = [
    (
        "AF",
        "DZ Algeria|AO Angola|BJ Benin|BW Botswana|BF Burkina Faso|BI Burundi|CV Cabo Verde|CM Cameroon|CF Central African \
         Republic|TD Chad|KM Comoros|CG Congo|CD DR Congo|CI Ivory Coast|DJ Djibouti|EG Egypt|GQ Equatorial Guinea|ER \
         Eritrea|SZ Eswatini|ET Ethiopia|GA Gabon|GM Gambia|GH Ghana|GN Guinea|GW Guinea-Bissau|KE Kenya|LS Lesotho|LR \
         Liberia|LY Libya|MG Madagascar|MW Malawi|ML Mali|MR Mauritania|MU Mauritius|YT Mayotte|MA Morocco|MZ Mozambique|NA \
         Namibia|NE Niger|NG Nigeria|RE Réunion|RW Rwanda|SH Saint Helena|ST Sao Tome and Principe|SN Senegal|SC \
         Seychelles|SL Sierra Leone|SO Somalia|ZA South Africa|SS South Sudan|SD Sudan|TZ Tanzania|TG Togo|TN Tunisia|UG \
         Uganda|EH Western Sahara|ZM Zambia|ZW Zimbabwe",
    ),
    (
        "AN",
        "AQ Antarctica|BV Bouvet Island|TF French Southern Territories|HM Heard and McDonald Islands|GS South Georgia",
    ),
    (
        "AS",
        "AF Afghanistan|AM Armenia|AZ Azerbaijan|BH Bahrain|BD Bangladesh|BT Bhutan|IO British Indian Ocean Territory|BN \
         Brunei|KH Cambodia|CN China|CX Christmas Island|CC Cocos Islands|GE Georgia|HK Hong Kong|IN India|ID Indonesia|IR \
         Iran|IQ Iraq|IL Israel|JP Japan|JO Jordan|KZ Kazakhstan|KP North Korea|KR South Korea|KW Kuwait|KG Kyrgyzstan|LA \
         Laos|LB Lebanon|MO Macao|MY Malaysia|MV Maldives|MN Mongolia|MM Myanmar|NP Nepal|OM Oman|PK Pakistan|PS \
         Palestine|PH Philippines|QA Qatar|SA Saudi Arabia|SG Singapore|LK Sri Lanka|SY Syria|TW Taiwan|TJ Tajikistan|TH \
         Thailand|TL Timor-Leste|TR Turkey|TM Turkmenistan|AE United Arab Emirates|UZ Uzbekistan|VN Vietnam|YE Yemen",
    ),
    (
        "EU",
        "AX Aland Islands|AL Albania|AD Andorra|AT Austria|BY Belarus|BE Belgium|BA Bosnia and Herzegovina|BG Bulgaria|HR \
         Croatia|CY Cyprus|CZ Czech Republic|DK Denmark|EE Estonia|FO Faroe Islands|FI Finland|FR France|DE Germany|GI \
         Gibraltar|GR Greece|GG Guernsey|HU Hungary|IS Iceland|IE Ireland|IM Isle of Man|IT Italy|JE Jersey|XK Kosovo|LV \
         Latvia|LI Liechtenstein|LT Lithuania|LU Luxembourg|MT Malta|MD Moldova|MC Monaco|ME Montenegro|NL Netherlands|MK \
         North Macedonia|NO Norway|PL Poland|PT Portugal|RO Romania|RU Russia|SM San Marino|RS Serbia|SK Slovakia|SI \
         Slovenia|ES Spain|SJ Svalbard|SE Sweden|CH Switzerland|UA Ukraine|GB United Kingdom|VA Vatican City",
    ),
    (
        "NA",
        "AI Anguilla|AG Antigua and Barbuda|AW Aruba|BS Bahamas|BB Barbados|BZ Belize|BM Bermuda|BQ Caribbean \
         Netherlands|CA Canada|KY Cayman Islands|CR Costa Rica|CU Cuba|CW Curacao|DM Dominica|DO Dominican Republic|SV El \
         Salvador|GL Greenland|GD Grenada|GP Guadeloupe|GT Guatemala|HT Haiti|HN Honduras|JM Jamaica|MQ Martinique|MX \
         Mexico|MS Montserrat|NI Nicaragua|PA Panama|PR Puerto Rico|BL Saint Barthelemy|KN Saint Kitts and Nevis|LC Saint \
         Lucia|MF Saint Martin|PM Saint Pierre and Miquelon|VC Saint Vincent|SX Sint Maarten|TT Trinidad and Tobago|TC \
         Turks and Caicos Islands|US United States|VG British Virgin Islands|VI US Virgin Islands",
    ),
    (
        "OC",
        "AS American Samoa|AU Australia|CK Cook Islands|FJ Fiji|PF French Polynesia|GU Guam|KI Kiribati|MH Marshall \
         Islands|FM Micronesia|NR Nauru|NC New Caledonia|NZ New Zealand|NU Niue|NF Norfolk Island|MP Northern Mariana \
         Islands|PW Palau|PG Papua New Guinea|PN Pitcairn|WS Samoa|SB Solomon Islands|TK Tokelau|TO Tonga|TV Tuvalu|UM US \
         Outlying Islands|VU Vanuatu|WF Wallis and Futuna",
    ),
    (
        "SA",
        "AR Argentina|BO Bolivia|BR Brazil|CL Chile|CO Colombia|EC Ecuador|FK Falkland Islands|GF French Guiana|GY \
         Guyana|PY Paraguay|PE Peru|SR Suriname|UY Uruguay|VE Venezuela",
    ),
];
